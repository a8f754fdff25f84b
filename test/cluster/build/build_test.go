// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/fetch"
)

// bound limits how long a test waits.
const bound = 20 * time.Second

// goScript is a go command for tests: it records what it is asked to build, and then
// behaves as $FAKE_GO says.
const goScript = `#!/bin/sh
for arg in "$@"; do last=$arg; done
echo "$last" >>"$FAKE_GO_LOG"
while [ "$1" != -o ]; do shift; done
echo "$last" >"$2"; touch "$FAKE_GO_LOG.begun"
case "$FAKE_GO" in
fail) echo "write x: no space left on device" >&2; exit 1;;
hang) echo a/b >&2; trap 'exit 1' TERM; while :; do sleep 0.05; done;;
esac
`

const goMod = `module github.com/usher-dev/usher/test/cluster/controlplane

require (
	go.etcd.io/etcd/server/v3 v3.6.8
	k8s.io/kubernetes v1.36.3
)
`

// prepare makes a checkout, a cache and a go command, and returns options for them.
func prepare(t *testing.T, behaviour string) (o Options, asked func() []string) {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"bin/go":                              goScript,
		"test/cluster/controlplane/go.mod":    goMod,
		"test/cluster/controlplane/go.sum":    "sums\n",
		"test/cluster/controlplane/v1.33.mod": strings.NewReplacer("1.36.3", "1.33.13", "3.6.8", "3.5.21").Replace(goMod),
		"test/cluster/controlplane/v1.33.sum": "old sums\n",
		"internal/x/x.go":                     "package x\n",
	} {
		path = filepath.Join(root, path)
		registrytest.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)))
	}
	log := filepath.Join(root, "asked")
	for name, value := range map[string]string{
		"PATH": filepath.Join(root, "bin") + ":/usr/bin:/bin", "FAKE_GO": behaviour, "FAKE_GO_LOG": log,
		fetch.CacheEnv: filepath.Join(root, "cache"), VersionEnv: "",
	} {
		t.Setenv(name, value)
	}
	return Options{Dir: filepath.Join(root, "internal", "x")}, func() []string {
		text, _ := os.ReadFile(log)
		return strings.Fields(string(text))
	}
}

// has reports whether one of the binaries is there.
func (b *Binaries) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := os.Stat(b.Path(name))
		return err == nil
	})
}

func ensure(t *testing.T, o Options) *Binaries {
	t.Helper()
	bins, err := Ensure(t.Context(), o)
	registrytest.NoError(t, err)
	return bins
}

func TestEnsureBuildsWhatIsMissing(t *testing.T) {
	o, asked := prepare(t, "")
	bins := ensure(t, o)
	all := []string{
		"go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver",
		"k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler",
	}
	if got := asked(); !slices.Equal(got, all) || !bins.has(Etcd) || !bins.has(Scheduler) {
		t.Fatalf("built %q, want %q", got, all)
	}
	registrytest.NoError(t, os.Remove(bins.Path(Scheduler)))
	ensure(t, o)
	if got := asked(); !slices.Equal(got, append(all, all[3])) {
		t.Errorf("built %q, want only the scheduler again", got)
	}
	t.Setenv("PATH", t.TempDir())
	ensure(t, o) // needs no go command
}

// Each version is built into its own directory.
func TestVersions(t *testing.T) {
	o, _ := prepare(t, "")
	usual := ensure(t, o)
	t.Setenv(VersionEnv, "v1.33")
	other := ensure(t, o)
	if usual.Kubernetes != "v1.36.3" || other.Kubernetes != "v1.33.13" || other.Etcd != "v3.5.21" || other.Dir == usual.Dir {
		t.Errorf("got %+v and %+v", usual, other)
	}
	for _, minor := range []string{"v1.30", "1.33", "../v1.33"} {
		t.Setenv(VersionEnv, minor)
		if _, err := Ensure(t.Context(), o); err == nil || !strings.Contains(err.Error(), "pins v1.33, v1.36;") {
			t.Errorf("%q: error is %v, want one that lists the versions", minor, err)
		}
	}
}

func TestFailedBuildQuotesTheCommand(t *testing.T) {
	o, _ := prepare(t, "fail")
	bins, err := Ensure(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("error is %v", err)
	}
	if bins.has(All()...) {
		t.Error("half a binary counts")
	}
}

func TestInterruptedBuildLeavesNothing(t *testing.T) {
	o, _ := prepare(t, "hang")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		begun := func(context.Context) (bool, error) {
			_, err := os.Stat(os.Getenv("FAKE_GO_LOG") + ".begun")
			return err == nil, nil
		}
		_ = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, bound, true, begun) // cancelled either way
	}()
	bins, err := Ensure(ctx, o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	if left, _ := filepath.Glob(bins.Path("*.making")); len(left) > 0 || bins.has(All()...) {
		t.Errorf("left behind: %q", left)
	}
}

func TestKey(t *testing.T) {
	source := func(kubernetes, mod, sum string) *Source {
		return &Source{Kubernetes: kubernetes, goMod: []byte(mod), goSum: []byte(sum)}
	}
	keys := map[string]string{}
	for name, key := range map[string]string{
		"the first":          source("v1.36.3", "mod", "sum").Key("go1.26.8"),
		"another go.mod":     source("v1.36.3", "mod2", "sum").Key("go1.26.8"),
		"another go.sum":     source("v1.36.3", "mod", "sum2").Key("go1.26.8"),
		"the border":         source("v1.36.3", "mods", "um").Key("go1.26.8"),
		"another Go":         source("v1.36.3", "mod", "sum").Key("go1.27.0"),
		"another Kubernetes": source("v1.36.4", "mod", "sum").Key("go1.26.8"),
	} {
		if other, found := keys[key]; found || !strings.HasPrefix(key, "v1.36.") {
			t.Errorf("%s has the key %s, as %s", name, key, other)
		}
		keys[key] = name
	}
}

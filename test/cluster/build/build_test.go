// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/cluster/filelock"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// bound limits how long a test waits.
const bound = 20 * time.Second

// goScript is a go command for tests: it supports list and build, records what it is
// asked to build, and then behaves as $FAKE_GO says.
const goScript = `#!/bin/sh
case "$1" in
env) echo "value-of-$2"; exit 0;;
list) printf 'a/b\nc/d\nmain\n'; exit 0;;
esac
for arg in "$@"; do last=$arg; done
echo "$last" >>"$FAKE_GO_LOG"
[ "$2" = "-modfile=$FAKE_GO_MOD" ] || echo "built of $2" >>"$FAKE_GO_LOG"
while [ "$1" != -o ]; do shift; done
case "$FAKE_GO" in
fail) echo "write x: no space left on device" >&2; exit 1;;
hang) echo half >"$2"; echo a/b >&2; trap 'exit 1' INT; while :; do sleep 0.05; done;;
esac
echo a/b >&2; echo c/d >&2; echo "$last" >&2
echo "$last" >"$2"
chmod +x "$2"
`

// bench is a checkout, a cache and a go command for one test.
type bench struct {
	opts   Options
	asked  string // the file in which the go command records what it builds
	mu     sync.Mutex
	events []progress.Event
}

func newBench(t *testing.T, behaviour string) *bench {
	t.Helper()
	bin := writeFiles(t, map[string]string{"go": goScript})
	if err := os.Chmod(filepath.Join(bin, "go"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{asked: filepath.Join(t.TempDir(), "asked")}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	t.Setenv("FAKE_GO", behaviour)
	t.Setenv("FAKE_GO_LOG", b.asked)
	t.Setenv("FAKE_GO_MOD", "go.mod")
	t.Setenv(SourceEnv, "")
	t.Setenv(VersionEnv, "")
	b.opts = Options{Dir: checkout(t), Cache: t.TempDir(), Tell: func(e progress.Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, e)
	}}
	return b
}

// built lists the packages that the go command was asked to build, in order.
func (b *bench) built(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(b.asked)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

func (b *bench) heard() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []string{}
	for _, e := range b.events {
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s %d/%d", e.Task, e.State, e.Count, e.Total)))
	}
	return list
}

// leftovers lists what is in the cache in addition to binaries, lock and log.
func leftovers(t *testing.T, b *bench) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.opts.Cache, "controlplane", "*", tempPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEnsureBuildsWhatIsMissing(t *testing.T) {
	b := newBench(t, "")
	bins := ensure(t, b)
	want := []string{
		"go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver",
		"k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler",
	}
	if got := b.built(t); !slices.Equal(got, want) {
		t.Errorf("built %q, want %q", got, want)
	}
	for _, name := range All() {
		if _, err := os.Stat(bins.Path(name)); err != nil {
			t.Error(err)
		}
	}
	if left := leftovers(t, b); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func ensure(t *testing.T, b *bench) *Binaries {
	t.Helper()
	bins, err := Ensure(t.Context(), b.opts)
	if err != nil {
		t.Fatal(err)
	}
	return bins
}

// TestEnsureBuildsAnotherVersion builds into a separate directory, from that version's
// pins.
func TestEnsureBuildsAnotherVersion(t *testing.T) {
	b := newBench(t, "")
	usual := ensure(t, b)
	before := len(b.built(t))
	t.Setenv(VersionEnv, "v1.33")
	t.Setenv("FAKE_GO_MOD", "v1.33.mod")
	bins := ensure(t, b)
	if bins.Kubernetes != "v1.33.13" || bins.Etcd != "v3.5.21" || bins.Dir == usual.Dir {
		t.Errorf("got %+v beside %+v", bins, usual)
	}
	if got := b.built(t)[before:]; len(got) != len(All()) || !slices.Contains(got, packagePath(APIServer)) {
		t.Errorf("built %q, want all of a control plane", got)
	}
}

func TestEnsureBuildsNothingTwice(t *testing.T) {
	b := newBench(t, "")
	bins := ensure(t, b)
	before := len(b.built(t))
	ensure(t, b)
	if got := b.built(t)[before:]; len(got) > 0 {
		t.Errorf("built again: %q", got)
	}
	if err := os.Remove(bins.Path(Scheduler)); err != nil {
		t.Fatal(err)
	}
	if _, missing, err := Locate(b.opts); err != nil || !slices.Equal(missing, []string{Scheduler}) {
		t.Errorf("missing %q, %v", missing, err)
	}
	ensure(t, b)
	if got := b.built(t)[before:]; !slices.Equal(got, []string{"k8s.io/kubernetes/cmd/kube-scheduler"}) {
		t.Errorf("built %q, want the one that is missing", got)
	}
}

func TestEnsureNeedsNoGoWhenAllIsThere(t *testing.T) {
	b := newBench(t, "")
	if _, err := Ensure(t.Context(), b.opts); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Ensure(t.Context(), b.opts); err != nil {
		t.Errorf("all is built, and yet: %v", err)
	}
}

func TestEnsureTellsItsProgress(t *testing.T) {
	b := newBench(t, "")
	b.opts.Only = []string{Etcd}
	if _, err := Ensure(t.Context(), b.opts); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0/0", // the announcement
		"etcd waiting 0/0", "etcd finding what to compile 0/0", "etcd compiling 0/3",
		"etcd compiling 1/3", "etcd compiling 2/3", "etcd linking 0/0", "etcd done 0/0",
	}
	if got := b.heard(); !slices.Equal(got, want) {
		t.Errorf("heard\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEnsureRefusesAnUnknownBinary(t *testing.T) {
	b := newBench(t, "")
	b.opts.Only = []string{"kube-proxy"}
	if _, err := Ensure(t.Context(), b.opts); err == nil || !strings.Contains(err.Error(), `"kube-proxy"`) {
		t.Errorf("error is %v", err)
	}
}

func TestAFailedBuildSaysWhatToDo(t *testing.T) {
	b := newBench(t, "fail")
	_, err := Ensure(t.Context(), b.opts)
	var failed *Error
	if !errors.As(err, &failed) {
		t.Fatalf("error is %v, want *Error", err)
	}
	if failed.Binary != Etcd || failed.Cause != CauseDiskFull || !slices.Equal(failed.Output, []string{"write x: no space left on device"}) {
		t.Errorf("got %+v", failed)
	}
	if !strings.Contains(failed.Error(), "value-of-GOCACHE") {
		t.Errorf("the hint does not name the full folder: %s", failed.Hint)
	}
	if left := leftovers(t, b); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestNoGo(t *testing.T) {
	b := newBench(t, "")
	t.Setenv("PATH", t.TempDir())
	_, err := Ensure(t.Context(), b.opts)
	var failed *Error
	if !errors.As(err, &failed) || failed.Cause != CauseNoGo || !strings.Contains(failed.Hint, "https://go.dev/dl/") {
		t.Errorf("error is %v, want CauseNoGo with a hint", err)
	}
}

// untilHeard waits for news of the bench.
func untilHeard(t *testing.T, b *bench, news string) {
	t.Helper()
	deadline := time.After(bound)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !slices.ContainsFunc(b.heard(), func(h string) bool { return strings.Contains(h, news) }) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not heard within %s: %s; heard %q", bound, news, b.heard())
		}
	}
}

func TestAnInterruptedBuildLeavesNothing(t *testing.T) {
	b := newBench(t, "hang")
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := Ensure(ctx, b.opts)
		result <- err
	}()
	untilHeard(t, b, "compiling 1/3")
	cancel()
	if err := within(t, "the build ends", result); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	if left := leftovers(t, b); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, missing, err := Locate(b.opts); err != nil || len(missing) != len(All()) {
		t.Errorf("missing %q, %v; want all: half a binary must not count", missing, err)
	}
}

func TestABuildClearsWhatAKilledOneLeft(t *testing.T) {
	b := newBench(t, "")
	bins, _, err := Locate(b.opts)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(bins.Dir, tempPrefix+"123", "etcd")
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(t.Context(), b.opts); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, b); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTheSecondBuilderWaitsAndBuildsNothing(t *testing.T) {
	b := newBench(t, "")
	bins := ensure(t, b)
	before := len(b.built(t))
	hidden := filepath.Join(t.TempDir(), Etcd)
	if err := os.Rename(bins.Path(Etcd), hidden); err != nil {
		t.Fatal(err)
	}
	lock, err := filelock.Try(filepath.Join(bins.Dir, lockName), "process 1, since 12:00:00")
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan string, 1)
	b.opts.Tell = func(e progress.Event) { waits <- e.Detail }
	result := make(chan error, 1)
	go func() {
		_, err := Ensure(context.WithoutCancel(t.Context()), b.opts)
		result <- err
	}()
	if said := within(t, "it says that it waits", waits); !strings.Contains(said, "process 1, since 12:00:00") {
		t.Errorf("it says %q, not for whom it waits", said)
	}
	// The last thing the first builder does.
	if err := errors.Join(os.Rename(hidden, bins.Path(Etcd)), lock.Release()); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "it goes on", result); err != nil {
		t.Fatal(err)
	}
	if after := len(b.built(t)); after != before {
		t.Errorf("the second builder built %d binaries that the first had built", after-before)
	}
}

// within receives from a channel within the bound.
func within[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(bound):
		t.Fatalf("not within %s: %s", bound, what)
	}
	var none T
	return none
}

func TestTheWaitForAnotherBuilderEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockName)
	lock, err := filelock.Try(path, "process 1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = acquire(ctx, path, "me", func(string) { cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "process 1") {
		t.Errorf("error is %v, want context.Canceled and the holder", err)
	}
}

func TestClassify(t *testing.T) {
	cases := map[string]Cause{
		"go: x@v1: Get \"https://p/x\": dial tcp 1.2.3.4:443: connect: connection refused": CauseDownload,
		"go: x@v1: Get \"https://p/x\": dial tcp: lookup p: no such host":                  CauseDownload,
		"module lookup disabled by GOPROXY=off":                                            CauseDownload,
		"x@v1: reading https://p/x/@v/v1.zip: 404 Not Found":                               CauseDownload,
		"write /c/x: no space left on device":                                              CauseDiskFull,
		"go: download x: dial tcp: i/o timeout\nwrite /c/x: no space left on device":       CauseDiskFull,
		"go: go.mod requires go >= 1.26.0 (running go 1.25.3; GOTOOLCHAIN=local)":          CauseOldGo,
		"k8s.io/x: /usr/local/go/pkg/tool/linux_amd64/compile: signal: killed":             CauseKilled,
		"# k8s.io/x\nx.go:1:1: syntax error":                                               CauseOther,
	}
	for output, want := range cases {
		if got := classify(output); got != want {
			t.Errorf("%q is %s, want %s", output, got, want)
		}
	}
	for _, cause := range []Cause{CauseNoGo, CauseOldGo, CauseDownload, CauseDiskFull, CauseKilled, CauseOther} {
		if got := hint(cause, "/cache", func(string) string { return "" }); len(got) < 20 {
			t.Errorf("the hint for %s is %q", cause, got)
		}
	}
}

func TestWatchKeepsComplaints(t *testing.T) {
	w := newWatch("main/pkg", func(progress.State, int, int) {})
	text := "go: downloading x v1\na/b\n# a/b\nb.go:1:2: trouble\nmain/pkg\n" + strings.Repeat("more trouble\n", 20)
	w.read(strings.NewReader(text))
	if w.downloads != 1 || w.compiled != 1 || len(w.unexpected) != 22 {
		t.Errorf("downloads %d, compiled %d, unexpected %q", w.downloads, w.compiled, w.unexpected)
	}
	if got := w.complaints(); len(got) != keptComplaints || got[0] != "more trouble" {
		t.Errorf("complaints %q", got)
	}
}

func TestCacheRoot(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/home/me/.cache")
	cases := map[string]struct{ fixed, env, want string }{
		"the option comes first": {"/a", "/b", "/a"},
		"then the environment":   {"", "/b", "/b"},
		"then the user's cache":  {"", "", "/home/me/.cache/usher"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := cacheRoot(c.fixed, func(string) string { return c.env })
			if err != nil || got != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
}

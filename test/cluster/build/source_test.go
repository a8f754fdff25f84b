// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goodMod = `module github.com/usher-dev/usher/test/cluster/controlplane

go 1.26.0

require (
	go.etcd.io/etcd/server/v3 v3.6.8
	k8s.io/kubernetes v1.36.3 // the pin
)

require k8s.io/api v0.36.3 // indirect

replace k8s.io/api => k8s.io/api v0.36.3
`

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func checkout(t *testing.T) string {
	t.Helper()
	return writeFiles(t, map[string]string{
		"go.mod":                                  "module github.com/usher-dev/usher\n",
		"internal/x/x.go":                         "package x\n",
		"test/go.mod":                             "module github.com/usher-dev/usher/test\n",
		"test/internal/y/y.go":                    "package y\n",
		"test/cluster/controlplane/go.mod":        goodMod,
		"test/cluster/controlplane/go.sum":        "sums\n",
		"test/cluster/controlplane/v1.33.mod":     strings.ReplaceAll(strings.ReplaceAll(goodMod, "1.36.3", "1.33.13"), "3.6.8", "3.5.21"),
		"test/cluster/controlplane/v1.33.sum":     "old sums\n",
		"other/controlplane/go.mod":               "module example.org/controlplane\n",
		"other/broken/test/go.mod":                "module b\n",
		"other/broken/controlplane/go.mod":        strings.Replace(goodMod, "k8s.io/kubernetes", "k8s.io/k8s", 1),
		"other/broken/controlplane/go.sum":        "sums\n",
		"other/without-sum/controlplane/go.mod":   goodMod,
		"other/without-sum/controlplane/x/x.file": "",
	})
}

func TestFindSource(t *testing.T) {
	root := checkout(t)
	good := filepath.Join(root, "test", "cluster", "controlplane")
	cases := map[string]struct {
		from, env string
		want      string
		trouble   string
	}{
		"the module itself":               {from: "test/cluster/controlplane", want: good},
		"a package of the devcluster":     {from: "test/internal/y", want: good},
		"the checkout":                    {from: ".", want: good},
		"a package of the checkout":       {from: "internal/x", want: good},
		"past a module of the same name":  {from: "other", want: good},
		"past a module without sums":      {from: "other/without-sum/controlplane/x", want: good},
		"a module without the pin":        {from: "other/broken", trouble: "no line requires k8s.io/kubernetes"},
		"the environment comes first":     {from: "other/broken", env: good, want: good},
		"an environment that names wrong": {from: ".", env: filepath.Join(root, "other"), trouble: SourceEnv},
		"one that names another module":   {from: ".", env: filepath.Join(root, "other/controlplane"), trouble: "another Go module"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			src, err := FindSource(filepath.Join(root, c.from), func(key string) string { return map[string]string{SourceEnv: c.env}[key] })
			if c.trouble != "" {
				if err == nil || !strings.Contains(err.Error(), c.trouble) {
					t.Errorf("error is %v, want one about %q", err, c.trouble)
				}
				return
			}
			if err != nil || src.Dir != c.want || src.Kubernetes != "v1.36.3" || src.Etcd != "v3.6.8" {
				t.Errorf("got %+v, %v; want %s", src, err, c.want)
			}
		})
	}
}

// Outside any checkout, the directory is known from where this code was compiled.
func TestFindSourceOutsideOfACheckout(t *testing.T) {
	src, err := FindSource(t.TempDir(), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(src.Kubernetes, "v1.") || !strings.HasPrefix(src.Etcd, "v3.") {
		t.Errorf("got %+v", src)
	}
}

// TestFindSourceOfAVersion: the environment selects one of the pinned versions.
func TestFindSourceOfAVersion(t *testing.T) {
	root := checkout(t)
	for minor, want := range map[string]Source{
		"":      {Kubernetes: "v1.36.3", Etcd: "v3.6.8", ModFile: "go.mod"},
		"v1.36": {Kubernetes: "v1.36.3", Etcd: "v3.6.8", ModFile: "go.mod"},
		"v1.33": {Kubernetes: "v1.33.13", Etcd: "v3.5.21", ModFile: "v1.33.mod"},
	} {
		src, err := FindSource(root, func(key string) string { return map[string]string{VersionEnv: minor}[key] })
		if err != nil || src.Kubernetes != want.Kubernetes || src.Etcd != want.Etcd || src.ModFile != want.ModFile {
			t.Errorf("%q: got %+v, %v", minor, src, err)
		}
	}
	for _, minor := range []string{"v1.30", "1.33", "v1.33.13", "../v1.33"} {
		_, err := FindSource(root, func(key string) string { return map[string]string{VersionEnv: minor}[key] })
		if err == nil || !strings.Contains(err.Error(), "pins v1.33, v1.36;") {
			t.Errorf("%q: error is %v, want one that lists the versions", minor, err)
		}
	}
}

func TestKey(t *testing.T) {
	base := Source{Kubernetes: "v1.36.3", goMod: []byte("mod"), goSum: []byte("sum")}
	key := base.Key("go1.26.8")
	if !strings.HasPrefix(key, "v1.36.3-") || key != base.Key("go1.26.8") {
		t.Errorf("key is %s: want the version first, and always the same", key)
	}
	cases := map[string]string{
		"go.mod":     (&Source{Kubernetes: "v1.36.3", goMod: []byte("mod2"), goSum: []byte("sum")}).Key("go1.26.8"),
		"go.sum":     (&Source{Kubernetes: "v1.36.3", goMod: []byte("mod"), goSum: []byte("sum2")}).Key("go1.26.8"),
		"the border": (&Source{Kubernetes: "v1.36.3", goMod: []byte("mods"), goSum: []byte("um")}).Key("go1.26.8"),
		"Go":         base.Key("go1.27.0"),
		"Kubernetes": (&Source{Kubernetes: "v1.36.4", goMod: []byte("mod"), goSum: []byte("sum")}).Key("go1.26.8"),
	}
	for name, other := range cases {
		if other == key {
			t.Errorf("another %s gives the same key", name)
		}
	}
}

func TestLdflags(t *testing.T) {
	src := Source{Kubernetes: "v1.36.3"}
	want := "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3" +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
	if got := src.ldflags(Scheduler); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := src.ldflags(Etcd); got != "-s -w" {
		t.Errorf("etcd's are %s", got)
	}
}

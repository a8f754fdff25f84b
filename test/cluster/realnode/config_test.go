// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestConfigure(t *testing.T) {
	n := &Node{options: Options{Dir: t.TempDir(), Cgroup: "/usher-1", Mirrors: map[string]string{"example.com": "http://127.0.0.1:5000"}, Assets: Assets{Packages: "/packages"}}}
	if err := n.configure(); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"containerd.toml":                {`root = "` + n.path("containerd") + `"`, PauseImage, "/packages/usr/lib/cni", "/packages/usr/sbin/runc"},
		"kubelet.yaml":                   {"cgroupRoot: /usher-1", "kind: KubeletConfiguration", "unix://" + socket},
		"cni/10-pods.conflist":           {PodRange},
		"resolv.conf":                    {""},
		"mirrors/example.com/hosts.toml": {`[host."http://127.0.0.1:5000"]`},
	} {
		text, err := os.ReadFile(n.path(name))
		if err != nil {
			t.Error(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %q:\n%s", name, want, text)
			}
		}
	}
}

func TestMissingTools(t *testing.T) {
	all := func(string) (string, error) { return "/usr/bin/tool", nil }
	if err := checkTools(all); err != nil {
		t.Error(err)
	}
	none := func(string) (string, error) { return "", errors.New("not found") }
	if err := checkTools(none); err == nil || !strings.Contains(err.Error(), "apt-get is not here") {
		t.Errorf("on another distribution: %v", err)
	}
	if err := (Assets{Packages: t.TempDir()}).check(); err == nil || !strings.Contains(err.Error(), "containerd") {
		t.Errorf("packages without their programs: %v", err)
	}
}

// Of two values of one variable, the first one counts.
func TestEnvironmentPutsTheNodesProgramsFirst(t *testing.T) {
	env := Assets{Packages: "/packages"}.env()
	if !strings.HasPrefix(env[0], "PATH=/packages/usr/bin:/packages/usr/sbin:") {
		t.Errorf("the environment begins with %s", env[0])
	}
}

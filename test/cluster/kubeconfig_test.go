// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func TestUserFile(t *testing.T) {
	seen := map[string]string{}
	cases := []struct {
		user   string
		groups []string
		prefix string
	}{
		{"usher", nil, "usher.kubeconfig"},
		{"usher", []string{"a"}, "usher-"},
		{"usher", []string{"a", "b"}, "usher-"},
		{"usher", []string{"ab"}, "usher-"},
		{"system:node:n1", nil, "system_node_n1-"},
		{"system:node/n1", nil, "system_node_n1-"},
		{"../../etc/passwd", nil, ".._.._etc_passwd-"},
		{"..", nil, "..."},
		{strings.Repeat("ü", 300), nil, strings.Repeat("_", 100) + "-"},
	}
	for _, c := range cases {
		got := userFile(c.user, c.groups)
		if !strings.HasPrefix(got, c.prefix) || strings.ContainsAny(got, "/:") || !strings.HasSuffix(got, ".kubeconfig") {
			t.Errorf("%s %q: got %s, want %s…", c.user, c.groups, got, c.prefix)
		}
		if other, found := seen[got]; found {
			t.Errorf("%s %q and %s share the file %s", c.user, c.groups, other, got)
		}
		seen[got] = c.user
	}
}

func TestIssueKubeconfig(t *testing.T) {
	l := layout{dir: t.TempDir()}
	if _, err := makeIdentity(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	path, err := IssueKubeconfig(l.dir, "https://127.0.0.1:1", "usher", time.Now(), "crew")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil || config.Host != "https://127.0.0.1:1" || len(config.CertData) == 0 || len(config.CAData) == 0 {
		t.Errorf("got %v, %v", config, err)
	}
	if _, err := IssueKubeconfig(l.dir, "https://127.0.0.1:1", "", time.Now()); err == nil {
		t.Error("a user without a name got a kubeconfig")
	}
	if _, err := IssueKubeconfig(t.TempDir(), "https://127.0.0.1:1", "usher", time.Now()); err == nil {
		t.Error("a folder without a cluster gave a kubeconfig")
	}
}

func TestOnlyTheOwnerReadsKeys(t *testing.T) {
	l := layout{dir: t.TempDir()}
	id, err := makeIdentity(l, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := id.writeConfigs(l, "https://127.0.0.1:1", time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		l.pki("ca.key"), l.pki("apiserver.key"), l.pki("components.key"), l.pki("sa.key"),
		l.adminKubeconfig(), l.config("kube-controller-manager.kubeconfig"), l.config("kube-scheduler.kubeconfig"),
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v; want 0600", path, info, err)
		}
	}
}

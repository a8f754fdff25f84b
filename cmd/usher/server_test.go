// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/internal/checktest"
)

// serverWith returns an API server that reports only its version and resources.
func serverWith(t *testing.T, gitVersion string, resources ...string) *rest.Config {
	t.Helper()
	core := metav1.APIResourceList{GroupVersion: "v1"}
	for _, name := range resources {
		core.APIResources = append(core.APIResources, metav1.APIResource{Name: name})
	}
	answers := map[string]any{"/version": apiversion.Info{GitVersion: gitVersion}, "/api/v1": core}
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(served.Close)
	return &rest.Config{Host: served.URL}
}

// TestCheckServer: the check names an old API server, what will not work on it and what
// the user then sees; it does not mention a supported one.
func TestCheckServer(t *testing.T) {
	const tooOld = "and Usher supports " + oldestKubernetes + " and newer"
	const noResize = "has no subresource pods/resize, so no running Pod can get other cpu or memory"
	resize := []string{"pods", "pods/status", "pods/resize"}
	for name, test := range map[string]struct {
		version, controllers string
		resources            []string
		says                 []string
	}{
		"supported":                     {"v1.33.13", "cloneset", resize, nil},
		"newer":                         {"v1.40.0-alpha.1", "cloneset", resize, nil},
		"a vendor's":                    {"v1.34.2+k3s1", "cloneset", resize, nil},
		"too old":                       {"v1.32.13-eks-1", "cloneset,registration", resize[:2], []string{"has Kubernetes v1.32.13-eks-1, " + tooOld, noResize}},
		"too old for the hook operator": {"v1.32.13", "registration", resize[:2], []string{tooOld}},
		"the feature is off":            {"v1.34.0", "cloneset", resize[:2], []string{noResize}},
		"no version":                    {"", "cloneset", resize, []string{"cannot be read; Usher supports"}},
	} {
		t.Run(name, func(t *testing.T) {
			said, found := warnings(t, test.controllers, serverWith(t, test.version, test.resources...))
			if found.noResize != (len(test.resources) < len(resize)) {
				t.Errorf("no resize: %v", found.noResize)
			}
			if len(said) != len(test.says) {
				t.Fatalf("said %q, want %q", said, test.says)
			}
			for i, want := range test.says {
				if !strings.Contains(said[i], "Warning: ") || !strings.Contains(said[i], want) {
					t.Errorf("said %s, want a warning with %s", said[i], want)
				}
			}
		})
	}
}

// warnings returns the lines that the check logs, and what it found.
func warnings(t *testing.T, controllers string, config *rest.Config) (lines []string, found apiServer) {
	t.Helper()
	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	found = (&settings{controllers: controllers}).checkServer(config, logger)
	return lines, found
}

// TestCheckServerWithoutAnAnswer: others report that the API server is down.
func TestCheckServerWithoutAnAnswer(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	said, found := warnings(t, "cloneset", &rest.Config{Host: gone.URL})
	if found.noResize || len(said) != 1 || !strings.Contains(said[0], "Cannot read the version of the API server") || !strings.Contains(said[0], "connection refused") {
		t.Errorf("said %q", said)
	}
}

// TestOldestKubernetes: the supported versions are those that the stories run on, the
// chart accepts and docs/install.md names.
func TestOldestKubernetes(t *testing.T) {
	tried, err := filepath.Glob(filepath.Join("..", "..", "test", "cluster", "controlplane", "v*.mod"))
	if err != nil || len(tried) == 0 {
		t.Fatalf("versions of the control plane: %v, %v", tried, err)
	}
	slices.Sort(tried)
	checktest.Same(t, "the oldest that is tried", "v"+oldestKubernetes, strings.TrimSuffix(filepath.Base(tried[0]), ".mod"))
	chart := checktest.Must(os.ReadFile(filepath.Join("..", "..", "charts", "usher", "Chart.yaml")))(t)
	checktest.Says(t, "the chart", string(chart), `kubeVersion: ">=`+oldestKubernetes+`.0-0"`)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	checktest.NoError(t, err)
	for _, file := range append(tried, filepath.Join(filepath.Dir(tried[0]), "go.mod")) {
		pins := checktest.Must(os.ReadFile(file))(t)
		pinned := regexp.MustCompile(`k8s\.io/kubernetes v(\S+)`).FindSubmatch(pins)
		if pinned == nil || !strings.Contains(string(page), "| "+string(pinned[1])+",") {
			t.Errorf("the table of Kubernetes versions in docs/install.md lacks %s of %s: play the stories on it, and tell", pinned, file)
		}
	}
}

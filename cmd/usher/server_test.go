// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
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
	"go.uber.org/zap/zapcore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
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

// TestCheckServer: the check names an old API server, the features that will not work on it and what
// the user then sees. It does not mention a supported one.
func TestCheckServer(t *testing.T) {
	scenariotest.Table(t, "testdata/servers.txt", func(t *testing.T, test struct {
		Version, Controllers string
		Resources            []string
	}) string {
		said, found := warnings(t, test.Controllers, serverWith(t, test.Version, test.Resources...))
		checktest.Same(t, "it has no subresource pods/resize", !slices.Contains(test.Resources, "pods/resize"), found.noResize)
		return cmp.Or(strings.Join(said, " "), "nothing")
	})
}

// warnings returns the lines that the check logs, and its result.
func warnings(t *testing.T, controllers string, config *rest.Config) (lines []string, found apiServer) {
	t.Helper()
	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	found = (&settings{controllers: controllers}).checkServer(t.Context(), config, logger)
	return lines, found
}

// TestLogger: a logger encodes its values when it logs, in their order, and not before.
func TestLogger(t *testing.T) {
	var out strings.Builder
	s, encoded := settings{}, 0
	s.log.DestWriter = &out
	value := zapcore.ObjectMarshalerFunc(func(zapcore.ObjectEncoder) error { encoded++; return nil })
	about := s.logger().WithValues("set", value).WithValues("pod", "a")
	about.V(1).Info("not at this level")
	checktest.Same(t, "what was encoded before it logs", 0, encoded)
	if about.Info("done", "n", 1); !strings.Contains(out.String(), `"set":{},"pod":"a","n":1`) {
		t.Errorf("logged %s", out.String())
	}
}

// TestCheckServerWithoutAnAnswer: if the API server is down, the check logs one line, and assumes a new
// server.
func TestCheckServerWithoutAnAnswer(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	said, found := warnings(t, "cloneset", &rest.Config{Host: gone.URL})
	if found.noResize || len(said) != 1 || !strings.Contains(said[0], "Cannot read the version of the API server") || !strings.Contains(said[0], "connection refused") {
		t.Errorf("said %q", said)
	}
}

// TestOldestKubernetes: the stories run on the supported versions, the chart accepts them, and
// docs/install.md names them.
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
			t.Errorf("the table of Kubernetes versions in docs/install.md lacks %s of %s: play the stories on it and add it to the table", pinned, file)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package install tests how Usher is installed, upgraded and removed, with the commands
// of the documents, on real API servers. Nodes simulate containers; the test runs Usher
// itself as the container of its Deployment specifies.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/integration/scene"
)

const (
	// patience bounds every command of a story.
	patience = 90 * time.Second
	// root is the project's directory, where the commands of the documents run.
	root = scene.Root
)

// tools is a directory with helm, kubectl, usher and the kubectl plugin.
var tools string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())
	folder, err := os.MkdirTemp("", "usher-install-")
	if err == nil {
		defer func() { _ = os.RemoveAll(folder) }() // The system cleans up what is left.
		tools = folder
		err = errors.Join(checkout.InstallTools(context.Background(), root, folder),
			checkout.Program{Name: "usher", Module: root, Pkg: "./cmd/usher", Out: filepath.Join(folder, "usher")}.Compile(context.Background(), nil),
			checkout.Program{Name: "kubectl-usher", Module: root + "/cmd/kubectl-usher", Pkg: ".", Out: filepath.Join(folder, "kubectl-usher")}.Compile(context.Background(), nil),
			os.Symlink("kubectl-usher", filepath.Join(folder, "kubectl_complete-usher")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// story is one test's cluster, without Usher's API.
type story struct {
	*scene.Scene
	// env is the environment of its commands.
	env []string
	// usher is the one that was started last, said what the last command printed, and noted
	// the Pods that there were.
	usher       *usher
	certificate *usher // what makes the guard's certificate; nil while it does not run
	etcd        *cluster.Etcd
	kruise      *manager
	said, noted string
	deletions   deletions
}

// begin starts a cluster with two nodes, and with more arguments of the control plane. A story waits
// more than it works, so stories run side by side.
func begin(t *testing.T, extra cluster.ExtraArgs) *story {
	t.Helper()
	t.Parallel()
	c := clustertest.StartWith(t, extra)
	api := checktest.Must(checkout.NewClient(c.RESTConfig()))(t)
	s := &story{Scene: &scene.Scene{T: t, Plane: &scene.Plane{Cluster: c, WithWatch: api}}, env: checkout.ToolEnv(tools, c.Kubeconfig(), t.TempDir())}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s.Must(scene.StartNodes(ctx, c, 2, 0, node.Traits{UpdateDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond}))
	return s
}

// try runs a script in the project's directory, and returns its output.
func (s *story) try(script string) (string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir, command.Env, command.WaitDelay = root, s.env, time.Second
	out, err := command.CombinedOutput()
	if testing.Verbose() {
		s.Logf("$ %s\n%s", strings.TrimSpace(script), out)
	}
	return strings.TrimSpace(string(out)), err
}

// sh runs a script that must succeed.
func (s *story) sh(format string, args ...any) string {
	s.Helper()
	script := fmt.Sprintf(format, args...)
	out, err := s.try(script)
	if err != nil {
		s.Fatalf("$ %s\n%s\n%v", script, out, err)
	}
	return out
}

// follow runs the commands of a step of a document, the block after <!-- story: NAME --> in
// "DOCUMENT NAME", with etcd's address and a propagation that fits a test. They must succeed.
func (s *story) follow(step string) string {
	s.Helper()
	return s.sh("%s", s.scriptOf(step))
}

// scriptOf is the script that follow runs.
func (s *story) scriptOf(step string) string {
	s.Helper()
	document, name, _ := strings.Cut(step, " ")
	script := checktest.Must(checkout.DocumentedStep(root, document, name))(s)
	return strings.NewReplacer("http://etcd.example.com:2379", s.Expand("{etcd}"), "propagation: 5s", "propagation: 1s").Replace(script)
}

// SPDX-License-Identifier: Apache-2.0

// Package stage is what the demo, the measurements and the stories on a real node share: a cluster with
// Usher on it, waiting for conditions on watched objects, tables, and the frame of a command.
package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

const (
	// UsherUser is Usher's user, with only the rights of config/rbac.
	UsherUser = "usher"
	stopGrace = 5 * time.Second
	closeTime = 30 * time.Second
)

// Stage is a cluster with Usher as a separate process, as shipped, with its own rights.
type Stage struct {
	// Dir holds all files of a run, Root is the checkout.
	Dir, Root string
	// Progress receives progress.
	Progress progress.Sink
	// HA, set before StartCluster, makes the control plane highly available; nil means one of each.
	HA *cluster.HA
	// AuditPolicy, set before StartCluster, is what an audit log has; empty means each request.
	AuditPolicy string
	// Cluster is the control plane, Kube its administrator's client.
	Cluster *cluster.Cluster
	Kube    client.WithWatch

	fail    context.CancelCauseFunc
	usher   *process.Process // nil before its first start
	closers []func(context.Context) error
}

// Step sets up a part of a stage.
type Step func(context.Context, *Stage) error

// Run is one run of a program on a stage.
type Run struct {
	// Name starts the name of the temporary directory of the run. If Dir is set, that directory is used
	// instead, and not removed.
	Name, Dir string
	// Out receives the output.
	Out *os.File
	// Setup are the steps before Play. Everything that Play starts has ended when it
	// returns.
	Setup []Step
	Play  Step
}

// Run sets up the stage, plays, and takes everything down. No process is left when it
// returns, and no file except the logs of a failed run.
//
// Errors: the cause of ctx if that ended; otherwise what prevented the run, for instance
// the unexpected end of Usher.
func (r Run) Run(ctx context.Context) error {
	quiet()
	root, err := checkout.Find()
	if err != nil {
		return err
	}
	dir, err := r.directory()
	if err != nil {
		return err
	}
	playing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &Stage{Dir: dir, Root: root, Progress: progress.Show(r.Out), fail: cancel}
	for _, step := range slices.Concat(r.Setup, []Step{r.Play}) {
		if err = step(playing, s); err != nil {
			break
		}
	}
	err = errors.Join(outcome(ctx, playing, err), s.close(ctx))
	switch {
	case r.Dir != "":
		return err
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w\n\nAll logs are kept in %s", err, dir)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// outcome returns why a run has ended: the error of its last step, and why the steps' context ended. A
// step that waits for the user returns no error when something has failed meanwhile.
func outcome(ctx, playing context.Context, err error) error {
	cause := context.Cause(playing)
	switch {
	case cause == nil || errors.Is(err, cause):
		return err
	case err != nil:
		return fmt.Errorf("%w (during %w)", cause, err)
	case ctx.Err() == nil:
		return cause
	}
	return nil
}

func (r Run) directory() (string, error) {
	if r.Dir != "" {
		return r.Dir, nil
	}
	return os.MkdirTemp("", r.Name+"-")
}

// quiet drops the logs of libraries, which are not for the audience. Their loggers are one
// for the process, and tests run side by side.
var quiet = sync.OnceFunc(func() {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
})

// Path returns a path below the stage's directory.
func (s *Stage) Path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// AtEnd calls a function when the stage is taken down, before those of earlier steps.
func (s *Stage) AtEnd(end func(context.Context) error) { s.closers = append(s.closers, end) }

// Fail ends the run.
func (s *Stage) Fail(err error) { s.fail(err) }

// Usher returns the program to compile.
func (s *Stage) Usher() checkout.Program {
	return checkout.Program{Name: "build usher", Module: s.Root, Pkg: "./cmd/usher", Out: s.Path("bin", "usher")}
}

// StartCluster starts the control plane and meanwhile compiles programs.
func (s *Stage) StartCluster(ctx context.Context, auditLog string, programs ...checkout.Program) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		for _, p := range programs {
			if err := p.Compile(ctx, s.Progress); err != nil {
				return err
			}
		}
		return nil
	})
	both.Go(func() (err error) {
		s.Cluster, err = cluster.Start(ctx, cluster.Options{
			Dir: s.Path("cluster"), AuditLog: auditLog, AuditPolicy: s.AuditPolicy, HA: s.HA, Progress: s.Progress,
		})
		if err == nil {
			s.AtEnd(s.Cluster.Stop)
		}
		return err
	})
	return both.Wait()
}

// Web returns the web service to compile, for StartWebNodes.
func (s *Stage) Web() checkout.Program {
	return checkout.Program{Name: "build web", Module: filepath.Join(s.Root, "test"), Pkg: "./cmd/web", Out: s.Path("images", "web")}
}

// StartWebNodes starts nodes whose containers are processes of the web service, in these
// versions, or in any if none is named.
func (s *Stage) StartWebNodes(ctx context.Context, nodes int, versions ...string) error {
	runtime := node.NewProcessRuntime(node.ProcessOptions{Images: node.ProgramDir(s.Path("images"), versions...), LogDir: s.Path("containers")})
	return s.StartNodes(ctx, node.Options{RESTConfig: s.Cluster.RESTConfig(), Runtime: runtime, Nodes: nodes})
}

// StartNodes starts nodes that run Pods.
func (s *Stage) StartNodes(ctx context.Context, options node.Options) error {
	// They live until the end, not only during the setup.
	return s.Progress.Task("nodes", func() (string, error) {
		agent, err := node.Start(context.WithoutCancel(ctx), options)
		if err != nil {
			return "", errors.Join(err, options.Runtime.Close(ctx))
		}
		s.AtEnd(agent.Stop)
		return fmt.Sprintf("%d ready", options.Nodes), nil
	})
}

// Install creates Usher's API, its rights and a namespace. From then on, the end of the
// control plane ends the run.
func (s *Stage) Install(ctx context.Context, namespace string) error {
	go func() {
		<-s.Cluster.Done()
		s.fail(fmt.Errorf("the control plane ended: %w", s.Cluster.Err()))
	}()
	return s.Progress.Task("Usher's API", func() (_ string, err error) {
		if s.Kube, err = checkout.NewClient(s.Cluster.RESTConfig()); err != nil {
			return "", err
		}
		if err := checkout.Install(ctx, s.Kube, s.Cluster.RESTConfig(), s.Root, UsherUser); err != nil {
			return "", err
		}
		return "installed", OpenNamespace(ctx, s.Kube, namespace)
	})
}

// StartUsher starts Usher. Its unexpected end ends the run.
func (s *Stage) StartUsher(args ...string) error {
	kubeconfig, err := s.Cluster.UserKubeconfig(UsherUser)
	if err != nil {
		return err
	}
	s.usher, err = process.Start(process.Spec{
		Name: "usher", Path: s.Path("bin", "usher"), Log: s.UsherLog(), Args: append([]string{"--kubeconfig", kubeconfig}, args...),
		Failed: s.fail,
	})
	return err
}

// StartCertificate starts the keeper of the guard's certificate. Its unexpected end ends the run.
func (s *Stage) StartCertificate() error {
	kubeconfig, err := s.Cluster.UserKubeconfig(checkout.CertificateUser)
	if err != nil {
		return err
	}
	p, err := process.Start(process.Spec{
		Name: "certificate", Path: s.Path("bin", "usher"), Log: s.Path("logs", "certificate.log"),
		Args: append([]string{"--kubeconfig", kubeconfig}, checkout.CertificateArgs()...), Failed: s.fail,
	})
	if err != nil {
		return err
	}
	s.AtEnd(func(ctx context.Context) error { return p.Stop(ctx, stopGrace) })
	return nil
}

// UsherLog returns the path of Usher's log.
func (s *Stage) UsherLog() string { return s.Path("logs", "usher.log") }

// UsherPID returns Usher's process ID.
func (s *Stage) UsherPID() int { return s.usher.PID() }

// KillUsher kills Usher with SIGKILL.
func (s *Stage) KillUsher() error { return s.usher.Kill() }

// StopUsher ends Usher with SIGTERM.
func (s *Stage) StopUsher(ctx context.Context) error { return s.usher.Stop(ctx, stopGrace) }

// close ends everything, the youngest first, even if ctx has ended.
func (s *Stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	var errs []error
	if s.usher != nil {
		errs = append(errs, s.StopUsher(ctx))
	}
	for _, end := range slices.Backward(s.closers) {
		errs = append(errs, end(ctx))
	}
	return errors.Join(errs...)
}

// ImageRegistry is where a real node pulls the images from that are not imported.
const ImageRegistry = "127.0.0.1:5000"

// StartRealNode starts a control plane and a real node in a sandbox, instead of
// StartCluster and StartNodes. The node has the images of all archives, and pulls those
// of the first one.
func (s *Stage) StartRealNode(ctx context.Context, place *sandbox.Place, options realnode.Options) (*realnode.Node, error) {
	options.Dir, options.Cgroup, options.Progress = filepath.Join(place.Dir, "node"), place.Cgroup, s.Progress
	options.Failed = s.fail
	options.Mirrors = map[string]string{images.PulledHost: "http://" + ImageRegistry}
	node, err := realnode.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	s.Cluster = node.Plane
	s.AtEnd(node.Stop)
	served, err := images.Serve(ctx, options.Images[0], ImageRegistry)
	if err != nil {
		return nil, err
	}
	s.AtEnd(func(context.Context) error { return served.Close() })
	return node, nil
}

// Save writes a value to a file, for the program inside a sandbox or the one outside.
func Save(value any, path ...string) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path...), text, 0o600)
}

// Load reads what Save has written.
func Load(value any, path ...string) error {
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

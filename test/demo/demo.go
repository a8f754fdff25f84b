// SPDX-License-Identifier: Apache-2.0

// Package demo takes CloneSets and Deployments through their whole life on a real control
// plane while requests flow, and counts the lost requests: with lifecycle hooks and the
// guard, and without.
//
// run.go drives the phases; stories.yaml has the steps of each workload, and story.go disturbs them;
// board.go has the objects of the cluster, and awaits conditions; report.go reports the outcome. Waits
// of Pods come from package view, the numbers from package traffic.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
	servers "github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

// Options configures a demonstration.
type Options struct {
	// Out receives all output.
	Out *os.File
	// KillUsher kills Usher in the middle of every phase and restarts it.
	KillUsher bool
	// StopRegistry stops the registry for a while in mid-rollout.
	StopRegistry bool
	// Page is the file that the whole run is written to in the end, as one page; empty for
	// none.
	Page      string
	hooksOnly bool // without the run that has no hooks
	pace      pace
}

// pace has the speed and the times of a demonstration.
type pace struct {
	// rate is the number of requests per second to each CloneSet.
	rate int
	// cacheDelay is how far callers' caches lag behind the registry; slowMin and slowMax
	// bound how long slow requests take. The Registrations' propagation must cover both.
	cacheDelay, slowMin, slowMax, propagation time.Duration
	// outage is how long the registry is stopped, bound how long a phase may take.
	outage, bound time.Duration
}

var usualPace = pace{
	rate: 500, cacheDelay: time.Second, slowMin: time.Second, slowMax: 2 * time.Second,
	propagation: 4 * time.Second, outage: 20 * time.Second, bound: 90 * time.Second,
}

const nodes, usherLogLines = 2, 15

// demonstration is a demo on its stage.
type demonstration struct {
	options Options
	*stage.Stage
	registry  *cluster.Etcd
	usherArgs []string
	server    *page.Server
}

// Run takes the workloads through their life, with hooks and then without, shows it, and
// ends with a table. When it returns, no process is left, and no file except the logs of
// a failed run. Lost requests are not an error: see Result.Lost.
func Run(ctx context.Context, o Options) (result Result, err error) {
	if o.pace == (pace{}) {
		o.pace = usualPace
	}
	d := &demonstration{options: o, server: page.NewServer(page.NewRecorder(time.Now(), "Usher's demo", 0), nil)}
	end, err := d.serve(ctx)
	if err != nil {
		return result, err
	}
	defer end()
	err = stage.Run{
		Name: "usher-demo", Out: o.Out, Setup: []stage.Step{startCluster, startNodes, d.install},
		Play: func(ctx context.Context, s *stage.Stage) (err error) {
			d.Stage = s
			result, err = d.play(ctx)
			return err
		},
	}.Run(ctx)
	return result, err
}

// log writes lines, each call in one piece.
func (d *demonstration) log(lines ...string) {
	_, _ = d.options.Out.WriteString(strings.Join(lines, "\n") + "\n") // A failed write cannot be reported.
}

// serve serves the live page until end is called.
func (d *demonstration) serve(ctx context.Context) (end func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen on loopback for the page: %w", err)
	}
	d.log("Watch it in a browser: " + d.server.Address(listener))
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	serving.Go(func() {
		if err := d.server.Serve(ctx, listener); err != nil {
			d.log("the page: " + err.Error())
		}
	})
	return func() { cancel(); serving.Wait() }, nil
}

func startCluster(ctx context.Context, s *stage.Stage) error {
	return s.StartCluster(ctx, "", s.Usher(), s.Web())
}

func startNodes(ctx context.Context, s *stage.Stage) error {
	return s.StartWebNodes(ctx, nodes, "v1", "v2")
}

// install starts the registry and Usher.
func (d *demonstration) install(ctx context.Context, s *stage.Stage) error {
	err := s.Progress.Task("etcd (registry)", func() (_ string, err error) {
		if d.registry, err = s.StartEtcd(ctx, "registry", cluster.EtcdOptions{}); err != nil {
			return "", err
		}
		return "ready at " + d.registry.Endpoint(), nil
	})
	if err != nil {
		return err
	}
	if err := s.Install(ctx, namespace); err != nil {
		return err
	}
	if err := s.Register(ctx, "discovery", d.registry.Endpoint()); err != nil {
		return err
	}
	return s.Progress.Task("usher", func() (string, error) { return "running with its own rights", d.startUsher(ctx, s) })
}

// onlyDeployments keeps the guard away from CloneSets, so that these show the effect of hooks alone.
const onlyDeployments = `[{"op": "add", "path": "/webhooks/0/matchConditions/-", "value": {
	"name": "only-deployments", "expression": "has(oldObject.metadata.ownerReferences) && oldObject.metadata.ownerReferences.exists(o, o.kind == 'ReplicaSet')"}}]`

// startUsher starts Usher with the guard.
func (d *demonstration) startUsher(ctx context.Context, s *stage.Stage) error {
	ports, err := servers.FreePorts(ctx, 1)
	if err != nil {
		return err
	}
	if d.usherArgs, err = checkout.InstallGuard(ctx, s.Kube, s.Root, stage.UsherUser, ports[0]); err != nil {
		return err
	}
	// It asks applications to leave, and Pods have loopback addresses here.
	d.usherArgs = append(d.usherArgs, "--loopback-pods")
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: checkout.GuardName}}
	if err := s.Kube.Patch(ctx, webhook, client.RawPatch(types.JSONPatchType, []byte(onlyDeployments))); err != nil {
		return fmt.Errorf("keep the guard to Deployments: %w", err)
	}
	if err := errors.Join(s.StartCertificate(), s.StartUsher(d.usherArgs...)); err != nil {
		return err
	}
	_, err = checkout.AwaitGuard(ctx, s.Kube)
	return err
}

func (d *demonstration) play(ctx context.Context) (result Result, err error) {
	var runs []page.Run
	for _, hooks := range []bool{true, false} {
		if !hooks && d.options.hooksOnly {
			break
		}
		if !hooks {
			if err := checkout.RemoveGuard(ctx, d.Kube); err != nil {
				return result, err
			}
		}
		r, err := newRun(d, hooks)
		if err != nil {
			return result, err
		}
		played, err := r.play(ctx)
		if errors.Is(err, errLate) {
			err = fmt.Errorf("%w%s", err, d.diagnosis(r))
		}
		if err != nil {
			return result, err
		}
		result.Runs = append(result.Runs, played)
		runs = append(runs, r.recordings()...)
	}
	d.log(result.write(stage.StyleOf(d.options.Out))...)
	if d.options.Page == "" {
		return result, nil
	}
	// The runs with most workloads come first, so that the run with hooks is next to the one without.
	slices.SortStableFunc(runs, func(x, y page.Run) int { return cmp.Compare(len(y.Sets), len(x.Sets)) })
	recording := &page.Recording{
		Title: "Usher's demo: Pods in time", Runs: runs, Note: "A lane is a Pod. A red mark is a request that was lost, on the Pod that it was sent to.",
	}
	if err := write(d.options.Page, recording); err != nil {
		return result, err
	}
	d.log("", "The whole run as a page: "+d.options.Page)
	return result, nil
}

// diagnosis describes the state when something did not happen in time.
func (d *demonstration) diagnosis(r *run) string {
	text := ""
	for _, section := range []struct {
		title string
		lines []string
	}{
		{"The last state:", r.board.state()},
		{"What the objects say:", r.board.waitingFor()},
		{"The end of Usher's log (" + d.UsherLog() + "):", process.TailFile(d.UsherLog(), usherLogLines)},
	} {
		text += "\n\n" + section.title + "\n    " + strings.Join(section.lines, "\n    ")
	}
	return text
}

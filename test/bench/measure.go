// SPDX-License-Identifier: Apache-2.0

// Package bench measures Usher on a real control plane with simulated containers: how
// fast it brings Pods in and out of service, what it writes for that, how long a Pod is
// out of service, and what it costs.
//
// Usher runs as a separate process, as shipped, with its own user and its own rights. The package
// observes it from outside: the API server's audit log counts its writes, /proc shows its CPU time and
// memory, and watches of the Pods and of the registry give the times. A plain client shows what the API
// server or the registry can do on this machine, so that the numbers of two machines can be compared.
//
// scenario.go has the table of steps, report.go the columns of the report, and goals.go the goals.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/servers"
	"github.com/usher-dev/usher/test/stage"
)

// Options configures a measurement.
type Options struct {
	// Sizes are the numbers of Pods to measure with; at least one.
	Sizes []int
	// Registries are the kinds of registries to measure both halves of Usher with. If
	// there are none, the CloneSet half is measured.
	Registries []string
	// Guard measures instead how much longer deletions take with the guard, of so many Pods that it
	// does not know.
	Guard bool
	// Restarts are the times that containers take to restart, default 50 ms; Latencies are additional
	// times of a round trip between Usher and the API server. If either is set, only updates in place
	// are measured, one for each pair.
	Restarts, Latencies []time.Duration
	// Pull is how long nodes pull each image. If it is set, only updates in place are measured,
	// of CloneSets whose images come first.
	Pull time.Duration
	// Sets is a number of CloneSets of PodsPerSet Pods. If it is set, Sizes is the number of their
	// Pods, there is at most one of Restarts and of Latencies, and only updates in place are measured:
	// of one CloneSet with as many Pods, of a small one, both alone and during that update, and of all
	// Sets.
	Sets int
	// Many is a number of CloneSets of two Pods. If it is set, Sizes is the number of their Pods, and what is measured
	// is how Usher creates them, starts among them, and updates some of them.
	Many int
	// Repair is how often the operator compares a registry's entries with the desired
	// ones; default 30 s, as for a Registry.
	Repair time.Duration
	// Out receives the output.
	Out *os.File
}

const (
	// maxPods is the largest size: more would not fit into the memory of a usual
	// machine, which also runs the API server and the nodes.
	maxPods = 20_000
	// defaultRepair is the default of a Registry's spec.repairInterval.
	defaultRepair = 30 * time.Second
	// podsPerNode is how many Pods the scheduler assigns to a node at most, and
	// minNodes is the lowest number of nodes.
	podsPerNode = 250
	minNodes    = 10
	// garbage is how much garbage may accumulate in this process, in per cent of the live heap. Real
	// nodes do not share a heap: with 20,000 Pods it would be collected for a fifth of the time, and
	// they would be slow.
	garbage = 400
	// containerDelay is how long simulated containers take to start, to restart and to
	// end.
	containerDelay = 50 * time.Millisecond
)

func (o Options) check() error {
	least := 1
	if len(o.Registries) > 0 {
		least = fifth
	}
	for _, kind := range o.Registries {
		if !slices.Contains(servers.Kinds(), kind) {
			return fmt.Errorf("%w: registry %q: give some of %s", stage.ErrUsage, kind, strings.Join(servers.Kinds(), ", "))
		}
	}
	if len(o.Sizes) == 0 {
		return fmt.Errorf("%w: no sizes are given: name at least one number of Pods", stage.ErrUsage)
	}
	for _, n := range o.Sizes {
		if n < least || n > maxPods {
			return fmt.Errorf("%w: size %d: give numbers of Pods from %d to %d", stage.ErrUsage, n, least, maxPods)
		}
	}
	return nil
}

// Run measures, and shows the tables at the end. On an error, the report has what was
// measured before. When it returns, no process is left, and no file except the logs of a
// failed measurement.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Repair = cmp.Or(o.Repair, defaultRepair)
	debug.SetGCPercent(garbage)
	// In an update that recreates Pods, some are still terminating; the plain client's may be among them.
	began, version, pods := time.Now(), "", plainMost
	for _, n := range o.Sizes {
		pods += n
	}
	count := max(minNodes, int(math.Ceil(1.5*float64(pods)/podsPerNode)))
	containers := node.NewSimulatedRuntime(node.Traits{ReadyDelay: containerDelay, DeleteDelay: containerDelay})
	simulated := &nodes{Runtime: containers, restart: containerDelay, pulled: map[[2]string]time.Time{}}
	var results []*result
	err := stage.Run{Name: "usher-measure", Out: o.Out, Setup: []stage.Step{
		func(ctx context.Context, s *stage.Stage) error { return s.StartCluster(ctx, auditFile(s), s.Usher()) },
		func(ctx context.Context, s *stage.Stage) error {
			return s.StartNodes(ctx, node.Options{RESTConfig: s.Cluster.RESTConfig(), Runtime: simulated, Nodes: count, PodsPerNode: podsPerNode})
		},
		func(ctx context.Context, s *stage.Stage) error { return s.Install(ctx, namespace) },
	}, Play: func(ctx context.Context, s *stage.Stage) (err error) {
		version = s.Cluster.Version()
		m := &measurement{Stage: s, options: o, nodes: simulated, audit: &auditLog{path: auditFile(s)}, began: time.Now()}
		if len(o.Latencies) > 0 {
			if err := m.moveAway(ctx); err != nil {
				return err
			}
		}
		results, err = m.all(ctx)
		return err
	}}.Run(ctx)
	report := &Report{
		results: results, goals: slices.Concat(judge(results), judgeRanges(results, ranges())), taken: began,
		machine: fmt.Sprintf("%d processors for everything, Kubernetes %s, %d simulated nodes, %s.", runtime.NumCPU(), version, count, runtime.Version()),
	}
	if len(results) > 0 {
		// A failed write cannot be reported.
		_, _ = fmt.Fprintln(o.Out, strings.Join(report.lines(stage.StyleOf(o.Out)), "\n"))
	}
	return report, err
}

func auditFile(s *stage.Stage) string { return s.Path("audit.log") }

// moveAway puts a slow link between Usher and the API server.
func (m *measurement) moveAway(ctx context.Context) error {
	usual, err := m.Cluster.UserKubeconfig(stage.UsherUser)
	if err != nil {
		return err
	}
	m.kubeconfig = m.Path("far.kubeconfig")
	m.link, err = m.Through(ctx, usual, m.kubeconfig)
	return err
}

// all measures all registries and sizes.
func (m *measurement) all(ctx context.Context) (all []*result, err error) {
	for _, t := range m.options.turns() {
		done, err := m.size(ctx, t)
		all = merge(all, done)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// turns returns the measurements, in their order.
func (o Options) turns() (turns []turn) {
	for _, kind := range o.Registries {
		for _, n := range o.Sizes {
			turns = append(turns, turn{registry: kind, size: n, of: 1})
		}
	}
	switch {
	case len(turns) > 0:
		return turns
	case o.Guard:
		return guardTurns(o.Sizes)
	case o.timed():
		return []turn{{size: slices.Max(o.Sizes), of: 1}} // one turn with CloneSets of all sizes
	}
	if o.Many > 0 {
		return []turn{{size: o.Many * PodsPerSmallSet, of: 1}}
	}
	return schedule(o.Sizes)
}

// maxRounds bounds how often a size is measured.
const maxRounds = 10

// turn is one round of one size, with a registry or without.
type turn struct {
	registry        string
	size, round, of int
	// deployment means that the Deployment is measured, in all ways.
	deployment bool
}

// schedule orders the rounds of all sizes: half of those of each smaller size, then the
// largest, then the other halves. A machine that gets faster or slower meanwhile then
// affects all sizes alike. A smaller size is measured until as many Pods have moved as
// in the largest: rare long events (a garbage collection of the API server takes as long
// as a hundred Pods) should have the same share in all sizes.
func schedule(sizes []int) []turn {
	largest := slices.Max(sizes)
	var first, middle, last []turn
	for _, n := range sizes {
		rounds := min(max(largest/n, 1), maxRounds)
		for round := range rounds {
			t := turn{size: n, round: round, of: rounds}
			switch {
			case n == largest:
				middle = append(middle, t)
			case 2*round < rounds:
				first = append(first, t)
			default:
				last = append(last, t)
			}
		}
	}
	return slices.Concat(first, middle, last)
}

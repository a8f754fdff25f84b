// SPDX-License-Identifier: Apache-2.0

// Package soak plays the demo's workloads for an hour at a steady rate of requests, with changes and
// faults drawn at random, and counts the lost requests, and the objects and entries that Usher does not
// remove.
//
// soak.go sets the stage and ends the run, churn.go changes the workloads, faults.go disturbs Usher and
// its surroundings, upgrade.go changes its version instead, replica.go runs it, clock.go moves a
// replica's clock, report.go reports the
// outcome.
package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/link"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/demo/manifests"
	servers "github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// Options configures a run.
type Options struct {
	// Out receives all output.
	Out *os.File
	// Requests is the least number of requests, and For the time that they take: the quotient is the
	// rate.
	Requests int
	For      time.Duration
	// Seed decides what happens, and in which order.
	Seed uint64
	// Bare leaves out all hooks and the guard: requests are lost then.
	Bare bool
	// Before is the revision of which Usher is at first, as git names it. Instead of faults, Usher is then upgraded to
	// what the checkout has and taken back, and the run ends after Rounds of that. Empty: there are faults.
	Before string
	Rounds int
}

const (
	namespace, system = "demo", "usher-system"
	// nodes is the number of nodes that are never lost. There is one more.
	nodes = 2
	// propagation covers cacheDelay and the slowest request, as in the demo.
	propagation, cacheDelay = 4 * time.Second, time.Second
	slowMin, slowMax        = time.Second, 2 * time.Second
	// afterOutage covers how long callers still wait when their registry is back.
	afterOutage = 20 * time.Second
	tellEvery   = 10 * time.Second
	sampleEvery = 2 * time.Second
)

// registry is an etcd that Usher reaches through a link, and callers directly.
type registry struct {
	*cluster.Etcd
	name string
	link *link.Link
}

// soak is a run on its stage.
type soak struct {
	options Options
	*stage.Stage
	registries []*registry
	replicas   []*replica // all that there may be
	node       *link.Link // between the node that is lost and the API server
	objects    cache.Cache
	workloads  []*workload
	// guarded is held for reading while the guard is needed, and for writing while it may be away.
	guarded sync.RWMutex
	began   time.Time
	through chan struct{} // closed when all requests are sent

	mu              sync.Mutex
	faults, changes map[string]int
	lives           lives
	upgrades        upgrades
}

// Run plays until the requests are through. When it returns, no process is left, and no file except
// the logs of a failed run. Lost requests and leaks are no error: see Result.Failed.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	s := &soak{options: o, faults: map[string]int{}, changes: map[string]int{}, through: make(chan struct{})}
	err = stage.Run{
		Name: "usher-soak", Out: o.Out, Setup: []stage.Step{s.startCluster, s.extractBefore, s.startNodes, s.startRegistries, s.startUsher},
		Play: func(ctx context.Context, _ *stage.Stage) (err error) {
			result, err = s.play(ctx)
			return err
		},
	}.Run(ctx)
	return result, err
}

// say logs a line with the time.
func (s *soak) say(format string, args ...any) {
	line := fmt.Sprintf("%7.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
	_, _ = s.options.Out.WriteString(line) // a failed write cannot be reported
}

func (s *soak) count(counts map[string]int, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts[name]++
}

// random returns a random source for each user of one, so that none depends on when others draw.
func (s *soak) random(who uint64) *rand.Rand { return rand.New(rand.NewPCG(s.options.Seed, who)) }

// pause waits, and reports whether the requests are through.
func (s *soak) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	case <-s.through:
		return true
	case <-time.After(d):
		return false
	}
}

// startNodes starts the nodes, and one that reaches the API server through a link.
func (s *soak) startNodes(ctx context.Context, st *stage.Stage) (err error) {
	s.Stage = st
	if err := st.StartWebNodes(ctx, nodes); err != nil {
		return err
	}
	server := strings.TrimPrefix(st.Cluster.Server(), "https://")
	if s.node, err = st.NewLink(ctx, nil, server); err != nil {
		return err
	}
	config := st.Cluster.RESTConfig()
	config.Host = "https://" + s.node.Address()
	runtime := node.NewProcessRuntime(node.ProcessOptions{Images: node.ProgramDir(st.Path("images")), LogDir: st.Path("far")})
	return st.StartNodes(ctx, node.Options{RESTConfig: config, Runtime: runtime, Nodes: 1, First: nodes})
}

// startRegistries starts them, and installs Usher's API with a Registry for each.
func (s *soak) startRegistries(ctx context.Context, st *stage.Stage) error {
	if err := st.Install(ctx, namespace); err != nil {
		return err
	}
	for _, name := range []string{"discovery", "backup"} {
		etcd, err := st.StartEtcd(ctx, name, cluster.EtcdOptions{})
		if err != nil {
			return err
		}
		link, err := st.NewLink(ctx, nil, strings.TrimPrefix(etcd.Endpoint(), "http://"))
		if err != nil {
			return err
		}
		s.registries = append(s.registries, &registry{etcd, name, link})
		if err := st.Register(ctx, name, "http://"+link.Address()); err != nil {
			return err
		}
	}
	return nil
}

// startUsher prepares two replicas, each with its own link to the API server.
func (s *soak) startUsher(ctx context.Context, st *stage.Stage) error {
	n := s.slots()
	ports, err := servers.FreePorts(ctx, 3*n)
	if err != nil {
		return err
	}
	local := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
	args, err := s.startGuard(ctx, list.Map(ports[:n], func(port int) string {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	})...)
	if err != nil {
		return err
	}
	kubeconfig, err := st.Cluster.UserKubeconfig(stage.UsherUser)
	if err != nil {
		return err
	}
	for i := range n {
		name := fmt.Sprintf("usher-%d", i+1)
		link, err := st.Through(ctx, kubeconfig, st.Path(name+".kubeconfig"))
		if err != nil {
			return err
		}
		own := slices.Concat(args, []string{"--kubeconfig=" + st.Path(name+".kubeconfig"), "--leader-elect", "--leader-election-id=" + lease,
			"--leader-election-namespace=" + system, "--metrics-insecure", "--metrics-bind-address=" + local(n+i),
			"--health-probe-bind-address=" + local(2*n+i)})
		if !s.options.Bare {
			own = append(own, fmt.Sprintf("--guard-port=%d", ports[i])) // The last one counts.
		}
		clock := time.Duration(i%2) * s.apart()
		s.replicas = append(s.replicas, &replica{
			link: link, metrics: servers.HTTP{Address: "http://" + local(n+i)}, probes: servers.HTTP{Address: "http://" + local(2*n+i)},
			spec: process.Spec{Name: name, Path: st.Path("bin", "usher"), Log: st.Path("logs", name+".log"), Args: own,
				Env: append(os.Environ(), fmt.Sprintf("%s=%s", clockAhead, clock))},
		})
	}
	return nil
}

// startGuard lets the API server find the guard of either replica. It returns Usher's arguments.
func (s *soak) startGuard(ctx context.Context, addresses ...string) (args []string, err error) {
	// Like a Service, it leads to ready replicas.
	link, err := s.NewLink(ctx, func(i int) bool { return s.replicas[i].takesCalls(ctx) }, addresses...)
	if err != nil {
		return nil, err
	}
	args, err = checkout.InstallGuard(ctx, s.Kube, s.Root, stage.UsherUser, int(netip.MustParseAddrPort(link.Address()).Port()))
	if err != nil {
		return nil, err
	}
	s.upgrades.guardPort = int(netip.MustParseAddrPort(link.Address()).Port())
	if s.options.Before != "" {
		return args, s.startKeeper(ctx, s.upgrades.before)
	}
	if !s.options.Bare {
		return args, s.StartCertificate()
	}
	return nil, checkout.RemoveGuard(ctx, s.Kube)
}

// newWorkloads returns the demo's workloads, with the changes that each can have.
func (s *soak) newWorkloads() error {
	for i, w := range []*workload{
		{name: "seed1", about: []string{image, image, release, scale, scale, named, deleted, evicted}},
		{name: "seed3-predelete", about: []string{image, scale, scale, named, deleted, evicted}},
		{name: "deployment", about: []string{image, scale, scale, deleted, evicted}},
	} {
		if err := s.prepare(w); err != nil {
			return err
		}
		w.random = s.random(uint64(2 + i))
		s.workloads = append(s.workloads, w)
	}
	return nil
}

// prepare reads a workload's objects, and makes its callers, half of them for each registry.
func (s *soak) prepare(w *workload) (err error) {
	if w.object, w.registration, err = manifests.Workload(w.name, !s.options.Bare, propagation); err != nil {
		return err
	}
	if s.options.Before != "" {
		if w.object, err = stage.Merge(w.object, stage.CloneSet{}, probed); err != nil {
			return err
		}
	}
	w.name = w.registration.GetName()
	registration := w.registration.Object
	err = errors.Join(
		unstructured.SetNestedStringSlice(registration, []string{s.registries[0].name, s.registries[1].name}, "spec", "registries"),
		unstructured.SetNestedField(registration, afterOutage.String(), "spec", "drain", "afterOutage"),
		unstructured.SetNestedField(registration, "2s", "spec", "nodeFailure", "grace"))
	streams := 3 * len(s.registries)
	rate := int(float64(s.options.Requests)/s.options.For.Seconds())/streams + 1
	for _, r := range s.registries {
		w.callers = append(w.callers, traffic.New(traffic.Options{
			Source: traffic.Etcd{Client: r.Client, Prefix: stage.EtcdPrefix, Service: w.name},
			Rate:   rate, CacheDelay: cacheDelay, SlowMin: slowMin, SlowMax: slowMax,
			OnLost: func(l traffic.Loss) { s.say("LOST: %s, of %s at %s in %s", l.Reason, w.name, l.Addr, r.name) },
		}))
	}
	return err
}

// requests counts the requests so far.
func (s *soak) requests() (sent, lost int) {
	for _, w := range s.workloads {
		for _, c := range w.callers {
			for _, section := range c.Report().Sections {
				sent, lost = sent+section.Sent, lost+section.Lost
			}
		}
	}
	return sent, lost
}

// progress returns the share of the requests that are through.
func (s *soak) progress() float64 {
	sent, _ := s.requests()
	if s.options.Before != "" {
		return s.upgrades.progress()
	}
	return float64(sent) / float64(s.options.Requests)
}

// play plays everything. All that it has started has ended when it returns.
func (s *soak) play(ctx context.Context) (result *Result, err error) {
	s.began = time.Now()
	s.say("seed %d; the clocks of the two replicas are %s", s.options.Seed, clocks(s.apart()))
	if err := s.newWorkloads(); err != nil {
		return nil, err
	}
	all, ctx := errgroup.WithContext(ctx)
	keeping, stop := context.WithCancel(ctx)
	s.startFirst(keeping, all)
	all.Go(func() (err error) {
		defer stop()
		result, err = s.live(ctx)
		return err
	})
	err = all.Wait()
	return result, err
}

// live brings the workloads to life, lets them live until the requests are through, and ends them.
func (s *soak) live(ctx context.Context) (_ *Result, err error) {
	if _, err := s.leader(ctx); err != nil {
		return nil, err
	}
	if !s.options.Bare {
		if _, err := checkout.AwaitGuard(ctx, s.Kube); err != nil {
			return nil, err
		}
	}
	nothing := func(*corev1.Pod) {}
	if s.objects, err = stage.Watch(ctx, s.Cluster.RESTConfig(), s.Kube, namespace, stage.On(&corev1.Pod{}, nothing, nothing)); err != nil {
		return nil, err
	}
	called, hangUp := context.WithCancel(ctx)
	calling := &errgroup.Group{}
	defer func() { hangUp(); _ = calling.Wait() }() // finish has its result
	living, alive := errgroup.WithContext(ctx)
	for _, w := range s.workloads {
		for _, c := range w.callers {
			calling.Go(func() error { return c.Run(called) })
		}
		living.Go(func() error { return s.change(alive, w) })
	}
	living.Go(func() error { return s.watch(alive) })
	for _, disturbing := range s.disturbances() {
		living.Go(func() error { return disturbing(alive) })
	}
	living.Go(func() error { return s.drain(alive) })
	if err := living.Wait(); err != nil {
		return nil, err
	}
	return s.finish(ctx, calling)
}

// watch records Usher's usage and shows the progress of the run, until the requests are through.
func (s *soak) watch(ctx context.Context) error {
	for n := 0; s.progress() < 1; n++ {
		if err := stage.Pause(ctx, sampleEvery); err != nil {
			return err
		}
		leading := state{}
		for _, r := range s.running() {
			if now, err := r.state(ctx); err == nil {
				s.lives.note(time.Now(), now)
				if now.leads {
					leading = now
				}
			}
		}
		if n%int(tellEvery/sampleEvery) == 0 {
			sent, lost := s.requests()
			s.say("%5.1f %%  %s requests, %d lost; Usher: %s, %d goroutines", 100*s.progress(), stage.Thousands(sent), lost,
				mebibytes(leading.resident), leading.goroutines)
		}
	}
	close(s.through)
	return nil
}

// finish deletes the workloads, and finds remaining objects.
func (s *soak) finish(ctx context.Context, calling *errgroup.Group) (*Result, error) {
	for _, w := range s.workloads {
		if err := s.settle(ctx, w, nil); err != nil {
			return nil, err
		}
		for _, c := range w.callers {
			c.EndWhenGone()
		}
		if err := s.try(ctx, func(ctx context.Context) error { return s.Kube.Delete(ctx, w.object.DeepCopy()) }); err != nil {
			return nil, err
		}
	}
	if err := calling.Wait(); err != nil {
		return nil, err
	}
	result := s.result()
	gone := func(what string, objects func(*workload) *unstructured.Unstructured) error {
		err := stage.Poll(ctx, bound, what+" to be gone", func(context.Context) (_ bool, err error) {
			result.Left, err = s.left(ctx, objects)
			return len(result.Left) == 0, err
		})
		if len(result.Left) > 0 {
			return nil // The result says so.
		}
		return err
	}
	// A Registration answers hooks until its Pods are gone.
	if err := gone("workloads", func(w *workload) *unstructured.Unstructured { return w.object }); err != nil || len(result.Left) > 0 {
		return result, err
	}
	for _, w := range s.workloads {
		if err := s.Kube.Delete(ctx, w.registration.DeepCopy()); err != nil {
			return nil, err
		}
	}
	err := gone("Registrations", func(w *workload) *unstructured.Unstructured { return w.registration })
	return result, err
}

// left returns the names of deleted objects that remain, and of Pods and entries.
func (s *soak) left(ctx context.Context, objects func(*workload) *unstructured.Unstructured) (names []string, err error) {
	for _, w := range s.workloads {
		found := objects(w).DeepCopy()
		switch err := s.Kube.Get(ctx, client.ObjectKeyFromObject(found), found); {
		case err == nil:
			names = append(names, fmt.Sprintf("%s %s with the finalizers %v", found.GetKind(), found.GetName(), found.GetFinalizers()))
		case client.IgnoreNotFound(err) != nil:
			return nil, err
		}
	}
	pods, err := s.pods(ctx)
	for _, pod := range pods {
		names = append(names, fmt.Sprintf("Pod %s with the finalizers %v", pod.Name, pod.Finalizers))
	}
	for _, r := range s.registries {
		entries, failed := r.Client.Get(ctx, stage.EtcdPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if failed != nil {
			return nil, failed
		}
		for _, entry := range entries.Kvs {
			names = append(names, "the entry "+string(entry.Key)+" in "+r.name)
		}
	}
	return names, err
}

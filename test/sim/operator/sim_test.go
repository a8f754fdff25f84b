// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	registryservice "github.com/usher-dev/usher/internal/registration/registry/service"
	"github.com/usher-dev/usher/test/model"
)

var seeds = flag.Uint64("seeds", 50, "how many schedules TestSimulation runs")
var first = flag.Uint64("first", 0, "the first seed of TestSimulation")

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// registries are the names of the Registries. Only the first can hold entries back.
var registries = []string{"discovery", "backup"}

// simulation is one run.
type simulation struct {
	*testing.T
	random *rand.Rand
	clock  *clocktesting.FakePassiveClock
	clocks *rand.Rand // draws how far that of each process is from it
	server *model.Server
	// runs are what the kubelets run of the Pods.
	runs   map[types.UID]*model.Run
	stores map[string]*memory.Registry
	// lines are what the operator has logged at the default level.
	lines []string
	trace []string

	operator *registration.Reconciler
	process  *process
	// restarts counts the processes.
	restarts int
	// cached is what the operator's caches show. views are what they have shown; a new
	// process may begin with an old one.
	cached model.Objects
	views  []model.Objects
	past   past
	// slow is how long each of the operator's writes takes.
	slow time.Duration
	// gatherer scrapes the process.
	gatherer prometheus.Gatherer

	// features are what the objects ask for, defects how the operator is broken.
	features features
	defects  defects
	// obliging means that applications do what they are asked.
	obliging bool
	// broken is the first rule that did not hold, in a run with defects.
	broken string
	// ended is how the last pass over each namespace ended.
	ended map[string]error

	// What the invariants need to know.
	serial   int
	absences []*absence
	// absent is a Registration while somebody has deleted it past its finalizer.
	absent   *usher.Registration
	lastSeen map[types.UID]time.Time
	// began is when the operator's last pass began.
	began time.Time
	// served is when the Service last listed a Pod. seen is what the EndpointSlice controller
	// has last seen, and when.
	served map[types.UID]time.Time
	// noticed means that a node has said that it goes.
	noticed bool
	// intents are who wants which eviction, by its name, and responders whose turns it has; turned are the Pods
	// of which Usher has had the turn. handed counts those that it has handed on.
	intents    map[string]map[string]bool
	responders map[string][]lifecyclev1alpha1.TargetResponder
	turned     map[types.UID]bool
	handed     int
	// letGo is until when the guard may hold a Pod that somebody gives less time than its own grace period.
	letGo    map[types.UID]time.Time
	seen     []discoveryv1.Endpoint
	seenAt   time.Time
	balancer balancer
	// seenIn is when each registry, by name, last sent callers to a Pod.
	seenIn map[string]map[types.UID]time.Time
	// guardian is the guard, callers are those who want Pods to go. ending is who deletes the
	// CloneSet's Pods, or all, while the CloneSet or the namespace is being deleted.
	guardian guardian
	callers  []*caller
	ending   string
	// finished counts the Pods that the operator has deleted.
	finished int
	// told counts the waits that the plugin shows in standStill.
	told int
	// stopped are Pods whose owner's controller, or collector, asks no more.
	stopped map[types.UID]bool
	// entered is when a Pod entered its state.
	entered  map[types.UID]time.Time
	released map[string]int
	// applications are those that have registered themselves; known are the Pods that the guard knows.
	applications map[types.UID]*application
	known        map[types.UID]bool
	foreign      registry.Entry
	// work is what is under way in Pods, which fates draw; asker asks them. calm means that all is well. waited counts the
	// Pods that were let go when they had been asked, tooLong those that were at the timeout.
	work            map[types.UID]*work
	fates           *rand.Rand
	asker           *asker
	calm            bool
	waited, tooLong int
	// chosen counts the scale-ins for which the operator knew who is busy.
	chosen int
}

func simulate(t *testing.T, seed uint64, given features, wrong defects) *simulation {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(epoch)
	s := &simulation{
		T: t, features: given, defects: wrong, random: rand.New(rand.NewPCG(seed, 1)), clock: clock, clocks: rand.New(rand.NewPCG(seed, 3)),
		work: map[types.UID]*work{}, fates: rand.New(rand.NewPCG(seed, 4)),
		past:   past{random: rand.New(rand.NewPCG(seed, 5)), shown: map[model.Kind]int{}},
		server: model.NewServer(clock.Now), runs: map[types.UID]*model.Run{}, stores: map[string]*memory.Registry{},
		lastSeen: map[types.UID]time.Time{}, seenIn: map[string]map[types.UID]time.Time{}, served: map[types.UID]time.Time{}, letGo: map[types.UID]time.Time{},
		intents: map[string]map[string]bool{}, responders: map[string][]lifecyclev1alpha1.TargetResponder{}, turned: map[types.UID]bool{},
		applications: map[types.UID]*application{}, known: map[types.UID]bool{},
		balancer: newBalancer(), stopped: map[types.UID]bool{}, entered: map[types.UID]time.Time{}, released: map[string]int{}, ended: map[string]error{},
		foreign: registry.Entry{ID: "theirs", Address: "192.0.2.1", Port: 1, Weight: 1},
	}
	for _, object := range given.objects() {
		s.make(object)
	}
	for _, name := range registries {
		s.stores[name], s.seenIn[name] = memory.New(), map[types.UID]time.Time{}
		s.stores[name].Seed(service, s.foreign)
		s.foreign = s.stores[name].Entries(service)[0]
	}
	s.stand()
	s.settleTenants()
	s.server.Observers = append(s.server.Observers, s.judge)
	if given.lists {
		s.server.Observers = append(s.server.Observers, func(*model.Commit) { s.past.remember(s.server.Objects) })
	}
	s.refusesResponses()
	s.refresh()
	s.restart()
	return s
}

// make creates an object.
func (s *simulation) make(object client.Object) client.Object {
	return checktest.Must(s.server.Create("user", object, false))(s)
}

func (s *simulation) log(format string, args ...any) {
	s.trace = append(s.trace, s.clock.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (s *simulation) fail(format string, args ...any) {
	s.Helper()
	if s.defects.any() {
		s.broken = cmp.Or(s.broken, fmt.Sprintf(format, args...))
		return
	}
	s.Fatalf("%s\ntrace:\n%s", fmt.Sprintf(format, args...), strings.Join(s.trace, "\n"))
}

// restart begins a new process; the old one never writes again.
func (s *simulation) restart() {
	s.restarts++
	scraped := prometheus.NewRegistry()
	p := &process{simulation: s, left: unlimited}
	s.gatherer, s.process, s.guardian.writes = scraped, p, map[types.UID]*written{}
	live := model.Client{Server: s.server, Actor: actorOperator, Send: p.send}
	own := skewed{s.clock, s.features.skew(s.clocks)}
	s.asker = newAsker(s, own)
	cached := live
	cached.Cache = func(kind model.Kind) map[types.NamespacedName]client.Object { return s.cached[kind] }
	s.operator = checktest.Must(registration.New(&cached, &live, recorder{s}, registration.Options{
		Workers: 1, Process: fmt.Sprintf("process-%d", s.restarts), Finish: s.features.finishes && !s.defects.idle, Clock: own, Asker: s.asker, Registerer: scraped, Evictions: s.features.requests,
		Applications: courier{p},
		Connect: func(r *usher.Registry, root string, _ map[string][]byte) (registry.Connector, error) {
			if r.Spec.AWSTargetGroup != nil {
				return registry.Follower(describes{p}), nil
			}
			if r.Spec.Service != nil {
				return registryservice.New(&live, root), nil
			}
			return &connector{Registry: s.stores[r.Name], process: p, name: r.Name}, nil
		},
	}))(s)
}

// logged is the context of the operator's calls. Its logs must reveal no secret.
func (s *simulation) logged() context.Context {
	return log.IntoContext(s.Context(), funcr.New(func(_, line string) {
		s.hidesSecret("log", line)
		s.lines = append(s.lines, line)
	}, funcr.Options{}))
}

// pods are those of the API server, by name, without those of tenants.
func (s *simulation) pods() []*corev1.Pod {
	return slices.DeleteFunc(model.List[*corev1.Pod](s.server.Objects), func(pod *corev1.Pod) bool { return pod.Namespace != namespace })
}

// pod reads a Pod from the API server; nil if there is none.
func (s *simulation) pod(name string) *corev1.Pod {
	return model.Get[*corev1.Pod](s.server.Objects, types.NamespacedName{Namespace: namespace, Name: name})
}

// listed reports whether any registry really lists the Pod, and serving whether
// callers get it there.
func (s *simulation) listed(uid types.UID) (listed, serving bool) {
	for _, name := range registries {
		for _, e := range s.entries(name) {
			if e.Owner.PodUID == string(uid) {
				listed, serving = true, serving || serves(name, e)
			}
		}
	}
	return listed, serving
}

// serves reports whether callers of a registry get the entry: discovery holds those of weight
// 0 back.
func serves(name string, e registry.Entry) bool {
	return name != "discovery" && !e.Override || e.Weight > 0 || e.Unsettled != ""
}

// entries are those of all services of a registry.
func (s *simulation) entries(name string) []registry.Entry {
	all := slices.Concat(s.stores[name].Entries(service), s.stores[name].Entries(edge))
	if s.features.applications {
		return s.owned(all)
	}
	return all
}

// settle ends all faults and lets the cluster settle.
func (s *simulation) settle() {
	s.log("all is well")
	s.obliging = true
	s.calmDown()
	s.endWork()
	for _, name := range registries {
		s.breaks(name, memory.None)
	}
	if s.absent != nil {
		s.bypass()
	}
	for _, pod := range s.pods() {
		s.label(pod, "nginx", pod.Labels["track"])
	}
	if s.features.service {
		s.asksFor(service)
	}
	s.callers = slices.DeleteFunc(s.callers, func(c *caller) bool { return !c.gives.IsZero() }) // all give up that may
	s.guardian.webhook = there
	if s.features.guard && s.random.IntN(2) == 0 {
		s.changeMind()
	}
	s.withdrawAll()
	s.rounds(60)
}

// rounds let everybody take a step, and then three seconds pass, so often.
func (s *simulation) rounds(n int) {
	wanted := 0 // for how many rounds the ReplicaSet has wanted all its Pods
	for range n {
		s.collect()
		s.scaleIn()
		s.coordinate()
		s.call()
		s.server.CountBudgets()
		s.kubelets()
		s.endpoints()
		s.balance()
		if s.features.applications {
			s.lives()
		}
		for _, pod := range s.pods() {
			s.reconcile(pod, true)
		}
		s.refresh()
		s.probe()
		s.process.left = unlimited
		s.pass()
		s.passOfTenants()
		s.check()
		wanted = s.checkWanted(wanted)
		s.wait(3 * time.Second)
	}
}

// wait lets time pass.
func (s *simulation) wait(span time.Duration) {
	s.clock.SetTime(s.clock.Now().Add(span))
	s.serve()
}

// run takes so many steps, and then lets the cluster settle.
func (s *simulation) run(steps int) {
	for range steps {
		if s.broken == "" {
			s.step()
		}
	}
	if s.broken == "" && s.features.stands {
		s.standStill()
	}
	s.checkUnasked()
	if s.broken == "" {
		s.settle()
		if s.features.applications {
			s.checkApplications()
		}
		s.checkSettled()
		s.checkQuiet()
		if s.features.idleFirst {
			s.checkOrder()
			s.checkCostsGo()
		}
	}
}

// checkUnasked checks what Pods do that nobody has asked to delete.
func (s *simulation) checkUnasked() {
	if s.broken == "" && s.features.notices {
		s.checkNotice()
	}
	if s.broken == "" && s.features.requests {
		s.checkEviction()
	}
}

// TestSimulation runs many lives of many Pods. A failure prints its seed and
// all that happened.
func TestSimulation(t *testing.T) {
	const steps = 300
	var released, finished, told, asked, tooLong, chosen, handed atomic.Int64
	t.Cleanup(func() { // when all seeds have run
		t.Logf("%d hooks were released, %d drained Pods deleted, %d handed on, %d waits told, and %d Pods let go that were asked, %d at the timeout; %d scale-ins with a known order",
			released.Load(), finished.Load(), handed.Load(), told.Load(), asked.Load(), tooLong.Load(), chosen.Load())
		all := int64(*seeds)
		const enough = 100 // of fewer seeds, chance may leave one of these out
		if !t.Failed() && all >= enough && (released.Load() < all/2 || finished.Load() < all/8 || told.Load() < all/10 || asked.Load() < all/10 || tooLong.Load() < all/200 || chosen.Load() < all/100 || handed.Load() < all/20) {
			t.Errorf("%d seeds released too few hooks, deleted or handed on too few drained Pods, told too few waits, asked too few Pods, or scaled in too few: the simulation proves too little", all)
		}
	})
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			s := simulate(t, seed, drawFeatures(seed), defects{})
			s.run(steps)
			released.Add(int64(len(s.released)))
			finished.Add(int64(s.finished))
			told.Add(int64(s.told))
			asked.Add(int64(s.waited))
			tooLong.Add(int64(s.tooLong))
			handed.Add(int64(s.handed))
			chosen.Add(int64(s.chosen))
		})
	}
}

// TestReplay plays seeds twice: what a failure prints can be seen again only if both runs are the same.
func TestReplay(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			play := func() string {
				s := simulate(t, seed, drawFeatures(seed), defects{})
				s.run(100)
				return strings.Join(s.trace, "\n")
			}
			checktest.Same(t, "the trace of the second run", play(), play())
		})
	}
}

//go:embed testdata/objects.yaml
var objects string

// decoded are the objects of a text; each caller gets copies.
func decoded(text string) func() []client.Object {
	read := sync.OnceValue(func() []client.Object {
		all, err := model.Read(text)
		if err != nil {
			panic(err) // they are misspelt
		}
		return all
	})
	return func() []client.Object { return list.Map(read(), model.Clone[client.Object]) }
}

var allObjects, objectsOfTenants = decoded(objects), decoded(ofTenants)

// objects are those that the features ask for.
func (f features) objects() []client.Object {
	all := slices.DeleteFunc(allObjects(), func(object client.Object) bool { return !f.asksFor(object) })
	for _, object := range all {
		switch o := object.(type) {
		case *usher.Registration:
			f.register(&o.Spec)
		case *usher.Registry:
			if f.rate > 0 && o.Name == "discovery" {
				o.Spec.RateLimit = &usher.RateLimit{ChangesPerSecond: f.rate}
			}
			if f.applications {
				ofApplications(&o.Spec)
			}
			if f.labelled && o.Spec.Service != nil {
				o.Spec.Service.Label = &usher.ServiceLabel{}
			}
		case *corev1.Service:
			o.Spec.Selector = f.selector(service)
		case *policyv1.PodDisruptionBudget:
			o.Spec.MinAvailable = ptr.To(intstr.FromInt32(f.budget))
		}
	}
	return all
}

func (f features) asksFor(object client.Object) bool {
	switch object.(type) {
	case *policyv1.PodDisruptionBudget:
		return f.budget > 0
	case *corev1.Service, *discoveryv1.EndpointSlice:
		return f.service
	case *corev1.Node:
		return f.notices
	}
	asked, optional := map[string]bool{edge: f.second, inServices: f.service, inBalancer: f.follower}[object.GetName()]
	return asked || !optional
}

// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

var (
	seeds = flag.Uint64("seeds", 12, "how many schedules TestSimulation runs")
	first = flag.Uint64("first", 0, "the first seed of TestSimulation")
)

// simPropagation is what the simulation's Registrations ask for.
const simPropagation = 5 * time.Second

// simulation runs the real passes against registries in memory and a fake API
// server. Its caches lag, its processes crash after any write, its registries
// fail, and its CloneSet controller and kubelets do whatever they may.
type simulation struct {
	*testing.T
	random *rand.Rand
	clock  *clocktesting.FakePassiveClock
	live   client.Client
	stores map[string]*memory.Registry
	trace  []string

	// The operator's process: what it sees, and what it may still write.
	operator *Reconciler
	process  *process
	cached   view
	// views are what caches have shown; a new process may begin with an old one.
	views []view
	// current are the API server's Pods, nil after a write.
	current []corev1.Pod
	// list reads the API server's Pods.
	list func() []corev1.Pod
	// holds says whether our finalizer keeps an object from vanishing.
	holds func(namespace, name string, o client.Object) bool

	// gatherer scrapes the process.
	gatherer prometheus.Gatherer

	// features are what the objects ask for, defects how the operator is broken.
	features features
	defects  defects
	// broken is the first rule that did not hold, in a run that expects it.
	broken string

	// What the invariants need to know.
	serial   int
	absences []*absence
	// absent is a Registration while somebody has taken it away.
	absent   *usherv1alpha1.Registration
	lastSeen map[types.UID]time.Time
	// entered is when a Pod entered its state.
	entered  map[types.UID]time.Time
	released map[string]int
	foreign  registry.Entry
}

// view is what the operator's caches show at a moment.
type view struct {
	pods          []corev1.Pod
	registries    usherv1alpha1.RegistryList
	registrations usherv1alpha1.RegistrationList
}

// crashed ends every call of a process that is no more.
var errCrashed = errors.New("the process has crashed")

// unlimited is a number of writes that no process reaches.
const unlimited = 1 << 30

func newSimulation(t *testing.T) *simulation {
	t.Helper()
	return simulate(t, 1, features{}, defects{})
}

func simulate(t *testing.T, seed uint64, given features, wrong defects) *simulation {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, appsv1alpha1.AddToScheme, usherv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	registries := []string{"discovery", "backup"}
	registrations := []*usherv1alpha1.Registration{newRegistration("nginx", "app", "nginx", registries...)}
	if given.second {
		registrations = append(registrations, newRegistration(edge, "track", edge, registries...))
	}
	var objects []client.Object
	for _, r := range registrations {
		given.apply(r)
		objects = append(objects, r)
	}
	s := &simulation{
		T: t, features: given, defects: wrong, random: rand.New(rand.NewPCG(seed, 1)), clock: clocktesting.NewFakePassiveClock(epoch),
		live: fake.NewClientBuilder().WithScheme(scheme).
			WithStatusSubresource(&corev1.Pod{}, &usherv1alpha1.Registration{}, &usherv1alpha1.Registry{}).
			WithObjects(newCloneSet()).WithObjects(objects...).WithObjects(given.registries(registries)...).
			WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterNamespace, UID: here}},
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: "ns"}}).Build(),
		stores:   map[string]*memory.Registry{"discovery": memory.New(), "backup": memory.New()},
		lastSeen: map[types.UID]time.Time{}, entered: map[types.UID]time.Time{}, released: map[string]int{},
		foreign: registry.Entry{ID: "theirs", Address: "192.0.2.1", Port: 1, Weight: 1},
	}
	for _, name := range []string{"discovery", "backup"} {
		s.stores[name].Seed(service, s.foreign)
		s.foreign = s.stores[name].Entries(service)[0]
	}
	s.list = func() []corev1.Pod {
		var list corev1.PodList
		if err := s.live.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	s.holds = func(namespace, name string, o client.Object) bool {
		err := s.live.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, o)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return err == nil && controllerutil.ContainsFinalizer(o, usherv1alpha1.Finalizer)
	}
	s.refresh()
	s.restart()
	return s
}

func (s *simulation) log(format string, args ...any) {
	s.trace = append(s.trace, s.clock.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (s *simulation) fail(format string, args ...any) {
	s.Helper()
	if s.defects.expected {
		s.broken = cmp.Or(s.broken, fmt.Sprintf(format, args...))
		return
	}
	s.Fatalf("%s\ntrace:\n%s", fmt.Sprintf(format, args...), strings.Join(s.trace, "\n"))
}

// restart begins a new process; the old one never writes again.
func (s *simulation) restart() {
	scraped := prometheus.NewRegistry()
	s.gatherer = scraped
	p := &process{simulation: s, left: unlimited}
	s.process = p
	var reader client.Reader = s.live
	if s.defects.forgets {
		reader = forgetful{s.live}
	}
	operator, err := New(&simClient{Client: s.live, process: p}, reader, &simRecorder{s}, Options{
		Workers: 1, Clock: s.clock, Registerer: scraped,
		Connect: func(r *usherv1alpha1.Registry, _ string, _ map[string][]byte) (registry.Connector, error) {
			return &simConnector{Registry: s.stores[r.Name], process: p, name: r.Name}, nil
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.operator = operator
}

// logged is the context of the operator's calls. Its logs must tell no secret.
func (s *simulation) logged() context.Context {
	return log.IntoContext(s.Context(), funcr.New(func(_, line string) { s.hush("log", line) }, funcr.Options{}))
}

// forgetful reads Registries without what earlier processes saw of them.
type forgetful struct{ client.Reader }

func (f forgetful) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := f.Reader.Get(ctx, key, o, options...)
	if r, ok := o.(*usherv1alpha1.Registry); ok {
		r.Status = usherv1alpha1.RegistryStatus{}
	}
	return err
}

// pods are copies of those of the API server, by name.
func (s *simulation) pods() []corev1.Pod {
	if s.current == nil {
		s.current = s.list()
	}
	out := make([]corev1.Pod, len(s.current))
	for i := range s.current {
		s.current[i].DeepCopyInto(&out[i])
	}
	return out
}

func (s *simulation) lookup(name string) *corev1.Pod {
	for _, pod := range s.pods() {
		if pod.Name == name {
			return &pod
		}
	}
	return nil
}

// listed says whether any registry really lists the Pod, and serving whether
// callers get it there: discovery holds entries of weight 0 back.
func (s *simulation) listed(uid types.UID) (listed, serving bool) {
	for _, name := range []string{"discovery", "backup"} {
		for _, e := range s.entries(name) {
			if e.Owner.PodUID == string(uid) {
				listed = true
				serving = serving || name != "discovery" || e.Weight > 0 || e.Unsettled != ""
			}
		}
	}
	return listed, serving
}

// entries are those of all services of a registry.
func (s *simulation) entries(name string) []registry.Entry {
	return slices.Concat(s.stores[name].Entries(service), s.stores[name].Entries(edge))
}

// quiesce ends all faults and lets everything come to rest.
func (s *simulation) quiesce() {
	s.Helper()
	s.log("all is well")
	for _, name := range []string{"discovery", "backup"} {
		s.breaks(name, memory.None)
	}
	if s.absent != nil {
		s.bypass()
	}
	for round := range 40 {
		for _, pod := range s.pods() {
			if round == 0 {
				s.kubelet(&pod, true)
				s.label(&pod, "nginx", pod.Labels["track"])
			}
			if round > 0 {
				s.lead(&pod, true)
			}
		}
		s.refresh()
		s.probe()
		s.process.left = unlimited
		s.pass()
		s.check()
		s.clock.SetTime(s.clock.Now().Add(3 * time.Second))
	}
}

// run lets so many things happen, and then all come to rest.
func (s *simulation) run(steps int) {
	s.Helper()
	for range steps {
		if s.broken == "" {
			s.step()
		}
	}
	if s.broken == "" {
		s.quiesce()
		s.atRest()
	}
}

// TestSimulation runs many lives of many Pods. A failure prints its seed and
// all that happened.
func TestSimulation(t *testing.T) {
	const steps = 300
	if testing.Short() {
		*seeds = min(*seeds, 3)
	}
	released := 0
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			s := simulate(t, seed, drawn(seed), defects{})
			s.run(steps)
			released += len(s.released)
		})
	}
	t.Logf("%d hooks were released", released)
	if !t.Failed() && released < int(*seeds) {
		t.Errorf("%d seeds released %d hooks: the simulation proves too little", *seeds, released)
	}
}

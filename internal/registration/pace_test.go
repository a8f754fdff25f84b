// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
)

// begins returns how long the next pass over a namespace has to wait, or begins it.
func begins(r *Reconciler, namespace string) time.Duration {
	return r.stateOf(namespace).shared.pace.Begin(r.clock.Now())
}

// A pass that listed and planned for long is followed by a longer pause, and
// none comes before it is over. A pass that has left something to the next one, or that has ended early, is not.
func TestPause(t *testing.T) {
	for spent, want := range map[time.Duration]time.Duration{
		0: 0, batchDelay / restFactor: 0, 100 * time.Millisecond: 300 * time.Millisecond, time.Minute: maxPause,
	} {
		clock := clocktesting.NewFakePassiveClock(epoch)
		r := &Reconciler{clock: clock, answers: registry.NewAnswers(4 << 20), written: newWritten()}
		var done stage
		for range 2 {
			_, took := timed(r, func() any { clock.SetTime(clock.Now().Add(spent / 2)); return nil })
			done = done.with(took)
		}
		for _, early := range []results{{stopped: true}, r.setBack(postponed)} {
			r.rest(namespace, r.stateOf(namespace), done.with(early))
			checktest.Same(t, "the pause after a pass that has not done all", 0, begins(r, namespace))
		}
		r.rest(namespace, r.stateOf(namespace), done)
		checktest.Same(t, fmt.Sprintf("how long the next pass is put off after %s of work", spent), want, begins(r, namespace))
		checktest.Same(t, "how long another namespace waits", 0, begins(r, "another"))
		if want == 0 {
			continue
		}
		// Without a client, a pass that does anything panics.
		result := checktest.Must(r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}}))(t)
		checktest.Same(t, "when a pass within the pause comes again", want, result.RequeueAfter)
		clock.SetTime(clock.Now().Add(want))
		if have := begins(r, namespace); have > 0 {
			t.Errorf("after the pause the next pass is put off by %s more", have)
		}
	}
}

// TestPodsThatEndAreUrgent: they shorten the pause of their own namespace, and the patches before it.
func TestPodsThatEndAreUrgent(t *testing.T) {
	const worked = 100 * time.Millisecond
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, answers: registry.NewAnswers(4 << 20), written: newWritten(), gathered: map[string]time.Time{}}
	pause := func(namespace string) {
		r.rest(namespace, r.stateOf(namespace), stage{results: results{spent: worked}})
	}
	for _, paused := range []string{namespace, "another"} {
		pause(paused)
	}
	update := func(older, newer *corev1.Pod) {
		r.ofPods().Update(t.Context(), event.UpdateEvent{ObjectOld: older, ObjectNew: newer}, &noted{})
	}
	stays := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", Finalizers: []string{usherv1alpha1.Finalizer}}}
	held, ends := stays.DeepCopy(), stays.DeepCopy()
	held.Labels = map[string]string{appsv1alpha1.LabelLifecycleState: string(appsv1alpha1.StatePreparingDelete)}
	ends.DeletionTimestamp = &metav1.Time{Time: epoch}
	free := ends.DeepCopy()
	free.Finalizers = nil
	for _, newer := range []*corev1.Pod{stays, held, free} {
		update(stays, newer)
	}
	checktest.Same(t, "the pause while none ends that may be listed", restFactor*worked, begins(r, namespace))
	checktest.Same(t, "how long patches begin", patchTime, r.patchTime(namespace))
	update(held, ends)
	checktest.Same(t, "the pause once one ends", worked, begins(r, namespace))
	checktest.Same(t, "how long patches begin then", urgentPatchTime, r.patchTime(namespace))
	clock.SetTime(epoch.Add(worked))
	checktest.Same(t, "the pause when it is over", 0, begins(r, namespace))
	pause(namespace)
	update(ends, ends)
	checktest.Same(t, "the next pause, while one that ends changes", restFactor*worked, begins(r, namespace))
	checktest.Same(t, "that of another namespace", (restFactor-1)*worked, begins(r, "another"))
}

// TestListsAreKeptWhileThereIsRoom: what is listed is kept between passes, as far as all namespaces
// together have room for it.
func TestListsAreKeptWhileThereIsRoom(t *testing.T) {
	r := &Reconciler{answers: registry.NewAnswers(4 << 20)}
	at := plan.Target{Registry: "discovery", Service: "web"}
	user := &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: "web"}}
	user.Spec.Registries, user.Spec.Instance.Service = []string{at.Registry}, at.Service
	listed := func(namespace string, entries int) bool {
		kept := r.stateOf(namespace).pass
		plan.Make(plan.Snapshot{
			Registries: map[string]plan.RegistryState{at.Registry: {}}, Registrations: []*usherv1alpha1.Registration{user},
			Memory: kept.plans, Listings: map[plan.Target]plan.Listing{at: {Entries: make([]registry.Entry, entries)}},
		})
		r.keepListings(kept)
		checktest.Same(t, "the bytes accounted for", kept.plans.Size(), kept.bytes)
		return kept.bytes > 0
	}
	const most = 4 << 20 / 384 // as an entry takes
	for i, step := range []struct {
		namespace string
		entries   int
		kept      bool
	}{{"a", most - 10, true}, {"b", 20, false}, {"b", 5, true}, {"a", 10, true}, {"b", most - 100, true}, {"a", 200, false}, {"b", 0, false}, {"a", 200, true}} {
		checktest.Same(t, fmt.Sprint("kept after step ", i), step.kept, listed(step.namespace, step.entries))
	}
}

// batches is a registry that notes the batches that it is given.
type batches struct {
	registry.Connector
	sizes  []int
	bounds []time.Time
	answer func(batch int, changes []registry.Change) error
}

func (b *batches) Apply(ctx context.Context, _ string, changes []registry.Change) error {
	bound, _ := ctx.Deadline()
	b.sizes, b.bounds = append(b.sizes, len(changes)), append(b.bounds, bound)
	return b.answer(len(b.sizes), changes)
}

// passing is a Reconciler with what a pass of it knows.
type passing struct {
	*Reconciler
	seen *observation
}

// applied makes the changes of joining.
func applied(t *testing.T, b *batches) (passing, error) {
	t.Helper()
	p, c := joining(t, b)
	_, err := p.applyOne(t.Context(), p.seen, c)
	return p, err
}

// joining is a pass over a registry, and 1,200 changes of which the first 600 leave.
func joining(t *testing.T, b *batches) (passing, plan.Changes) {
	t.Helper()
	object := &usherv1alpha1.Registry{}
	object.Name, object.UID = "discovery", "discovery"
	metrics := checktest.Must(newMetrics(prometheus.NewRegistry()))(t)
	r := &Reconciler{clock: clocktesting.NewFakePassiveClock(epoch), metrics: metrics}
	r.pool = registries.New(nil, func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) { return b, nil }, r.clock, 1)
	r.options.Workers, r.answers, r.written = 1, registry.NewAnswers(4<<20), newWritten()
	p := passing{r, &observation{
		objects:  map[string]*usherv1alpha1.Registry{object.Name: object},
		snapshot: plan.Snapshot{Namespace: namespace, Failed: map[plan.Target]map[string]error{}},
	}}
	c := plan.Changes{Target: plan.Target{Registry: object.Name, Prefix: "services", Service: "nginx"}}
	for n := range 600 {
		c.Leaves = append(c.Leaves, registry.Change{Op: registry.Remove, Entry: entryOf(fmt.Sprintf("leaves-%d", n))})
		c.Joins = append(c.Joins, registry.Change{Op: registry.Put, Entry: entryOf(fmt.Sprintf("joins-%d", n))})
	}
	return p, c
}

func TestManyChangesAreManyCalls(t *testing.T) {
	b := &batches{answer: func(_ int, changes []registry.Change) error {
		return &registry.ChangeError{ID: changes[0].Entry.ID, Err: registry.ErrConflict}
	}}
	_, err := applied(t, b)
	refused, rest := registry.ChangeErrors(err)
	if fmt.Sprint(b.sizes) != "[500 500 200]" || rest != nil || len(refused) != 3 ||
		refused["leaves-0"] == nil || refused["leaves-500"] == nil || refused["joins-400"] == nil {
		t.Errorf("batches of %v; refused %v, %v", b.sizes, refused, rest)
	}
	for i, bound := range b.bounds {
		if bound.IsZero() || i > 0 && !bound.After(b.bounds[i-1]) {
			t.Errorf("call %d is bounded by %s, the one before by %s", i, bound, b.bounds[max(i-1, 0)])
		}
	}
}

func TestAFailedBatchIsTheLast(t *testing.T) {
	down := errors.New("down")
	b := &batches{answer: func(batch int, changes []registry.Change) error {
		if batch == 2 {
			return registry.Transient(down)
		}
		return &registry.ChangeError{ID: changes[0].Entry.ID, Err: registry.ErrForeign}
	}}
	p, err := applied(t, b)
	refused, rest := registry.ChangeErrors(err)
	if len(b.sizes) != 2 || !errors.Is(rest, down) || len(refused) != 1 {
		t.Errorf("batches of %v; refused %v, %v", b.sizes, refused, rest)
	}
	if _, err := p.pool.Down("discovery"); !errors.Is(err, down) {
		t.Errorf("the registry is down with %v", err)
	}
	again := plan.Changes{Target: plan.Target{Registry: "discovery"}, Joins: []registry.Change{{Op: registry.Put, Entry: entryOf("a")}}}
	if _, err := p.applyOne(t.Context(), p.seen, again); !errors.Is(err, down) || len(b.sizes) != 2 {
		t.Errorf("after that, changes fail with %v, and %d batches were sent", err, len(b.sizes))
	}
}

// TestBatchesAreCounted: whatever happens to the other targets of a pass, the metrics count what a registry refused of
// each one, and the orphans that were removed.
func TestBatchesAreCounted(t *testing.T) {
	refusal := registry.Permanent(errors.New("no"))
	answers := map[string]func(registry.Change) error{
		"refuses-all": func(registry.Change) error { return refusal },
		"refuses-one": func(c registry.Change) error { return &registry.ChangeError{ID: c.Entry.ID, Err: refusal} },
		"takes-all":   func(registry.Change) error { return nil },
	}
	for _, order := range [][]string{
		{"refuses-all", "refuses-one", "takes-all"}, {"takes-all", "refuses-all", "refuses-one"}, {"refuses-one", "takes-all", "refuses-all"},
	} {
		p, c := joining(t, &batches{answer: func(batch int, changes []registry.Change) error {
			return answers[order[batch-1]](changes[0])
		}})
		changes := list.Map(order, func(service string) plan.Changes {
			orphan := []registry.Change{{Op: registry.Remove, Entry: entryOf(service)}}
			return plan.Changes{Target: plan.Target{Registry: c.Target.Registry, Prefix: c.Target.Prefix, Service: service}, Orphans: orphan}
		})
		done := p.apply(t.Context(), stage{seen: p.seen}, changes)
		p.countBatches(done.batches)
		checktest.Same(t, fmt.Sprint("refusals counted of ", order), 2,
			int(testutil.ToFloat64(p.metrics.failures.WithLabelValues(c.Target.Registry, errorRefused))))
		checktest.Same(t, fmt.Sprint("removals counted of ", order), 2,
			int(testutil.ToFloat64(p.metrics.removed.WithLabelValues(c.Target.Registry))))
		checktest.Same(t, "targets that the next pass lists", 3, len(done.due))
	}
}

// frail is a registry that fails, and gives others time before it does.
type frail struct {
	registry.Connector
	asked *[]string
}

func (f frail) List(_ context.Context, service string) ([]registry.Entry, error) {
	*f.asked = append(*f.asked, service)
	for range 1000 {
		goruntime.Gosched()
	}
	return nil, registry.Transient(errors.New("down"))
}

// TestAFailedListIsTheLast: a pass asks a registry that has failed for no other service.
func TestAFailedListIsTheLast(t *testing.T) {
	var asked []string
	p, c := joining(t, nil)
	p.pool = registries.New(nil, func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
		return frail{asked: &asked}, nil
	}, p.clock, 1)
	another := c.Target
	another.Service = "web"
	all := p.listAll(t.Context(), p.seen, []plan.Target{c.Target, another})
	checktest.Same(t, "what the registry is asked for", []string{"nginx"}, asked)
	for i := range all {
		if all[i].listing.Err == nil {
			t.Errorf("listing %d does not fail", i)
		}
	}
}

// TestPodsThatEndGoFirst: their entries leave before anything is read for the Pods that join.
func TestPodsThatEndGoFirst(t *testing.T) {
	b := &batches{answer: func(int, []registry.Change) error { return nil }}
	p, c := joining(t, b)
	ends := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ends", UID: "ends", DeletionTimestamp: &metav1.Time{Time: epoch}}}
	stays := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stays", UID: "stays"}}
	p.seen.snapshot.Pods = []*corev1.Pod{ends, stays}
	owned := func(pod string) registry.Owner {
		return registry.Owner{Cluster: "here", Namespace: namespace, Registration: "web", Pod: pod, PodUID: pod}
	}
	c.Leaves[0].Entry.Owner, c.Leaves[1].Entry.Owner, c.Joins[0].Entry.Owner = owned("ends"), owned("stays"), owned("joins")
	broken := errors.New("broken")
	p.reader = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			checktest.Same(t, "calls to the registry before the first read, by their changes", []int{1}, b.sizes)
			return broken
		},
	})
	done := p.execute(t.Context(), p.stateOf(namespace).pass, stage{seen: p.seen, decided: plan.Plan{Changes: []plan.Changes{c}}})
	_, err := next(done, epoch)
	if !done.stopped || !errors.Is(err, broken) || len(done.seen.snapshot.Failed) > 0 {
		t.Errorf("a pass whose reads fail ends with %v, and %v", err, done.seen.snapshot.Failed)
	}
	left := without([]plan.Changes{c, {Target: plan.Target{Service: "another"}, Leaves: c.Leaves}}, p.seen.ofEndingPods([]plan.Changes{c}), nil)
	checktest.Same(t, "removals that follow", []int{len(c.Leaves) - 1, len(c.Leaves)}, []int{len(left[0].Leaves), len(left[1].Leaves)})
}

// TestPatchesArePostponed: a pass begins no patch when its time is over, and the next one goes on
// where it stopped.
func TestPatchesArePostponed(t *testing.T) {
	const each = 60 * time.Millisecond
	clock, patched := clocktesting.NewFakePassiveClock(epoch), []string(nil)
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, pod client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
			clock.SetTime(clock.Now().Add(each))
			patched = append(patched, pod.GetName())
			return nil
		},
	})
	r := &Reconciler{clock: clock, written: newWritten(), client: api, options: Options{Workers: 1}}
	patches := list.Map([]string{"a", "b", "c", "d", "e", "f"}, func(name string) plan.PodPatch {
		return plan.PodPatch{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}}
	})
	for i, step := range []struct {
		urgent bool
		want   string
	}{{false, "a b c d"}, {false, "e f a b"}, {true, "c"}, {true, "d"}} {
		patched = nil
		state := r.stateOf(namespace)
		if step.urgent {
			state.shared.pace.Hurry()
		}
		done := r.patchPods(t.Context(), state.pass, stage{seen: &observation{snapshot: plan.Snapshot{Namespace: namespace}}}, patches)
		made := list.Only(done.patches, func(p patchResult) bool { return p.pod != nil })
		if len(made) != len(patched) || !done.meets(postponed) {
			t.Errorf("pass %d: %d of %d Pods are patched, postponed is %t", i, len(patched), len(made), done.meets(postponed))
		}
		state.pass.firstPatch = done.firstPatch
		checktest.Same(t, fmt.Sprintf("Pods patched in pass %d", i), step.want, strings.Join(patched, " "))
	}
}

// probed is a Registry, backup, and who probes it.
func probed(t *testing.T, connect func() (registry.Connector, error)) (r *Reconciler, recorder *events.FakeRecorder) {
	t.Helper()
	scheme := runtime.NewScheme()
	checktest.NoError(t, usherv1alpha1.AddToScheme(scheme))
	object := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "backup"}}
	object.Spec.Webhook = &usherv1alpha1.WebhookRegistry{}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(object).WithObjects(object).Build()
	recorder = events.NewFakeRecorder(1)
	r, err := New(api, api, recorder, Options{
		Registerer: prometheus.NewRegistry(),
		Connect: func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
			return connect()
		},
	})
	checktest.NoError(t, err)
	return r, recorder
}

// TestLongErrorsAreCut: the API server takes what Usher says of a registry, whatever that says.
func TestLongErrorsAreCut(t *testing.T) {
	long := strings.Repeat("é", 50_000)
	r, recorder := probed(t, func() (registry.Connector, error) { return nil, registry.Permanent(errors.New(long)) })
	name := types.NamespacedName{Name: "backup"}
	object := &usherv1alpha1.Registry{}
	checktest.Must(r.ReconcileRegistry(t.Context(), ctrl.Request{NamespacedName: name}))(t)
	checktest.NoError(t, r.client.Get(t.Context(), name, object))
	if n := len(object.Status.Conditions[0].Message); n > plan.MaxCondition || n < maxEventLength {
		t.Errorf("the condition's message has %d bytes", n)
	}
	r.announcer.warn(object, "Odd", "Probe", long)
	if n := len(<-recorder.Events); n > maxEventLength+100 || n < maxEventLength {
		t.Errorf("the event has %d bytes", n)
	}
}

// TestAProbeReportsOnceThatARegistryIsBack: that report causes the passes of its users.
func TestAProbeReportsOnceThatARegistryIsBack(t *testing.T) {
	store := memory.New()
	r, _ := probed(t, func() (registry.Connector, error) { return store, nil })
	for _, probe := range []struct {
		fault memory.Fault
		back  int
	}{{memory.None, 0}, {memory.Down, 0}, {memory.None, 1}, {memory.None, 1}} {
		store.Break(probe.fault)
		checktest.Must(r.ReconcileRegistry(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "backup"}}))(t)
		checktest.Same(t, fmt.Sprintf("who is back after a probe with fault %d", probe.fault), probe.back, len(r.back))
	}
}

// TestMetricsOfWhatIsGone forgets a Registration and a Registry.
func TestMetricsOfWhatIsGone(t *testing.T) {
	scraped := prometheus.NewRegistry()
	m := checktest.Must(newMetrics(scraped))(t)
	outcome := plan.Outcome{
		Registration: &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Name: "nginx"}},
		Waiting:      []plan.Waiting{{Pod: "a", Gate: plan.GateInPlaceUpdate, Registry: "discovery", Since: epoch}},
	}
	status := usherv1alpha1.RegistrationStatus{Registries: []usherv1alpha1.RegistryPods{{Name: "discovery"}}}
	show := func(gauges []gauge) { m.registrations.Put(namespace, metricsOf(gauges)) }
	show(gaugesOf(namespace, outcome, status))
	m.released(plan.Release{Gate: plan.GateCreated, Waits: []plan.RegistryWait{{Registry: "discovery", Wait: time.Second}}})
	m.failed("discovery", errors.New("refused"))
	m.orphans.WithLabelValues(namespace, "discovery").Set(1)
	m.removed.WithLabelValues("discovery").Add(1)
	checktest.Same(t, "series", 20, checktest.Must(testutil.GatherAndCount(scraped))(t))
	outcome.Waiting = nil
	show(gaugesOf(namespace, outcome, status))
	checktest.Same(t, "series when nothing waits", 18, checktest.Must(testutil.GatherAndCount(scraped))(t))
	show(nil)
	m.forgetRegistry("discovery")
	checktest.Same(t, "series that are left, those of drains", 7, checktest.Must(testutil.GatherAndCount(scraped))(t))
}

// noted is a queue that notes what is added.
type noted struct {
	queue
	added []string
}

func (n *noted) AddAfter(request ctrl.Request, after time.Duration) {
	n.added = append(n.added, fmt.Sprintf("%s after %s", request.Name, after))
}

// beginPass begins a pass of a reconciler without a client, which panics as soon as it reads.
func beginPass(t *testing.T, r *Reconciler, namespace string) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("the pass did not read")
		}
	}()
	_, _ = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
}

// TestEventsAreGathered: a namespace with many events, or with many Registrations, takes no more of
// the time that events of all namespaces share.
func TestEventsAreGathered(t *testing.T) {
	clock, asked, q := clocktesting.NewFakePassiveClock(epoch), map[string]int{}, &noted{}
	selecting := func(app string) *usherv1alpha1.Registration {
		r := &usherv1alpha1.Registration{}
		r.Spec.Selector.MatchLabels = map[string]usherv1alpha1.LabelValue{"app": usherv1alpha1.LabelValue(app)}
		return r
	}
	r := &Reconciler{clock: clock, answers: registry.NewAnswers(4 << 20), gathered: map[string]time.Time{}, listRegistrations: func(_ context.Context, namespace string) ([]*usherv1alpha1.Registration, error) {
		asked[namespace]++
		if namespace == "crowded" {
			return slices.Repeat([]*usherv1alpha1.Registration{nil}, mostAsked+1), nil // to ask one panics
		}
		return []*usherv1alpha1.Registration{selecting("other"), selecting("web")}, nil
	}}
	event := func(namespace, app string) {
		r.ofPod(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": app}}}, q)
	}
	for range 100 {
		event("flapping", "web")
		event("flapping", "unknown")
	}
	event("calm", "unknown")
	event("calm", "web")
	event("crowded", "unknown")
	clock.SetTime(clock.Now().Add(batchDelay))
	event("flapping", "web")
	r.gather(q, "calm")
	beginPass(t, r, "calm") // earlier than it was asked for, since somebody else asked too
	r.gather(q, "calm")
	want := []string{"flapping after 50ms", "calm after 50ms", "crowded after 50ms", "flapping after 50ms", "calm after 50ms", "calm after 50ms"}
	if !slices.Equal(q.added, want) {
		t.Errorf("passes follow over %q, want %q", q.added, want)
	}
	if asked["flapping"] != 2 || asked["calm"] != 2 || asked["crowded"] != 1 {
		t.Errorf("asked %v", asked)
	}
}

// entryOf returns an entry that can be put.
func entryOf(id string) registry.Entry {
	return registry.Entry{ID: id, Address: "10.0.0.1", Port: 80, Weight: 1, Owner: registry.Owner{Cluster: "here", PodUID: "uid"}}
}

const namespace = "demo"

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestSetChanged: the controller's own write of counters and conditions triggers no pass.
// A write by someone else does, since it may be wrong, and so does everything that a pass
// reads.
func TestSetChanged(t *testing.T) {
	scenariotest.Table(t, "testdata/set-changed.txt", func(t *testing.T, test struct {
		// Answered is the version that this controller's last write produced, Change the change of the
		// event.
		Answered string
		Change   json.RawMessage
	}) string {
		before := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid", Generation: 1, ResourceVersion: "1"}}
		after := before.DeepCopy()
		after.ResourceVersion = "2"
		r, _ := reconcilerOn(server(t))
		if test.Answered != "" {
			own := before.DeepCopy()
			own.ResourceVersion = test.Answered
			r.shared(keyOf(own)).keepAnswer(own)
		}
		checktest.NoError(t, json.Unmarshal(test.Change, after))
		wakes, kept := r.SetChanged(before, after), r.shared(keyOf(before)).answer
		changed := before.ResourceVersion != after.ResourceVersion
		checktest.Same(t, "keeps one version twice", false, changed && kept != nil && kept != after && kept.ResourceVersion == after.ResourceVersion)
		return passOrNone(wakes)
	})
}

func passOrNone(wakes bool) string { return map[bool]string{true: "a pass", false: "no pass"}[wakes] }

// TestWatchedPods: from events come lists of each set's Pods and of each namespace's orphans, in name
// order. A returned list does not change. Pods of other owners are in no list.
func TestWatchedPods(t *testing.T) {
	r, _ := reconcilerOn(server(t))
	events := r.PodEvents()
	another := []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "other", Controller: new(true)}}
	pod := func(name string, owner *apps.CloneSet) *corev1.Pod { return podOf(owner, name, at(name)) }
	expect := func(owner string, want ...*corev1.Pod) []*corev1.Pod {
		t.Helper()
		got, err := r.WatchedPods(t.Context(), "default", owner)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Pods of %s: %v, %v", owner, got, err)
		}
		return got
	}
	a, b, c := pod("a", web()), pod("b", web()), pod("c", nil)
	for _, one := range []*corev1.Pod{b, c, a} {
		queuedBy(t, events, nil, one)
	}
	lent := expect("set", a, b)
	expect(orphanKey, c)
	expect("uid-2")
	adopted, next, lost := pod("c", web()), pod("a", web()), b.DeepCopy()
	lost.OwnerReferences = another
	for before, after := range map[*corev1.Pod]*corev1.Pod{a: next, b: lost, c: adopted} {
		queuedBy(t, events, before, after)
	}
	expect("set", next, adopted)
	expect(orphanKey)
	expect("other")
	for _, one := range []*corev1.Pod{lost, next, adopted} {
		queuedBy(t, events, one, nil)
	}
	if expect("set"); !slices.Equal(lent, []*corev1.Pod{a, b}) || len(r.roster.lists) > 0 {
		t.Errorf("the first list became %v; %d lists are left", lent, len(r.roster.lists))
	}
}

// TestStrangers: a set examines Pods without an owner once, and again when one of them has changed.
func TestStrangers(t *testing.T) {
	r, _ := reconcilerOn(server(t, web(), podOf(nil, "web-a")))
	r.ListPods = r.WatchedPods
	fits := read(t, r.Client, podOf(nil, "web-a"))
	stranger := fits.DeepCopy()
	stranger.Labels = nil
	queuedBy(t, r.PodEvents(), nil, stranger)
	for _, want := range []bool{false, false, true} {
		checktest.NoError(t, r.adoptOrphans(t.Context(), web()))
		checktest.Same(t, "adopted", want, metav1.IsControlledBy(read(t, r.Client, fits), web()))
		if stranger.Labels != nil {
			queuedBy(t, r.PodEvents(), stranger, fits)
		}
		stranger.Labels = fits.Labels // without an event: a second look would see it
	}
}

// TestForeignPods: events of Pods of other controllers cause no pass, and cost nothing but what
// controller-runtime wraps a queue in.
func TestForeignPods(t *testing.T) {
	r, _ := reconcilerOn(server(t))
	events, q := r.PodEvents(), &queued{}
	before := podOf(nil, "a", at("1"))
	before.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", UID: "other", Controller: new(true)}}
	after := before.DeepCopy()
	after.Status.Phase, after.ResourceVersion = corev1.PodRunning, "2"
	allocations := testing.AllocsPerRun(100, func() {
		events.Create(t.Context(), event.CreateEvent{Object: before}, q)
		events.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
		events.Delete(t.Context(), event.DeleteEvent{Object: after}, q)
	})
	if allocations > 2 || len(q.requests) > 0 {
		t.Errorf("%v allocations, passes over %v", allocations, q.requests)
	}
}

// TestOwnerless: a Pod without an owner enqueues the sets that select it when it appears and when its
// labels change, but not at each report of its kubelet.
func TestOwnerless(t *testing.T) {
	r, _ := reconcilerOn(server(t, web()))
	ours, running, strange, next := podOf(nil, "a", at("1")), podOf(nil, "a", at("2")), podOf(nil, "a", at("3")), podOf(nil, "a", at("4"))
	running.Status.Phase, strange.Labels, next.UID = corev1.PodRunning, nil, "next"
	events := [][2]client.Object{{nil, ours}, {ours, running}, {strange, ours}, {ours, strange}, {nil, strange}, {ours, next}}
	wakes := list.Map(events, func(e [2]client.Object) int { return len(queuedBy(t, r.PodEvents(), e[0], e[1]).requests) })
	checktest.Same(t, "how many sets wake when it appears, runs, fits now, fits no longer, never fits, is replaced", []int{1, 0, 1, 0, 0, 1}, wakes)
}

// TestGone: deletions of terminating Pods are batched; that of a Pod that was not
// terminating, or had claims, is reported at once.
func TestGone(t *testing.T) {
	ends := func(p *corev1.Pod) { p.DeletionTimestamp = deletedNow() }
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want time.Duration
	}{
		"on its way out":              {podOf(web(), "web-a", ends), deletionDelay},
		"on its way out, with claims": {podOf(web(), "web-a", ends, mounting("data-web-a")), 0},
		"all of a sudden":             {podOf(web(), "web-a"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reconcilerOn(server(t, web()))
			q := queuedBy(t, r.PodEvents(), test.pod, nil)
			if !slices.Contains(q.after, test.want) || (test.want > 0 && len(q.after) > 1) {
				t.Errorf("passes after %v, want one after %s", q.after, test.want)
			}
		})
	}
}

// queuedBy passes an event to a handler, and returns the queue that the handler has filled. For a
// created object, before is nil; for a deleted one, after is nil.
func queuedBy(t *testing.T, to handler.EventHandler, before, after client.Object) *queued {
	t.Helper()
	q := &queued{}
	switch {
	case before == nil:
		to.Create(t.Context(), event.CreateEvent{Object: after}, q)
	case after == nil:
		to.Delete(t.Context(), event.DeleteEvent{Object: before}, q)
	default:
		to.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
	}
	return q
}

// queued is a queue that records what is added, and when it is due.
type queued struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	requests []reconcile.Request
	after    []time.Duration
}

func (q *queued) Add(request reconcile.Request) { q.AddAfter(request, 0) }
func (q *queued) AddAfter(request reconcile.Request, delay time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: delay}, request)
}

func (q *queued) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	q.requests, q.after = append(q.requests, requests...), append(q.after, o.After)
}

// TestOrder: a set with a changed Pod is next, before sets that came earlier, also if it waited already
// or has a pass; after that pass it has no priority any more. Sets that existed when the controller
// started come last. No set waits twice.
func TestOrder(t *testing.T) {
	r, _ := reconcilerOn(server(t, web()))
	q := priorityqueue.New[reconcile.Request]("")
	defer q.ShutDown()
	before := podOf(web(), "web-a", at("1"))
	after := podOf(web(), "web-a", at("2"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning })
	podChanges := func() {
		r.PodEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
	}
	set := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "default", Name: name}}
	}
	add := func(names ...string) {
		for _, name := range names {
			q.Add(set(name))
		}
	}
	expect := func(want ...string) {
		t.Helper()
		for _, name := range want {
			got, _ := q.Get()
			checktest.Same(t, "the next set", name, got.Name)
			q.Done(got)
		}
		checktest.Same(t, "how many sets are left", 0, q.Len())
	}

	r.PodEvents().Create(t.Context(), event.CreateEvent{Object: before, IsInInitialList: true}, q)
	add("b", "a")
	expect("b", "a", "web")

	add("a", "web", "b")
	podChanges()
	podChanges()
	expect("web", "a", "b")

	podChanges()
	during, priority, _ := q.GetWithPriority()
	add("a")
	podChanges()
	q.Done(during)
	expect("web", "a")

	result := checktest.Must(r.Reconcile(t.Context(), during))(t)
	if priority <= 0 || *result.Priority != 0 {
		t.Errorf("priority %d, and then %d", priority, *result.Priority)
	}
}

const zoneKey = corev1.LabelTopologyZone

func onNode(name string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{NodeName: name}} }

// TestNodeLabels: each node is read once; none if it is not needed.
func TestNodeLabels(t *testing.T) {
	pods := []*corev1.Pod{onNode("n1"), onNode("n1"), onNode("n2"), onNode("gone"), onNode("")}
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	known := server(t, node("n1", map[string]string{zoneKey: "a", corev1.LabelHostname: "n1"}), node("n2", map[string]string{"other": "y"}))
	var fails error
	asked := 0
	r, _ := reconcilerOn(interceptor.NewClient(known, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, at client.ObjectKey, out client.Object, options ...client.GetOption) error {
			asked++
			return cmp.Or(fails, c.Get(ctx, at, out, options...))
		},
	}))
	byZone := []plan.SpreadTerm{{TopologyKey: zoneKey, Selector: labels.Everything()}, {TopologyKey: corev1.LabelHostname, Selector: labels.Everything()}}
	got := checktest.Must(r.nodeLabels(t.Context(), byZone, pods))(t)
	checktest.Same(t, "nodes", map[string]map[string]string{"n1": {zoneKey: "a", corev1.LabelHostname: "n1"}, "n2": {"other": "y"}}, got)
	checktest.Same(t, "how often it asked for 3 nodes", 3, asked)
	for name, terms := range map[string][]plan.SpreadTerm{"no constraint": nil, "host names only": byZone[1:]} {
		if got, err := r.nodeLabels(t.Context(), terms, pods); err != nil || got != nil || asked != 3 {
			t.Errorf("%s: %v, %v after %d reads", name, got, err, asked)
		}
	}
	fails = apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("no"))
	if _, err := r.nodeLabels(t.Context(), byZone, pods); !apierrors.IsForbidden(err) {
		t.Errorf("error = %v, want what the API server said", err)
	}
}

// TestNodeCache: the cache keeps only the fields of a node that are read.
func TestNodeCache(t *testing.T) {
	transform := NodeCache().Transform
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "1", Labels: map[string]string{"zone": "a"}},
		Spec:       corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "k"}}},
		Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"a@sha256:1", "a:1", "b:1"}}}},
	}
	whole := kept.DeepCopy()
	whole.Annotations, whole.ManagedFields = map[string]string{"note": "long"}, []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	whole.Spec.PodCIDR = "10.0.0.0/24"
	whole.Status.Images = []corev1.ContainerImage{{Names: []string{"a@sha256:1", "a:1"}, SizeBytes: 5}, {Names: []string{"b:1"}}}
	checktest.Same[any](t, "what is kept", kept, checktest.Must(transform(whole))(t))
	checktest.Same[any](t, "what is no node", "other", checktest.Must(transform("other"))(t))
}

// TestNodeEvents: the sets with Pods on a node get a pass when Pods are to leave the node, or may stay
// after all, and at no other change of it.
func TestNodeEvents(t *testing.T) {
	scenariotest.Table(t, "testdata/node-events.txt", func(t *testing.T, test struct {
		Leave         plan.LeaveNodes
		Before, After *corev1.Node
	}) string {
		onN1 := func(p *corev1.Pod) { p.Spec.NodeName = "n1" }
		r, _ := reconcilerOn(server(t, web()))
		r.Options.LeaveNodes = test.Leave
		there := []*corev1.Pod{podOf(web(), "web-a", onN1), podOf(web(), "web-b", onN1), podOf(web(), "web-c"), podOf(nil, "bare", onN1)}
		for _, pod := range there {
			queuedBy(t, r.PodEvents(), nil, pod)
		}
		var before client.Object // nil, if there was none
		if test.Before != nil {
			before = test.Before
		}
		q := queuedBy(t, r.NodeEvents(), before, test.After)
		if slices.ContainsFunc(q.requests, func(r reconcile.Request) bool { return r.NamespacedName != keyOf(web()) }) {
			t.Errorf("woke %v", q.requests)
		}
		return passOrNone(len(q.requests) > 0)
	})
}

// TestGoingNodes: only the nodes that Pods leave are read, and only for sets whose Pods a
// hook protects.
func TestGoingNodes(t *testing.T) {
	cordoned := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	r, _ := reconcilerOn(server(t, cordoned, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
	hooked := plan.Spec{Hooks: lifecycle.Hooks{PreDelete: lifecycle.Hook{FinalizersHandler: []string{"example.com/f"}}}}
	for _, test := range []struct {
		leave plan.LeaveNodes
		spec  plan.Spec
		want  int
	}{
		{plan.LeaveCordoned, hooked, 1}, {plan.LeaveCordoned, plan.Spec{}, 0}, {plan.LeaveNever, hooked, 0},
	} {
		r.Options.LeaveNodes = test.leave
		got, err := r.goingNodes(t.Context(), &test.spec)
		if err != nil || len(got) != test.want || (test.want > 0 && got["n1"] == nil) {
			t.Errorf("%s: %v, %v", test.leave, got, err)
		}
	}
}

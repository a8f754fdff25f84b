// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/listing"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// history is a namespace to which anything happens. Like the API server it never changes an
// object in place: each write makes another version.
type history struct {
	*fixture
	random  *rand.Rand
	version int
	// entries are what targets really have.
	entries map[Target][]registry.Entry
	happens []string
}

func newHistory(seed uint64) *history {
	h := &history{fixture: newFixture(), random: rand.New(rand.NewPCG(seed, 3)), entries: map[Target][]registry.Entry{}}
	h.mesh()
	h.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
	h.registry("backup")
	h.registry("service")
	h.Registries["service"] = RegistryState{Prefix: "services", Gated: true, HoldsBack: true}
	h.registry("lb")
	h.Registries["lb"] = RegistryState{Prefix: "services", Follows: true, HoldsBack: true}
	h.registration("web", "service", "lb").Spec.Selector.MatchLabels = map[string]usherv1alpha1.LabelValue{"tier": "web"}
	h.Memory = &Memory{}
	for n := range 6 {
		h.add(fmt.Sprintf("p%d", n), appsv1alpha1.StateNormal)
	}
	return h
}

// one picks something.
func one[T any](h *history, of ...T) T { return of[h.random.IntN(len(of))] }

// onPod changes a Pod.
func onPod(change func(*history, *podBuilder)) func(*history) {
	return func(h *history) {
		n := h.random.IntN(len(h.Pods))
		next := h.Pods[n].DeepCopy()
		change(h, &podBuilder{h.fixture, next})
		h.version++
		next.ResourceVersion = fmt.Sprint("v", h.version)
		h.Pods[n] = next
	}
}

// onRegistration changes a Registration's spec or status.
func onRegistration(change func(*history, *usherv1alpha1.Registration)) func(*history) {
	return func(h *history) {
		n := h.random.IntN(len(h.Registrations))
		next := h.Registrations[n].DeepCopy()
		next.Generation++
		change(h, next)
		h.Registrations[n] = next
	}
}

func (h *history) anyTarget() Target {
	return Target{Registry: one(h, "discovery", "backup", "mesh", "service", "lb"), Prefix: "services", Service: service}
}

// events are what happens; the plan is carried out as often as all others together.
var events = []struct {
	name string
	do   func(*history)
}{
	{"readiness", onPod(func(h *history, b *podBuilder) { b.ready(h.random.IntN(3) > 0) })},
	{"a silent node", onPod(func(_ *history, b *podBuilder) { b.ready(true).lost(0) })},
	{"another state", onPod(func(h *history, b *podBuilder) {
		b.label(appsv1alpha1.LabelLifecycleState, string(one(h, appsv1alpha1.StateNormal, appsv1alpha1.StateNormal,
			appsv1alpha1.StatePreparingNormal, appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdated, appsv1alpha1.StatePreparingDelete)))
	})},
	{"labels", onPod(func(h *history, b *podBuilder) {
		b.label("app", one(h, "nginx", "nginx", "other")).label("track", one(h, "edge", "stable")).label(keyCreated, one(h, "true", "false"))
	})},
	{"an annotation", onPod(func(h *history, b *podBuilder) { b.annotate(one(h, "5", "70", "heavy")) })},
	{"a Pod belongs to a Service", onPod(func(h *history, b *podBuilder) {
		b.label("tier", one(h, "web", "web", "db"))
		b.gate(one(h, "on", "on", "off", "new"))
	})},
	{"the Service's Pods", func(h *history) {
		h.entries[target("service")] = nil
		for i, pod := range h.Pods {
			if h.random.IntN(3) > 0 {
				h.entries[target("service")] = append(h.entries[target("service")], registry.Entry{
					ID: fmt.Sprintf("web-x.%03d", i), Weight: h.random.Int32N(3), Owner: registry.Owner{Pod: pod.Name, PodUID: string(pod.UID)}})
			}
		}
	}},
	{"the load balancer's targets", func(h *history) {
		h.entries[target("lb")] = nil
		for i, pod := range h.Pods {
			h.entries[target("lb")] = append(h.entries[target("lb")], registry.Entry{ID: fmt.Sprintf("web/%03d", i), Address: pod.Status.PodIP,
				Weight: h.random.Int32N(2), Unsettled: one(h, "", "it drains")})
		}
	}},
	{"the load balancer is not asked", func(h *history) {
		h.Followed = map[Target]Followed{target("lb"): {Again: h.Now.Add(time.Second), Stale: h.random.IntN(2) == 0}}
	}},
	{"a deletion", onPod(func(_ *history, b *podBuilder) { b.terminating(0) })},
	{"the guard's label goes", onPod(func(_ *history, b *podBuilder) { delete(b.pod.Labels, usherv1alpha1.LabelGuarded) })},
	{"finalizers go", onPod(func(_ *history, b *podBuilder) { b.pod.Finalizers = nil })},
	{"a Pod goes", func(h *history) { h.Pods = slices.Delete(slices.Clone(h.Pods), 0, min(1, len(h.Pods))) }},
	{"a Pod comes", func(h *history) {
		h.version++
		b := h.add(fmt.Sprintf("q%03d", h.version), appsv1alpha1.StateNormal)
		b.pod.ResourceVersion = fmt.Sprint("v", h.version)
	}},
	{"an entry is lost", func(h *history) { h.entries[h.anyTarget()] = nil }},
	{"an entry is changed", func(h *history) {
		for i, e := range h.entries[h.anyTarget()] {
			change := one(h, func() { e.Weight = 0 }, func() { e.Unsettled = "sessions" }, func() { e.Owner.Registration = "second" },
				func() { e.Owner.Cluster = "another" }, func() { e.Metadata = map[string]string{"by": "hand"} })
			change()
			t := h.anyTarget()
			h.entries[t] = append(slices.Clone(h.entries[t]), e)
			if i == 1 {
				break
			}
		}
	}},
	{"a policy", onRegistration(func(h *history, r *usherv1alpha1.Registration) {
		r.Spec.OnInPlaceUpdate = one(h, usherv1alpha1.InPlaceUpdateStay, usherv1alpha1.InPlaceUpdateFailOver, usherv1alpha1.InPlaceUpdateDeregister)
	})},
	{"weights from Pods", onRegistration(func(h *history, r *usherv1alpha1.Registration) {
		r.Spec.Instance.WeightFrom = one(h, nil, weightFrom())
	})},
	{"other registries", onRegistration(func(h *history, r *usherv1alpha1.Registration) {
		r.Spec.Registries = []string{one(h, "discovery", "backup", "mesh")}
	})},
	{"other targets", onRegistration(func(h *history, r *usherv1alpha1.Registration) { r.Status.Targets = []Target{h.anyTarget()} })},
	{"a Registration is deleted, or is not", onRegistration(func(h *history, r *usherv1alpha1.Registration) {
		r.DeletionTimestamp = one(h, nil, nil, &metav1.Time{Time: h.Now})
	})},
	{"a Registry", func(h *history) {
		h.Registries[one(h, "discovery", "backup", "mesh")] = one(h, RegistryState{Prefix: "services"}, RegistryState{Prefix: "services"},
			RegistryState{Prefix: "services", HoldsBack: true}, RegistryState{Prefix: "services", Leaving: true},
			RegistryState{Prefix: "services", Denied: true}, RegistryState{Prefix: "services", Err: errors.New("down")},
			RegistryState{Prefix: "services", Outage: Outage{From: h.Now.Add(-time.Minute)}})
	}},
	{"a request to delete a Pod", onPod(func(h *history, b *podBuilder) {
		b.requested(time.Duration(h.random.IntN(240))*time.Second, func(r *usherv1alpha1.DeletionRequest) {
			r.Eviction, r.Named = h.random.IntN(3) > 0, h.random.IntN(4) == 0
		})
	})},
	{"a request is over", onPod(func(_ *history, b *podBuilder) { delete(b.pod.Annotations, usherv1alpha1.AnnotationDeletionRequest) })},
	{"budgets", func(h *history) {
		h.Budgets = nil
		for range h.random.IntN(3) {
			h.budget(h.random.Int32N(3))
		}
	}},
	{"a hook of the CloneSet", func(h *history) {
		set := h.CloneSets[0].DeepCopy()
		set.Generation++
		set.Spec.Lifecycle.PreNormal = one(h, nil, &appsv1alpha1.LifecycleHook{LabelsHandler: map[string]string{keyPreNormal: "true"}})
		h.CloneSets = []*appsv1alpha1.CloneSet{set}
	}},
	{"time", func(h *history) { h.Now = h.Now.Add(time.Duration(h.random.IntN(20)) * time.Second) }},
}

// carryOut does what a plan says, or some of it.
func (h *history) carryOut(t *testing.T, p Plan) {
	t.Helper()
	for _, c := range p.Changes {
		entries := slices.Clone(h.entries[c.Target])
		for _, change := range slices.Concat(c.Leaves, c.Orphans, c.Joins) {
			entries = slices.DeleteFunc(entries, func(e registry.Entry) bool { return e.ID == change.Entry.ID })
			if change.Op == registry.Put {
				h.version++
				change.Entry.Version = fmt.Sprint(h.version)
				entries = append(entries, change.Entry)
			}
		}
		h.entries[c.Target] = entries
	}
	for i, object := range h.Pods {
		for _, patch := range slices.Concat(p.Protect, p.Patches) {
			if patch.Pod.UID == object.UID {
				h.Pods[i] = h.patched(t, h.Pods[i], patch)
			}
		}
	}
}

// patched is what the API server makes of a Pod.
func (h *history) patched(t *testing.T, pod *corev1.Pod, patch PodPatch) *corev1.Pod {
	t.Helper()
	next := &corev1.Pod{}
	data := checktest.Must(strategicpatch.StrategicMergePatch(encode.JSON(pod), patch.Encode(), next))(t)
	checktest.NoError(t, json.Unmarshal(data, next))
	h.version++
	next.ResourceVersion = fmt.Sprint("v", h.version)
	return next
}

// list lists some targets as they are, some not at all, and one perhaps with an error.
func (h *history) list(needs []Target) {
	h.Listings, h.Failed = map[Target]Listing{}, map[Target]map[string]error{}
	for _, t := range needs {
		switch h.random.IntN(8) {
		case 0:
		case 1:
			h.Listings[t] = Listing{Err: one(h, errors.New("down"), errors.New("down"), registry.NoService(registry.Permanent(errors.New("there is none"))))}
		case 2:
			h.Failed[t] = map[string]error{one(h, "", EntryID(h.Pods[0])): errors.New("refused")}
			fallthrough
		default:
			h.Listings[t] = Listing{Entries: slices.Concat([]registry.Entry{}, h.entries[t]), Selector: map[string]string{"tier": "web"}}
		}
	}
}

// TestMemoryChangesNoPlan lets anything happen to a namespace: what is planned with a memory
// of the past is always what is planned from scratch.
func TestMemoryChangesNoPlan(t *testing.T) {
	rested, planned, missed := 0, 0, 0
	for seed := range uint64(150) {
		h := newHistory(seed)
		for range 60 {
			event := one(h, events...)
			h.happens = append(h.happens, event.name)
			event.do(h)
			if len(h.Pods) == 0 {
				break
			}
			h.Sweep = map[Target]bool{h.anyTarget(): h.random.IntN(3) == 0}
			h.list(nil)
			Outdated(h.Snapshot)
			needs := Needs(h.Snapshot)
			h.agree(t, "targets to list", needs, Needs(h.scratch()))
			h.agree(t, "targets", Targets(h.Snapshot), Targets(h.scratch()))
			h.list(needs)
			plan := Make(h.Snapshot)
			h.agree(t, "plan", plan, Make(h.scratch()))
			h.Unlisted = plan.Unlisted
			missed += len(plan.Unlisted)
			for _, p := range h.Memory.index.pods {
				planned++
				if p.idle != nil {
					rested++
				}
			}
			if h.random.IntN(3) > 0 {
				h.carryOut(t, plan)
			}
			h.sized(t)
			if h.random.IntN(3) > 0 {
				h.Memory.Release()
			}
			if h.random.IntN(20) == 0 {
				h.Memory.Forget()
			}
		}
	}
	if rested*8 < planned {
		t.Errorf("%d of %d Pods were idle: the test proves too little", rested, planned)
	}
	if missed < 1000 {
		t.Errorf("%d Pods were not in their Service: the test proves too little", missed)
	}
}

// sized checks what the memory says that it keeps: as much as a new one that has listed the same.
func (h *history) sized(t *testing.T) {
	t.Helper()
	var want int64
	for target, l := range h.Memory.index.listings {
		listed := list.Map(l.Entries(), func(e *registry.Entry) registry.Entry { return *e })
		want += listing.Update(nil, listed, h.Memory.index.keyOf(target)).Size()
	}
	h.agree(t, "size", h.Memory.Size(), want)
}

// scratch is the snapshot without its memory.
func (h *history) scratch() Snapshot {
	s := h.Snapshot
	s.Memory = nil
	return s
}

func (h *history) agree(t *testing.T, what string, have, want any) {
	t.Helper()
	if !reflect.DeepEqual(have, want) {
		t.Fatalf("after %s the %s differ (-from scratch +from memory):\n%s", strings.Join(h.happens, ", "), what,
			cmp.Diff(want, have, cmp.Exporter(func(reflect.Type) bool { return true }), cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })))
	}
}

// FuzzAnnotations plans for a Pod whose annotations anybody may have written who may edit Pods: as
// long as a registry lists it, nothing lets it go.
func FuzzAnnotations(f *testing.F) {
	f.Add(`{"gate":"inPlaceUpdate","began":"2026-03-01T11:00:00Z","gone":{"nginx@discovery/services/nginx":"2026-03-01T11:00:00Z"},`+
		`"until":"2026-03-01T11:00:05Z"}`, "nginx", "2026-03-01T11:59:00Z", `{"user":"me","eviction":true}`, `{"cost":7}`)
	f.Add(`{"gone":null,"until":"9999-12-31T23:59:59Z"}`, ",other,", "yesterday", "{", `{"cost":-1,"at":"9999-12-31T23:59:59Z"}`)
	f.Add(`{"gate":"inPlaceUpdate","process":"other","at":"2026-03-01T11:00:00Z","until":"9999-12-31T23:59:59Z"}`, "nginx", "", "", "{")
	f.Fuzz(func(t *testing.T, drain, registrations, entered, request, scaleIn string) {
		s := newFixture()
		s.add("nginx-a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
		pod := s.Pods[0]
		pod.Annotations = map[string]string{
			usherv1alpha1.AnnotationDrain: drain, usherv1alpha1.AnnotationRegistrations: registrations,
			appsv1alpha1.AnnotationLifecycleTimestamp: entered, usherv1alpha1.AnnotationDeletionRequest: request,
			usherv1alpha1.AnnotationScaleIn: scaleIn, corev1.PodDeletionCost: "7",
		}
		s.orderedBesideIdle()
		s.Registrations[0].Spec.Drain.OnDeadline = usherv1alpha1.DeadlineBlock
		for _, patch := range Make(s.Snapshot).Patches {
			if len(patch.Released)+len(patch.RemoveFinalizers) > 0 {
				t.Errorf("it is let go: %+v", patch)
			}
			patch.Encode()
		}
	})
}

// orderedBesideIdle has all Pods of the fixture ordered for a scale-in, with an idle one of the same owner.
func (f *fixture) orderedBesideIdle() {
	f.Registrations[0].Spec.ScaleInOrder = usherv1alpha1.ScaleInIdleFirst
	f.Registrations[0].Spec.Drain.Until = &usherv1alpha1.Until{HTTP: &usherv1alpha1.UntilHTTP{Port: intstr.FromInt32(80)}}
	other := f.add("nginx-b", appsv1alpha1.StateNormal).registered("discovery").pod
	f.Pods[0].OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "nginx", UID: "uid-owner", Controller: new(true)}}
	other.OwnerReferences = f.Pods[0].OwnerReferences
	f.Answers = map[AskKey]Answer{
		{f.Pods[0].UID, "nginx"}: {At: epoch, UnderWay: new(int64(9))}, {other.UID, "nginx"}: {At: epoch, IdleSince: ago("20s")},
	}
}

// BenchmarkPass asks all that a pass over 5,000 Pods asks, of which one has changed since the
// pass before: with and without a memory, with and without a listing, as in a rollout.
func BenchmarkPass(b *testing.B) {
	for _, memory := range []*Memory{nil, {}} {
		for _, listed := range []bool{false, true} {
			b.Run(fmt.Sprintf("memory %t, listed %t", memory != nil, listed), func(b *testing.B) {
				f := newFixture()
				f.Memory, f.Registrations[0].Spec.Instance.WeightFrom = memory, weightFrom()
				for n := range 5_000 {
					f.add(fmt.Sprintf("nginx-%05d", n), appsv1alpha1.StateNormal).annotate("10").registered("discovery")
				}
				listing := f.Listings[target("discovery")]
				for version := 2; b.Loop(); version++ {
					next := f.Pods[2_500].DeepCopy()
					next.ResourceVersion, next.Labels["track"] = fmt.Sprint(version), fmt.Sprint(version)
					f.Pods[2_500] = next
					f.pass(listed, listing.Entries)
				}
			})
		}
	}
}

// pass asks what a pass asks.
func (f *fixture) pass(listed bool, entries []registry.Entry) {
	f.Listings = map[Target]Listing{}
	Outdated(f.Snapshot)
	Targets(f.Snapshot)
	Needs(f.Snapshot)
	if listed {
		f.Listings[target("discovery")] = Listing{Entries: slices.Clone(entries)}
		Make(f.Snapshot)
	}
	Make(f.Snapshot)
	if f.Memory != nil {
		f.Memory.Release()
	}
}

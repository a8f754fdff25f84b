// SPDX-License-Identifier: Apache-2.0

package plan

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Keys and names of the fixtures.
const (
	keyCreated   = "example.com/newly-create"
	keyPreNormal = "example.com/traffic-online"
	keyInPlace   = "example.com/unready-blocker-inplace"
	keyDelete    = "example.com/unready-blocker-delete"

	here      = "cluster-here"
	namespace = "demo"
	service   = "nginx"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixture is a snapshot under construction: Registration nginx brings the Pods
// of CloneSet nginx into Registry discovery.
type fixture struct {
	Snapshot
}

func newFixture() *fixture {
	f := &fixture{Snapshot{
		Now: epoch, Cluster: here, Namespace: namespace,
		Registries: map[string]RegistryState{}, Known: map[string]bool{}, Listings: map[Target]Listing{},
		Due: map[Target]bool{}, Sweep: map[Target]bool{}, Suspects: map[Target]map[string]bool{},
		Owners: map[OwnerRef]Owner{}, Nodes: map[string]Node{}, Finish: true,
	}}
	f.registry("discovery")
	f.registration("nginx", "discovery")
	f.CloneSets = []*appsv1alpha1.CloneSet{fixtureProps().CloneSet.DeepCopy()}
	return f
}

func target(name string) Target { return Target{Registry: name, Prefix: "services", Service: service} }

// registry adds a Registry that is up and empty.
func (f *fixture) registry(name string) {
	f.Registries[name] = RegistryState{Prefix: "services"}
	f.Listings[target(name)] = Listing{Entries: []registry.Entry{}}
}

//go:embed testdata/fixture.yaml
var fixtureYAML []byte

// props are what a fixture is made of. Unnamed is for a Registration that names no hook.
type props struct {
	Registration usherv1alpha1.Registration
	CloneSet     appsv1alpha1.CloneSet
	Unnamed      appsv1alpha1.Lifecycle
	Pod          corev1.Pod
}

var fixtureProps = sync.OnceValue(func() *props {
	var p props
	if err := yaml.UnmarshalStrict(fixtureYAML, &p); err != nil {
		panic(err) // The tests' own text.
	}
	return &p
})

// registration adds one that answers every hook and has been at work already.
func (f *fixture) registration(name string, registries ...string) *usherv1alpha1.Registration {
	r := fixtureProps().Registration.DeepCopy()
	r.Name, r.UID, r.Spec.Registries = name, types.UID("uid-"+name), registries
	for _, name := range registries {
		r.Status.Targets = append(r.Status.Targets, target(name))
		f.recordUser(name, namespace, service)
	}
	f.Registrations = append(f.Registrations, r)
	f.Known[namespace+"/"+name] = true
	return r
}

// recordUser records that a namespace has entries in a service.
func (f *fixture) recordUser(name, namespace, service string) {
	state := f.Registries[name]
	state.Users = append(state.Users, usherv1alpha1.RegistryUser{Namespace: namespace, Prefix: "services", Service: service})
	f.Registries[name] = state
}

// mesh adds Registration second, which selects by another label.
func (f *fixture) mesh() {
	f.registry("mesh")
	f.registration("second", "mesh").Spec.Selector.MatchLabels = map[string]usherv1alpha1.LabelValue{"track": "edge"}
}

// orphan is an entry of usherv1alpha1.Finalizer whose Pod is not known.
func orphan(name string) registry.Entry {
	return registry.Entry{ID: namespace + "." + name, Address: "10.9.9.9", Port: 80, Weight: 10, Version: "3",
		Owner: registry.Owner{Cluster: here, Namespace: namespace, Registration: "nginx", Pod: name, PodUID: "uid-" + name}}
}

// pod is a Pod that is there.
func (f *fixture) pod(name string) *podBuilder {
	at := slices.IndexFunc(f.Pods, func(p *corev1.Pod) bool { return p.Name == name })
	return &podBuilder{f, f.Pods[at]}
}

// budget adds a PodDisruptionBudget for all Pods.
func (f *fixture) budget(allowed int32) {
	f.Budgets = append(f.Budgets, &policyv1.PodDisruptionBudget{
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	})
}

// podBuilder builds Pods of the CloneSet.
type podBuilder struct {
	f   *fixture
	pod *corev1.Pod
}

// add puts a ready Pod into the snapshot: not registered, hooks in place.
func (f *fixture) add(name string, state appsv1alpha1.LifecycleState) *podBuilder {
	pod := fixtureProps().Pod.DeepCopy()
	pod.Name, pod.UID, pod.Status.PodIP = name, types.UID("uid-"+name+"-0000"), "10.0.0."+fmt.Sprint(len(f.Pods)+1)
	if state != "" {
		pod.Labels[appsv1alpha1.LabelLifecycleState] = string(state)
	}
	b := &podBuilder{f, pod}
	f.Pods = append(f.Pods, pod)
	return b.ready(true)
}

// truth is the status of a condition.
var truth = map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}

func (b *podBuilder) ready(ready bool) *podBuilder {
	b.condition(corev1.ContainersReady, truth[ready])
	return b.condition(corev1.PodReady, truth[ready])
}

func (b *podBuilder) condition(kind corev1.PodConditionType, status corev1.ConditionStatus) *podBuilder {
	b.pod.Status.Conditions = slices.DeleteFunc(b.pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == kind })
	b.pod.Status.Conditions = append(b.pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status})
	return b
}

func (b *podBuilder) label(key, value string) *podBuilder {
	b.pod.Labels[key] = value
	return b
}

func (b *podBuilder) finalizers(names ...string) *podBuilder {
	b.pod.Finalizers = append(b.pod.Finalizers, names...)
	if slices.Contains(names, usherv1alpha1.Finalizer) {
		b.label(usherv1alpha1.LabelGuarded, "true")
	}
	return b
}

// listed is the Pod's entry in discovery.
func (b *podBuilder) listed() *registry.Entry {
	entries := b.f.Listings[target("discovery")].Entries
	return &entries[slices.IndexFunc(entries, func(e registry.Entry) bool { return e.ID == EntryID(b.pod) })]
}

// annotation gives the Pod one more.
func (b *podBuilder) annotation(key, value string) {
	metav1.SetMetaDataAnnotation(&b.pod.ObjectMeta, key, value)
}

// annotate puts a value where weightPath reads it.
func (b *podBuilder) annotate(value string) *podBuilder {
	b.pod.Annotations = map[string]string{"example.com/weight": value}
	return b
}

// named makes the Pod say which Registrations may have entries of it.
func (b *podBuilder) named(names string) { b.annotation(usherv1alpha1.AnnotationRegistrations, names) }

// lost is a Pod whose node fell silent some time ago.
func (b *podBuilder) lost(ago time.Duration) {
	b.condition(corev1.PodReady, corev1.ConditionFalse)
	last := len(b.pod.Status.Conditions) - 1
	b.pod.Status.Conditions[last].LastTransitionTime = metav1.NewTime(epoch.Add(-ago))
}

// terminating is a Pod that somebody deleted some time ago.
func (b *podBuilder) terminating(ago time.Duration) {
	grace := int64(30)
	at := metav1.NewTime(epoch.Add(-ago + 30*time.Second))
	b.pod.DeletionTimestamp, b.pod.DeletionGracePeriodSeconds = &at, &grace
}

// requested gives the Pod a request for its deletion that was made so long ago.
func (b *podBuilder) requested(ago time.Duration, change ...func(*usherv1alpha1.DeletionRequest)) {
	at := metav1.NewMicroTime(epoch.Add(-ago))
	request := usherv1alpha1.DeletionRequest{Since: at, At: at, By: "ann"}
	for _, c := range change {
		c(&request)
	}
	b.annotation(usherv1alpha1.AnnotationDeletionRequest, string(encode.JSON(request)))
}

// in puts the Pod's entry into registries, as the Registration nginx would.
func (b *podBuilder) in(registries ...string) *podBuilder {
	for _, name := range registries {
		b.f.seed(name, b.entry("nginx"))
	}
	return b
}

// registered is a Pod whose registration is all done.
func (b *podBuilder) registered(registries ...string) *podBuilder {
	return b.finalizers(usherv1alpha1.Finalizer).in(registries...).
		condition(usherv1alpha1.ConditionRegistered, corev1.ConditionTrue)
}

func (b *podBuilder) entry(registration string) registry.Entry {
	return registry.Entry{
		ID: EntryID(b.pod), Address: b.pod.Status.PodIP, Port: 80, Weight: 10, Version: "7",
		Owner: registry.Owner{
			Cluster: here, Namespace: namespace, Registration: registration,
			Pod: b.pod.Name, PodUID: string(b.pod.UID),
		},
	}
}

func (f *fixture) seed(name string, entries ...registry.Entry) {
	listing := f.Listings[target(name)]
	listing.Entries = append(listing.Entries, entries...)
	f.Listings[target(name)] = listing
}

// inService makes Registration nginx one of a Service, and of the other registries.
func (f *fixture) inService(others ...string) {
	f.registry("service")
	f.Registries["service"] = RegistryState{Prefix: "services", Gated: true, HoldsBack: true}
	r := f.Registrations[0]
	r.Spec.Registries = append([]string{"service"}, others...)
	r.Status.Targets = list.Map(r.Spec.Registries, target)
}

// gate gives the Pod the readiness gate, on, off or new, and what the kubelet answers.
func (b *podBuilder) gate(turn string) {
	b.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usherv1alpha1.ConditionRegistered}}
	if turn == "on" {
		b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionTrue)
		return
	}
	if turn == "off" {
		b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
	}
	podread.Condition(b.condition(corev1.PodReady, corev1.ConditionFalse).pod, corev1.PodReady).Reason = reasonGates
}

const weightPath = "metadata.annotations['example.com/weight']"

func weightFrom() *usherv1alpha1.PodSource {
	return &usherv1alpha1.PodSource{FieldRef: usherv1alpha1.FieldRef{FieldPath: weightPath}}
}

// render tells a plan in lines that read as prose.
func render(p Plan) []string {
	lines := list.Map(p.Protect, func(patch PodPatch) string { return "protect " + renderPatch(&patch) })
	for _, c := range p.Changes {
		lines = append(lines, renderChanges(c)...)
	}
	lines = append(lines, list.Map(p.Patches, func(patch PodPatch) string { return "patch " + renderPatch(&patch) })...)
	lines = append(lines, list.Map(p.Finishes, renderFinish)...)
	lines = append(lines, list.Map(p.Responses, renderResponse)...)
	for _, a := range p.Asks {
		for _, c := range a.Checks {
			line := fmt.Sprintf("ask %s at %s%s for %s", a.Pod, c.At, c.Path, a.Registration)
			if a.Serves {
				line += " every " + a.Every.String()
			}
			lines = append(lines, line)
		}
	}
	for _, w := range p.Waiting {
		line := strings.Join([]string{"wait", w.Pod, string(w.Gate), w.Registry, string(w.Reason)}, " ")
		if w.Overdue {
			line += " overdue"
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if !p.RequeueAt.IsZero() {
		lines = append(lines, "again in "+p.RequeueAt.Sub(epoch).String())
	}
	return lines
}

// renderChanges tells the changes of a target.
func renderChanges(c Changes) (lines []string) {
	for _, change := range slices.Concat(c.Leaves, c.Joins) {
		verb := string(change.Op)
		if change.Op == registry.Put && change.Entry.Weight == 0 {
			verb = "hold"
		}
		line := fmt.Sprintf("%s %s %s", verb, c.Target.Registry, change.Entry.Owner.Pod)
		if call, asked := c.Calls[change.Entry.ID]; asked {
			line += fmt.Sprintf(" by %s %s%s %s", call.Method, call.At, call.Path, call.Body)
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	for _, change := range c.Orphans {
		lines = append(lines, fmt.Sprintf("sweep %s %s", c.Target.Registry, change.Entry.Owner.Pod))
	}
	return lines
}

func renderPatch(p *PodPatch) string {
	words := []string{p.Pod.Name + ":"}
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		short := strings.TrimPrefix(key, "example.com/")
		if p.Labels[key] == nil {
			words = append(words, "-"+short)
		} else {
			words = append(words, short+"="+*p.Labels[key])
		}
	}
	words = append(words, list.Map(p.AddFinalizers, func(name string) string { return "+" + name })...)
	words = append(words, list.Map(p.RemoveFinalizers, func(name string) string { return "-" + name })...)
	if p.Asked != nil {
		words = append(words, "asked("+*p.Asked+")")
	}
	if p.Registrations != nil {
		words = append(words, "in("+*p.Registrations+")")
	}
	switch {
	case p.Drain != nil:
		words = append(words, renderRecord(p.Drain))
	case p.DropDrain:
		words = append(words, "-drain")
	}
	words = append(words, renderCost(p.cost)...)
	if p.TakenBack != nil {
		words = append(words, strings.TrimSuffix("taken back: "+p.TakenBack.Because, ": "))
	}
	if p.Condition != nil {
		words = append(words, renderCondition(p.Condition))
	}
	return strings.Join(append(words, renderForced(p.Released)...), " ")
}

func renderResponse(r Responding) string {
	what := "completed"
	if r.Completed.IsZero() {
		what = "heartbeat"
	}
	if r.Heartbeat.After(epoch) {
		what += " " + r.Heartbeat.Sub(epoch).String() + " from now"
	}
	if r.Expected.After(r.Heartbeat) {
		what += ", to end in " + r.Expected.Sub(epoch).String()
	}
	return fmt.Sprintf("answer %s: %s: %s", r.Eviction.Pod, what, r.Message)
}

func renderCost(c *costChange) (words []string) {
	switch {
	case c == nil:
		return nil
	case c.set != nil:
		return []string{fmt.Sprintf("cost(%d)", c.set.Class)}
	case c.keep:
		return []string{"-scale-in"}
	}
	return []string{"-cost"}
}

func renderFinish(f Finish) string {
	past := map[bool]string{true: ", past budgets"}[f.PastBudget]
	line := fmt.Sprintf("delete %s: %s%s", f.Pod.Name, f.Because, past)
	if f.Request.Deadline != nil {
		line += fmt.Sprintf(", within %d s", *f.Request.GracePeriodSeconds)
	}
	if f.Undrained {
		line += ", drained or not"
	}
	return line
}

func renderForced(released []Release) (words []string) {
	for _, r := range released {
		if len(r.Forced) > 0 {
			words = append(words, "forced("+strings.Join(r.Forced, ",")+")")
		}
		words = append(words, list.Map(r.Busy, func(busy string) string { return "busy(" + busy + ")" })...)
	}
	return words
}

func renderCondition(c *corev1.PodCondition) string {
	if c.Reason == ReasonRegistered || c.Reason == ReasonDeregistered {
		return "registered=" + string(c.Status)
	}
	return "registered=" + string(c.Status) + "(" + c.Reason + ")"
}

func renderRecord(r *Record) string {
	var gone []string
	for key, at := range r.Gone {
		name, _, _ := strings.Cut(strings.SplitN(key, "@", 2)[1], "/")
		gone = append(gone, name+" "+epoch.Sub(at).String())
	}
	slices.Sort(gone)
	if !r.Free.IsZero() {
		gone = append(gone, "free "+epoch.Sub(r.Free).String())
	}
	if r.UnderWay != nil {
		gone = append(gone, fmt.Sprintf("%d under way", *r.UnderWay))
	}
	return fmt.Sprintf("drain(%s %s: %s)", r.Gate, epoch.Sub(r.Began), strings.Join(gone, ", "))
}

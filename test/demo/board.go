// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/view"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// board has the objects of the cluster and the entries of the registry, and the view that people have
// of them. Changes of the view are logged.
type board struct {
	stage.Watched
	now     func() time.Time
	started time.Time
	log     func(...string)

	phase     string
	objects   map[string]client.Object // by type and name
	entries   map[string]bool          // in the registry, by address
	workloads map[string]*view.Workload
	pods      map[string]*pod
	lanes     map[string]*lane  // by Pod
	reported  map[string]string // by Pod: the long wait that was logged last
	losses    []loss
	logged    int // counts the losses

	recorder *page.Recorder
	server   *page.Server // shows the recording while it is made
	marks    []page.Mark  // of the whole run, since it was last recorded
	recorded int          // counts the losses
	ended    bool         // the recording
}

// pod is a Pod in the view, with facts that only its node knows.
type pod struct {
	view.Pod
	set, address string
	version      string    // of the program that it runs; empty if none yet
	moved        time.Time // when it joined or left its registry; zero if it did not yet
}

func (p *pod) listed() bool { return len(p.Entries) > 0 && p.Entries[0].Listed == "True" }

// lane is what the board keeps of a Pod that is gone.
type lane struct {
	set, address  string
	seen, leaving time.Time // when it got the address, and in which second it was deleted
}

// loss is a lost request to a workload.
type loss struct {
	traffic.Loss
	of story
}

const (
	terminating = "Terminating"
	// longWait is how long a wait lasts before it is logged.
	longWait = 3 * time.Second
	// recent is how recent a registry change must be to be mentioned with another change.
	recent = time.Minute
	// subjectWidth is the width of the log's second column: Pod names fit.
	subjectWidth = 26
)

func newBoard(now func() time.Time, log func(...string), server *page.Server) *board {
	started := now()
	b := &board{
		now: now, started: started, log: log, recorder: page.NewRecorder(started, "Usher's demo", 0), server: server,
		objects: map[string]client.Object{}, entries: map[string]bool{},
		pods: map[string]*pod{}, lanes: map[string]*lane{}, reported: map[string]string{},
	}
	server.Follow(b.recorder)
	return b
}

// say logs a line with the time.
func (b *board) say(format string, args ...any) {
	b.log(fmt.Sprintf("%6.1fs  ", b.now().Sub(b.started).Seconds()) + fmt.Sprintf(format, args...))
}

// begin begins a phase.
func (b *board) begin(phase string) {
	b.Change(func() {
		b.phase = phase
		b.marks = append(b.marks, page.Mark{At: b.recorder.Since(b.now()), Kind: page.MarkPhase, Text: phase[strings.Index(phase, " ")+1:]})
	})
	b.say("━━ %s", phase)
}

// sayOf logs a sentence about an object, unless it is empty.
func (b *board) sayOf(name, sentence string) {
	if sentence != "" {
		b.say("%-*s  %s", subjectWidth, namespace+"/"+name, sentence)
	}
}

// watched returns what the board watches.
func (b *board) watched() (all []stage.Follow) {
	for _, kind := range []client.Object{
		&corev1.Pod{}, &appsv1alpha1.CloneSet{}, &appsv1.ControllerRevision{}, &appsv1.Deployment{}, &usherv1alpha1.Registration{},
	} {
		all = append(all, stage.On(kind, b.is, b.isGone))
	}
	return all
}

func key(o client.Object) string { return fmt.Sprintf("%T %s", o, o.GetName()) }

func (b *board) is(o client.Object) {
	b.change(cmp.Or(ownerOf(o), o.GetName()), func() { b.objects[key(o)] = o })
}

func (b *board) isGone(o client.Object) {
	b.change(cmp.Or(ownerOf(o), o.GetName()), func() { delete(b.objects, key(o)) })
}

// registryChanged receives registry changes from a traffic client.
func (b *board) registryChanged(address string, joined bool) {
	b.change("", func() { b.entries[address] = joined })
}

// all returns the objects of a type in name order.
func all[T client.Object](b *board) (found []T) {
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if o, ok := b.objects[key].(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// change makes a change of a workload ("" is all) and logs what it did to Pods.
func (b *board) change(set string, change func()) {
	b.Change(func() {
		before := b.pods
		change()
		b.look(set)
		b.record()
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if b.pods[name] == nil {
				b.sayOf(name, "is gone"+before[name].note(b.now()))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(b.pods)) {
			b.sayOf(name, changes(before[name], b.pods[name], b.now()))
		}
	})
}

// byWorkload returns all objects by the name of their workload.
func (b *board) byWorkload() map[string]*view.Objects {
	objects := map[string]*view.Objects{}
	of := func(name string) *view.Objects {
		if objects[name] == nil {
			objects[name] = &view.Objects{Now: b.now(), Registrations: all[*usherv1alpha1.Registration](b)}
		}
		return objects[name]
	}
	for _, set := range all[*appsv1alpha1.CloneSet](b) {
		of(set.Name).Set = set
	}
	for _, d := range all[*appsv1.Deployment](b) {
		of(d.Name).Other = view.SummaryOf(d)
	}
	for _, r := range all[*appsv1.ControllerRevision](b) {
		if o := objects[ownerOf(r)]; o != nil {
			o.Revisions = append(o.Revisions, r)
		}
	}
	for _, pod := range all[*corev1.Pod](b) {
		o := of(ownerOf(pod))
		o.Pods = append(o.Pods, pod)
	}
	return objects
}

// look updates the view of a workload; "" means all.
func (b *board) look(set string) {
	pods, workloads := b.pods, b.workloads
	b.pods, b.workloads = map[string]*pod{}, map[string]*view.Workload{}
	for name, o := range b.byWorkload() {
		if was := workloads[name]; set != "" && name != set && was != nil {
			b.workloads[name] = was
			for _, member := range was.Members {
				b.pods[member.Name] = pods[member.Name]
			}
			continue
		}
		w := view.Of(*o)
		b.workloads[name] = &w
		for i, member := range w.Members {
			b.pods[member.Name] = b.pod(name, member, o.Pods[i], pods[member.Name])
			w.Members[i] = b.pods[member.Name].Pod
		}
	}
	for name, before := range workloads {
		now := cmp.Or(b.workloads[name], &view.Workload{})
		if b.workloads[name] = now; now.Kind == "" { // It is gone, but its record stays.
			now.Summary = view.Summary{Kind: before.Kind, Namespace: before.Namespace, Name: before.Name, Phase: view.PhaseDeleting}
		}
	}
}

// ownerOf returns the workload of a Pod or a revision. A Deployment owns Pods through its ReplicaSets,
// whose names end in a label of the Pod.
func ownerOf(o client.Object) string {
	owner := metav1.GetControllerOf(o)
	if owner == nil {
		return ""
	}
	return strings.TrimSuffix(owner.Name, "-"+o.GetLabels()[appsv1.DefaultDeploymentUniqueLabelKey])
}

func (b *board) pod(set string, member view.Pod, object *corev1.Pod, before *pod) *pod {
	p := &pod{Pod: member, set: set, version: stage.Version(object)}
	if object.Status.PodIP == "" {
		return p
	}
	p.address = net.JoinHostPort(object.Status.PodIP, port)
	// The registry itself is more up to date than the Pod.
	p.Entries = []view.Entry{{Registry: "discovery", Listed: map[bool]corev1.ConditionStatus{true: "True", false: "False"}[b.entries[p.address]]}}
	was := before != nil && before.listed()
	if before != nil {
		p.moved = before.moved
	}
	if was != p.listed() {
		p.moved = b.now()
	}
	if b.lanes[p.Name] == nil {
		b.lanes[p.Name] = &lane{set: set, address: p.address, seen: b.now()}
	}
	if l := b.lanes[p.Name]; p.State == terminating && l.leaving.IsZero() {
		// The time in the Pod is better than the present, since the event may be late.
		l.leaving = podread.DeletedSince(object)
	}
	return p
}

// at returns the Pod that had an address at a time; nil if none had.
func (b *board) at(address string, at time.Time) (name string, found *lane) {
	for _, other := range slices.Sorted(maps.Keys(b.lanes)) {
		if l := b.lanes[other]; l.address == address && !l.seen.After(at) && (found == nil || l.seen.After(found.seen)) {
			name, found = other, l
		}
	}
	return name, found
}

// lost reports whether a request that was lost at a time was lost because the Pod left.
func (l *lane) lost(at time.Time) bool {
	return l != nil && !l.leaving.IsZero() && !at.Before(l.leaving)
}

// lost receives lost requests.
func (b *board) lost(l loss) { b.Change(func() { b.losses = append(b.losses, l) }) }

// wait returns the most urgent wait of the Pod.
func (p *pod) wait() (w view.Wait) {
	if len(p.Waits) > 0 {
		w = p.Waits[0]
	}
	return w
}

// note returns a text about when the Pod last joined or left the registry.
func (p *pod) note(now time.Time) string {
	switch ago := now.Sub(p.moved); {
	case ago > recent:
		return ""
	case !p.listed():
		return fmt.Sprintf("  (left etcd %s ago)", seconds(ago))
	case p.State == terminating:
		return "  (still in etcd)"
	default:
		return fmt.Sprintf("  (in etcd for %s)", seconds(ago))
	}
}

// facts returns sentences about a Pod.
func (p *pod) facts() []string {
	facts := []string{map[bool]string{true: "is ready", false: "is not ready"}[p.Ready]}
	if p.address != "" {
		facts = append(facts, "has the address "+p.address)
	}
	if p.version != "" {
		facts = append(facts, "runs "+p.version)
	}
	if p.Restarts > 0 {
		facts = append(facts, fmt.Sprintf("has restarted its container (restarts: %d)", p.Restarts))
	}
	facts = append(facts, map[bool]string{true: "joined etcd", false: "left etcd"}[p.listed()])
	if w := p.wait(); !w.Until.IsZero() {
		what, _, _ := strings.Cut(w.What, ": ") // Details change often.
		facts = append(facts, what)
	}
	return facts
}

// changes describes what happened to a Pod; before is nil if it is new.
func changes(before, after *pod, now time.Time) string {
	said := []string{}
	switch {
	case before == nil:
		before = &pod{}
		said = append(said, strings.TrimSuffix("is created in "+after.State, " in Normal"))
	case before.State == after.State:
	case after.State == terminating:
		said = append(said, "is deleted"+after.note(now))
	default:
		said = append(said, before.State+" → "+after.State+after.note(now))
	}
	known := before.facts()
	return strings.Join(append(said, slices.DeleteFunc(after.facts(), func(fact string) bool { return slices.Contains(known, fact) })...), "; ")
}

// report logs long waits of Pods, and requests that were lost.
func (b *board) report() {
	b.Change(func() {
		b.look("")
		b.record()
		for _, name := range slices.Sorted(maps.Keys(b.pods)) {
			w := b.pods[name].wait()
			if long := b.now().Sub(w.Since); !w.Since.IsZero() && w.Until.IsZero() && long >= longWait && b.reported[name] != w.What {
				b.reported[name] = w.What
				b.sayOf(name, fmt.Sprintf("%s (for %s)", w.What, seconds(long)))
			}
		}
		news := map[string][]loss{}
		for _, l := range b.losses[b.logged:] {
			news[l.of.Name] = append(news[l.of.Name], l)
		}
		b.logged = len(b.losses)
		for _, name := range slices.Sorted(maps.Keys(news)) {
			format := "LOST %d requests: %s"
			if news[name][0].of.JoinsOnly {
				format = "has no preDelete hook: %d requests were cut as Pods left: %s"
			}
			b.sayOf(name, fmt.Sprintf(format, len(news[name]), news[name][0].Reason))
		}
	})
}

// podsOf lists a workload's Pods, the oldest first; "" is all workloads.
func (b *board) podsOf(set string) []*pod {
	found := slices.DeleteFunc(slices.Collect(maps.Values(b.pods)), func(p *pod) bool { return set != "" && p.set != set })
	slices.SortFunc(found, func(x, y *pod) int {
		return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.Name, y.Name))
	})
	return found
}

// settledAt reports whether a workload has exactly that many Pods and no operation is in progress on
// any of them, after its spec has reached a generation. A workload that is gone has no Pods.
func (b *board) settledAt(workload client.Object, pods int, generation int64) bool {
	name := workload.GetName()
	known, there := b.objects[key(workload)], len(b.podsOf(name))
	if known == nil {
		return pods == 0 && there == 0
	}
	return known.GetGeneration() >= generation && b.workloads[name].Phase == view.PhaseDone && there == pods && !b.underWay(name)
}

// underWay reports whether an operation is in progress on a Pod of a workload; "" is any.
func (b *board) underWay(set string) bool {
	return slices.ContainsFunc(b.podsOf(set), func(p *pod) bool {
		return p.State != string(appsv1alpha1.StateNormal) || !p.Available || !p.listed() || len(p.Waits) > 0
	})
}

// draining reports whether a Pod of a set has left the registry before its update.
func (b *board) draining(set string) bool {
	return slices.ContainsFunc(b.podsOf(set), func(p *pod) bool {
		return p.State == string(appsv1alpha1.StatePreparingUpdate) && !p.listed()
	})
}

// leaving reports whether a Pod of a workload drains for its deletion, or is terminating.
func (b *board) leaving(workload string) bool {
	return slices.ContainsFunc(b.podsOf(workload), func(p *pod) bool {
		return p.State == terminating || p.State == view.StateDraining
	})
}

// waitingFor lists the waits of the workloads and their Pods.
func (b *board) waitingFor() (lines []string) {
	b.Read(func() {
		for _, name := range slices.Sorted(maps.Keys(b.workloads)) {
			for _, problem := range b.workloads[name].Problems {
				lines = append(lines, b.workloads[name].Kind+" "+name+": "+problem.Message)
			}
		}
		for _, p := range b.podsOf("") {
			for _, w := range p.Waits {
				lines = append(lines, fmt.Sprintf("Pod %s %s (%s %s)", p.Name, w.What, w.Gate, w.Key))
			}
		}
	})
	return lines
}

// state describes every Pod.
func (b *board) state() (lines []string) {
	b.Read(func() {
		lines = list.Map(b.podsOf(""), func(p *pod) string { return p.Name + " is " + p.State + "; " + strings.Join(p.facts(), "; ") })
	})
	return lines
}

// fingerprint lists everything about the Pods that an update or a deletion would
// change.
func (b *board) fingerprint() (lines []string) {
	b.Read(func() {
		for _, o := range all[*corev1.Pod](b) {
			p := b.pods[o.Name]
			lines = append(lines, fmt.Sprintf("%s %s images %v, restarts %d, leaving %t", o.Name, o.UID, p.Images, p.Restarts, p.State == terminating))
		}
	})
	return lines
}

// errLate means that something did not happen in time.
var errLate = errors.New("it did not happen")

// await waits until a condition, which may query the board, holds.
func (b *board) await(ctx context.Context, bound time.Duration, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w within %s", errLate, seconds(bound)))
	defer cancel()
	return b.Await(ctx, func() string {
		return stage.Unless(holds(), "wait for %s", what)
	})
}

// seconds formats a duration like a stopwatch.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", max(d, 0).Seconds()) }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

func statusCommand(s *session) *cobra.Command {
	var o statusOptions
	command := command("status", cobra.MaximumNArgs(2), s.completesTarget(workloads), func(ctx context.Context, args []string) error {
		if err := o.check(len(args) > 0, s.follow); err != nil {
			return err
		}
		if len(args) > 0 {
			return s.statusOf(ctx, args, o)
		}
		if err := s.connect(); err != nil {
			return err
		}
		return s.overview(ctx, o.everywhere)
	})
	flags := command.Flags()
	flags.BoolVarP(&s.follow, "watch", "w", false, "show it anew at each change until it is interrupted; into a pipe, a line for each change")
	flags.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "without a name: the workloads of all namespaces")
	flags.BoolVar(&o.wait, "wait", false, "print each change until the rollout is done; exit code 1 if it stalls, is degraded, paused or deleted")
	flags.DurationVar(&o.timeout, "timeout", 0, "of --wait: how long at most, such as 10m; 0 is for ever")
	return s.outputs(command, "json", "yaml", "wide", "name")
}

// statusOptions are the flags of status only.
type statusOptions struct {
	everywhere, wait bool
	timeout          time.Duration
}

// check returns an error for flags that do not fit together; named means that the command names a
// workload.
func (o statusOptions) check(named, follow bool) error {
	switch {
	case named && o.everywhere:
		return errors.New("--all-namespaces is for status without a name")
	case !named && (follow || o.wait):
		return errors.New("--watch and --wait need a workload, such as clone/web")
	case o.timeout != 0 && !o.wait:
		return errors.New("--timeout is for --wait")
	}
	return nil
}

// statusOf prints the status of one workload: once, at each change, or until it is done.
func (s *session) statusOf(ctx context.Context, args []string, o statusOptions) error {
	t, err := s.target(args, workloads...)
	if err != nil {
		return err
	}
	switch {
	case o.wait:
		s.lines = !s.follow
		return s.wait(ctx, t, o.timeout)
	case s.follow:
		return s.watch(ctx, t, nil)
	}
	w, err := s.load(ctx, t)
	if err != nil {
		return err
	}
	return s.page().print(&w, time.Now())
}

// print prints a workload in the format that was asked for.
func (p *page) print(w *view.Workload, now time.Time) error {
	names := list.Map(w.Members, func(pod view.Pod) string { return "pod/" + pod.Name })
	return p.answer(w, func(p *page) { p.status(w, now) }, names...)
}

// status prints a workload for people.
func (p *page) status(w *view.Workload, now time.Time) {
	p.line(bold, "%s %s/%s  %s", w.Kind, w.Namespace, w.Name, phase(w, p.clock(now)))
	if w.Kind != "Pod" {
		p.line(plain, "Pods      %d of %d, %d ready, %d available, %d of %d updated", w.Pods, w.Desired, w.Ready, w.Available, w.Updated, w.ToUpdate)
	}
	if b := w.Budget; b != nil {
		p.line(plain, "Budget    %s; %s", b, b.Method)
	}
	for _, r := range w.Revisions {
		p.line(plain, "%s", revisionLine(&r))
	}
	for _, r := range w.Registers {
		p.line(plain, "Registers %s", &r)
	}
	for _, problem := range w.Problems {
		p.line(red, "%s: %s", problem.Reason, problem.Message)
	}
	if len(w.Members) == 0 {
		return
	}
	p.line(plain, "")
	p.members(w, now)
}

func phase(w *view.Workload, clock view.Clock) string {
	text := string(w.Phase)
	if w.Unseen != nil {
		text += "; " + unseen(w.Unseen, clock)
	}
	switch {
	case w.Deadline.IsZero():
	case w.Deadline.Before(clock.Now):
		text += ", past its deadline"
	default:
		text += ", stalls " + clock.In(w.Deadline)
	}
	return text
}

// unseen says that the rest of the status is from before the last change.
func unseen(u *view.Unseen, clock view.Clock) string {
	text := "the last change is not seen yet"
	if !u.Since.IsZero() {
		text += ", " + clock.Since(u.Since)
	}
	return text
}

func revisionLine(r *view.Revision) string {
	role := "Revision"
	switch {
	case r.Update:
		role = "Update"
	case r.Current:
		role = "Current"
	}
	return strings.TrimRight(fmt.Sprintf("%-9s %s (%d)  %s  %s", role, r.Name, r.Pods, strings.Join(r.Images, " "), r.Cause), " ")
}

func readiness(p *view.Pod) string {
	switch {
	case p.Available:
		return "available"
	case p.Ready:
		return "ready"
	}
	return "not ready"
}

func podRow(p *view.Pod, clock view.Clock, wide bool) row {
	r := row{cells: []string{
		p.Name, cmp.Or(p.Revision, "-"), p.State, yesNo[p.Ready], cmp.Or(registered[p.Registered], "-"), strconv.Itoa(p.Restarts), clock.Age(p.Created),
	}}
	if wide {
		r.cells = append(r.cells, cmp.Or(p.Node, "-"), strings.Join(p.Images, " "))
	}
	waits := "-"
	if len(p.Waits) > 0 {
		waits = waitText(&p.Waits[0], clock)
	}
	if more := len(p.Waits) - 1; more > 0 {
		waits += fmt.Sprintf(" (and %d more)", more)
	}
	r.cells = append(r.cells, waits)
	if p.Trouble {
		r.colour = red
	}
	return r
}

var registered = map[string]string{"True": "yes", "False": "no", "Unknown": "?"}
var yesNo = map[bool]string{true: "yes", false: "no"}

// waitText returns what a Pod waits for, since when, and until when.
func waitText(w *view.Wait, clock view.Clock) string {
	text := w.What
	if !w.Since.IsZero() {
		text += ", " + clock.Since(w.Since)
	}
	switch {
	case w.Until.After(clock.Now):
		text += ", " + clock.ToGo(w.Until)
	case !w.Deadline.IsZero() && clock.Now.After(w.Deadline):
		text += ", past its deadline"
	case !w.Deadline.IsZero():
		text += ", deadline " + clock.In(w.Deadline)
	}
	return text
}

// mostPods is how many Pods a screen lists one by one. If there are more, it lists the worst, and
// counts all in groups.
const mostPods = 40

// worst returns the Pods to list one by one, in trouble first: if there are more than limit, without
// those that just serve.
func worst(pods []view.Pod, limit int) []view.Pod {
	sorted := slices.SortedStableFunc(slices.Values(pods), func(a, b view.Pod) int { return cmp.Compare(a.Rank(), b.Rank()) })
	at := len(sorted)
	if at > limit {
		serves, _ := slices.BinarySearchFunc(sorted, view.RankServes, func(p view.Pod, rank view.Rank) int { return cmp.Compare(p.Rank(), rank) })
		at = min(limit, serves)
	}
	return sorted[:at]
}

// group is Pods that have the same state, revision and wait.
type group struct {
	rank     view.Rank
	what     string
	waits    string
	since    time.Time
	pods     int
	examples []string
}

func groupOf(p *view.Pod) group {
	g := group{rank: p.Rank(), what: cmp.Or(p.Revision, "-") + ", " + p.State}
	if len(p.Waits) > 0 {
		g.waits, g.since = p.Waits[0].What, p.Waits[0].Since
	}
	if len(p.Waits) == 0 || p.Waits[0].Gate != "container" {
		// The text after the colon is about one Pod, such as a registry's answer.
		g.waits, _, _ = strings.Cut(g.waits, ": ")
		g.what += ", " + readiness(p)
	}
	return g
}

// groups counts the Pods of each group, the worst group first.
func groups(pods []view.Pod) []*group {
	byKey := map[string]*group{}
	for _, p := range pods {
		g := groupOf(&p)
		key := fmt.Sprintf("%d %s %s", g.rank, g.what, g.waits)
		known := cmp.Or(byKey[key], &g)
		byKey[key] = known
		known.pods++
		known.since = list.Earliest(known.since, g.since)
		if len(known.examples) < 2 {
			known.examples = append(known.examples, p.Name)
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.pods, a.pods), strings.Compare(a.what, b.what), strings.Compare(a.waits, b.waits))
	})
}

// members prints the Pods: a few one by one; if there are many, all in groups, and then the worst.
func (p *page) members(w *view.Workload, now time.Time) {
	limit := min(mostPods, p.room()-1) // a header
	if len(w.Members) > limit {
		p.groups(groups(w.Members), now)
		limit = min(mostPods, p.room()-2) // an empty line, and a header
	}
	shown := worst(w.Members, max(limit, 0))
	if len(shown) == 0 {
		return
	}
	if len(shown) < len(w.Members) {
		p.line(plain, "")
	}
	rows := list.Map(shown, func(pod view.Pod) row { return podRow(&pod, p.clock(now), p.wide()) })
	header := []string{"POD", "REVISION", "STATE", "READY", "REGISTERED", "RESTARTS", p.created(), "WAITS FOR"}
	if p.wide() {
		header = append(header[:7:7], "NODE", "IMAGES", "WAITS FOR")
	}
	p.table(p.fit(header, rows))
}

// groups prints as many groups as fit on the screen.
func (p *page) groups(all []*group, now time.Time) {
	for i, g := range all {
		if p.room() <= 1 && i < len(all)-1 {
			more := 0
			for _, other := range all[i:] {
				more += other.pods
			}
			p.line(dim, "%s in %s", list.Count(more, "Pod"), list.Count(len(all)-i, "more group"))
			return
		}
		p.line(g.colour(), "%s", g.text(p.clock(now)))
	}
}

// created returns the header of a column of Clock.Age.
func (p *page) created() string {
	if p.wide() {
		return "CREATED"
	}
	return "AGE"
}

func (g *group) colour() string {
	return colourOf(g.rank)
}

func colourOf(rank view.Rank) string {
	switch rank {
	case view.RankTrouble:
		return red
	case view.RankServes:
		return dim
	}
	return plain
}

func (g *group) text(clock view.Clock) string {
	text := list.Count(g.pods, "Pod") + ": " + g.what
	if g.waits == "" {
		return text
	}
	text += ", " + g.waits
	if !g.since.IsZero() {
		text += ", the first " + clock.Since(g.since)
	}
	return text + ", such as " + strings.Join(g.examples, ", ")
}

func whyCommand(s *session) *cobra.Command {
	command := s.on(workloads, "why", func(ctx context.Context, t target) error {
		w, err := s.load(ctx, t)
		if err != nil {
			return err
		}
		return s.page().answer(w, func(p *page) { p.why(&w, t, time.Now()) })
	})
	s.verboses(command, "a paragraph for each Pod, and not for several that wait for the same")
	return s.outputs(command, "json", "yaml", "wide")
}

// why prints each wait with the one who answers it, worst first, and then what holds the rollout.
func (p *page) why(w *view.Workload, t target, now time.Time) {
	if w.Unseen != nil {
		p.line(plain, "%s/%s: %s", strings.ToLower(w.Kind), w.Name, unseen(w.Unseen, p.clock(now)))
	}
	pods := worst(w.Members, len(w.Members))
	waiting := len(list.Only(pods, func(pod view.Pod) bool { return len(pod.Waits) > 0 }))
	all := alike(pods, p.verbose)
	for i := range all {
		if i == mostPods && !p.verbose {
			p.line(dim, "and %s; --verbose shows all", list.Count(len(all)-i, "other wait"))
			break
		}
		p.whyAlike(&all[i], p.clock(now))
	}
	for _, problem := range w.Problems {
		p.line(red, "%s: %s", problem.Reason, problem.Message)
	}
	if t.kind == kindPod {
		if waiting == 0 {
			p.line(plain, "pod/%s waits for nothing: it is %s, %s.", t.name, pods[0].State, readiness(&pods[0]))
			p.whyScaledIn(pods, p.clock(now))
		}
		return
	}
	p.whyRollout(w, waiting+len(w.Problems))
	p.whyScaledIn(w.Members, p.clock(now))
}

// whyScaledIn says which Pods go last when their owner is scaled in, if Usher orders them.
func (p *page) whyScaledIn(pods []view.Pod, clock view.Clock) {
	ordered := list.Only(pods, func(pod view.Pod) bool { return pod.ScaleIn != nil })
	slices.SortStableFunc(ordered, func(a, b view.Pod) int { return cmp.Compare(b.ScaleIn.Cost, a.ScaleIn.Cost) })
	for _, pod := range ordered[:min(len(ordered), mostExamples)] {
		p.fact("  Scale-in  %s", fmt.Sprintf("Pod %s has the deletion cost %d: %s under way %s",
			pod.Name, pod.ScaleIn.Cost, pod.ScaleIn.UnderWay, clock.Ago(pod.ScaleIn.At)))
	}
}

// sameWait is a wait of one or several Pods, in the same words.
type sameWait struct {
	view.Wait
	trouble bool
	pods    []string
}

// alike returns the waits of Pods, in their order. Waits in the same words become one, with the
// earliest beginning and deadline, unless each is wanted.
func alike(pods []view.Pod, each bool) (all []sameWait) {
	known := map[string]int{}
	for i := range pods {
		pod := &pods[i]
		for _, wait := range pod.Waits {
			next := strings.ReplaceAll(wait.Next, pod.Name, "POD")
			key := fmt.Sprintf("%q", []any{wait.What, wait.Gate, wait.Key, wait.Registrations, wait.Registries, wait.OnDeadline, next, pod.Trouble})
			at, there := known[key]
			if !there || each {
				known[key] = len(all)
				all = append(all, sameWait{wait, pod.Trouble, []string{pod.Name}})
				continue
			}
			one := &all[at]
			one.pods = append(one.pods, pod.Name)
			one.Since, one.Deadline = list.Earliest(one.Since, wait.Since), list.Earliest(one.Deadline, wait.Deadline)
			one.Until = list.Latest(one.Until, wait.Until)
		}
	}
	return all
}

// whyAlike prints a wait with the one who answers it.
func (p *page) whyAlike(wait *sameWait, clock view.Clock) {
	colour, first := plain, ""
	if wait.trouble {
		colour = red
	}
	if len(wait.pods) == 1 {
		p.line(colour, "Pod %s %s", wait.pods[0], waitText(&wait.Wait, clock))
	} else {
		first = "the first "
		text := list.Count(len(wait.pods), "Pod") + " " + view.Several(wait.What)
		if !wait.Since.IsZero() {
			text += ", " + first + clock.Since(wait.Since)
		}
		p.line(colour, "%s, such as %s", text, strings.Join(wait.pods[:min(len(wait.pods), mostExamples)], ", "))
	}
	p.fact("  Key       %s", strings.TrimSpace(wait.Key+" "+gateText(wait.Gate)))
	p.fact("  Answers   %s", answerers(wait.Registrations, wait.Registries))
	if at := deadline(&wait.Wait, clock); at != "" {
		p.fact("  Deadline  %s", first+at)
	}
	p.fact("  Next      %s", wait.Next)
	p.fact("  Or        %s", wait.Instead)
}

func gateText(gate string) string {
	if gate == "" || gate == "container" {
		return ""
	}
	return "(" + gate + ")"
}

func answerers(registrations, registries []string) string {
	switch {
	case len(registrations) == 0:
		return ""
	case len(registries) == 0: // all have confirmed
		return fmt.Sprintf("Registration %s, when nothing is under way in the Pod", strings.Join(registrations, ", "))
	}
	return fmt.Sprintf("Registration %s, when Registry %s confirms", strings.Join(registrations, ", "), strings.Join(registries, ", "))
}

func deadline(w *view.Wait, clock view.Clock) string {
	if w.Deadline.IsZero() {
		return ""
	}
	if w.OnDeadline == "" {
		return clock.In(w.Deadline)
	}
	return clock.In(w.Deadline) + ", then " + w.OnDeadline
}

// whyNothing explains, for a workload that waits for nothing, which Pods stay as they are.
func (p *page) whyNothing(w *view.Workload, name string) {
	p.line(plain, "%s waits for nothing: %d of %d Pods serve.", name, w.Available, w.Desired)
	if w.Budget != nil && w.Budget.Partition > 0 {
		p.line(plain, "  spec.updateStrategy.partition keeps Pods at the old revision: %d", w.Budget.Partition)
		p.line(plain, "  Next      kubectl usher partition clone/%s 0 -n %s", w.Name, w.Namespace)
	}
}

// whyRollout says what holds the rollout as a whole.
func (p *page) whyRollout(w *view.Workload, waiting int) {
	name := strings.ToLower(w.Kind) + "/" + w.Name
	switch {
	case w.Phase == view.PhaseDone && waiting == 0:
		p.whyNothing(w, name)
	case w.Phase == view.PhasePaused:
		p.line(plain, "%s is paused: spec.updateStrategy.paused", name)
		p.line(plain, "  Next      kubectl usher resume clone/%s -n %s", w.Name, w.Namespace)
	case w.Phase == view.PhaseStalled:
		p.line(red, "%s has not moved for spec.progressDeadlineSeconds", name)
		undo := "kubectl usher undo"
		if w.Kind != kindCloneSet.Kind {
			undo = "kubectl rollout undo"
		}
		p.line(plain, "  Next      %s %s -n %s", undo, nameOf(&w.Summary), w.Namespace)
	case w.Phase == view.PhaseUpdating:
		p.whyUpdating(w, name)
	}
}

// whyUpdating explains why a rollout in progress updates no other Pod now.
func (p *page) whyUpdating(w *view.Workload, name string) {
	spent := w.Budget != nil && w.Budget.Unavailable >= w.Budget.MaxUnavailable
	switch waits := surging(w); {
	case spent && len(waits) > 0:
		p.line(plain, "%s updates no other Pod until its surge Pods serve: %s", name, list.Some(waits, mostExamples))
	case spent:
		p.line(plain, "%s updates no other Pod now: %d of %d Pods may be unavailable, and %d are", name,
			w.Budget.MaxUnavailable, w.Desired, w.Budget.Unavailable)
	default:
		p.line(plain, "%s is on its way: %d of %d Pods are updated, and %d of %d serve.", name, w.Updated, w.ToUpdate, w.Available, w.Desired)
	}
}

// surging returns the new Pods of a CloneSet with a surge that do not serve yet: the old Pods stay
// until they do.
func surging(w *view.Workload) (pods []string) {
	if w.Budget == nil || w.Pods <= w.Desired {
		return nil
	}
	for i := range w.Members {
		if pod := &w.Members[i]; pod.Updated && !pod.Available {
			pods = append(pods, pod.Name)
		}
	}
	return pods
}

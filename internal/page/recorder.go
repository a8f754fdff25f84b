// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

// Recorder makes a Recording of one run out of successive views. It never reads the clock.
type Recorder struct {
	recording Recording
	start     time.Time
}

// NewRecorder begins a live recording. Lanes and segments that ended longer than keep ago are
// forgotten; 0 keeps everything.
func NewRecorder(start time.Time, title string, keep time.Duration) *Recorder {
	return &Recorder{start: start, recording: Recording{
		Title: title, Live: true, Keep: keep.Milliseconds(), Runs: []Run{{Start: start.UnixMilli()}},
	}}
}

// Seen is a workload as it is observed.
type Seen struct {
	view.Workload
	// Actions are the actions that the page offers for it.
	Actions []Action
	// Marks are the marks of its Pods since the last observation, by Pod; "" has those of no Pod.
	Marks map[string][]Mark
}

// Recording returns everything so far; it changes with the next observation.
func (r *Recorder) Recording() *Recording { return &r.recording }

// Since returns a moment in the recording's time.
func (r *Recorder) Since(at time.Time) int64 { return at.Sub(r.start).Milliseconds() }

// Observe takes all workloads as they are at a moment, and the marks of the whole run since the last
// observation. It returns the delta.
func (r *Recorder) Observe(now time.Time, all []Seen, marks ...Mark) *Recording {
	run := &r.recording.Runs[0]
	first := run.Now == 0 && len(run.Sets) == 0
	run.Now, run.Marks = r.Since(now), append(run.Marks, marks...)
	delta := r.recording
	delta.Runs = []Run{{Title: run.Title, Start: run.Start, Now: run.Now, Marks: marks}}
	out := &delta.Runs[0]
	for i := range all {
		if change, changed := r.set(r.setOf(&all[i].Workload), &all[i], first); changed {
			out.Sets = append(out.Sets, change)
		}
	}
	run.Sets = slices.DeleteFunc(run.Sets, func(s Set) bool {
		gone := !slices.ContainsFunc(all, func(one Seen) bool { return idOf(&one.Workload) == s.ID })
		if gone {
			out.Sets = append(out.Sets, Set{ID: s.ID, Gone: true})
		}
		return gone
	})
	r.forget(run)
	return &delta
}

func idOf(w *view.Workload) string { return w.Kind + "/" + w.Namespace + "/" + w.Name }

// setOf returns the recorded set of a workload.
func (r *Recorder) setOf(w *view.Workload) *Set {
	run := &r.recording.Runs[0]
	if known := list.Find(run.Sets, func(s *Set) bool { return s.ID == idOf(w) }); known != nil {
		return known
	}
	run.Sets = append(run.Sets, Set{ID: idOf(w)})
	return &run.Sets[len(run.Sets)-1]
}

// set updates the recorded set of a workload, and returns the delta.
func (r *Recorder) set(known *Set, seen *Seen, first bool) (delta Set, changed bool) {
	w := &seen.Workload
	delta = Set{
		ID: known.ID, Title: w.Kind + " " + w.Namespace + "/" + w.Name, Text: text(w), Summary: w.Summary, About: about(w),
		Actions: seen.Actions, Registries: slices.Clone(known.Registries),
	}
	lanes, there := list.By(known.Lanes, func(l *Lane) string { return l.Name }), map[string]bool{}
	for _, pod := range w.Members {
		there[pod.Name] = true
		delta.Registries = append(delta.Registries, list.Map(pod.Entries, func(e view.Entry) string { return e.Registry })...)
		if lanes[pod.Name] == nil {
			lanes[pod.Name] = &Lane{Pod: pod}
			known.Lanes = append(known.Lanes, lanes[pod.Name])
		}
		if change, changed := r.lane(lanes[pod.Name], &pod, seen.Marks[pod.Name], first); changed {
			delta.Lanes = append(delta.Lanes, change)
		}
	}
	for _, lane := range known.Lanes {
		if change, changed := r.gone(lane, seen.Marks[lane.Name]); changed && !there[lane.Name] {
			delta.Lanes = append(delta.Lanes, change)
		}
	}
	for _, change := range delta.Lanes {
		lanes[change.Name].take(change)
	}
	slices.Sort(delta.Registries)
	delta.Registries, delta.Marks = slices.Compact(delta.Registries), seen.Marks[""]
	// A delta adds lanes and marks to the known ones, and replaces the other fields.
	before := *known
	*known = delta
	known.Lanes, known.Marks = before.Lanes, append(before.Marks, delta.Marks...)
	before.Lanes, before.Marks = delta.Lanes, delta.Marks
	return delta, len(delta.Lanes)+len(delta.Marks) > 0 || !reflect.DeepEqual(before, delta)
}

// take applies a delta.
func (l *Lane) take(delta *Lane) {
	l.Pod = delta.Pod
	l.Segments = append(l.Segments, delta.Segments...)
	l.Marks = append(l.Marks, delta.Marks...)
}

// gone returns the delta of a Pod that is gone.
func (r *Recorder) gone(lane *Lane, marks []Mark) (delta *Lane, changed bool) {
	delta = &Lane{Pod: lane.Pod, Marks: marks}
	if !lane.ended() {
		delta.Segments = []Segment{{At: r.now()}}
	}
	return delta, len(delta.Segments)+len(delta.Marks) > 0
}

func (l *Lane) ended() bool { return len(l.Segments) > 0 && l.Segments[len(l.Segments)-1].State == "" }

func (r *Recorder) now() int64 { return r.recording.Runs[0].Now }

// lane returns the delta of a Pod.
func (r *Recorder) lane(known *Lane, pod *view.Pod, marks []Mark, first bool) (delta *Lane, changed bool) {
	delta = &Lane{Pod: *pod}
	listed := list.Only(pod.Entries, func(e view.Entry) bool { return e.Listed == "True" })
	segment := Segment{At: r.now(), State: pod.State, Ready: pod.Ready, In: list.Map(listed, func(e view.Entry) string { return e.Registry })}
	switch last := len(known.Segments) - 1; {
	case last < 0 && first:
		delta.Segments = r.earlier(segment, pod)
	case last < 0 || !segment.same(&known.Segments[last]):
		delta.Segments = []Segment{segment}
	}
	if more := pod.Restarts - known.Restarts; more > 0 && len(known.Segments) > 0 {
		delta.Marks = []Mark{{At: r.now(), Kind: MarkRestart, Count: more}}
	}
	delta.Marks = append(delta.Marks, marks...)
	return delta, len(delta.Segments)+len(delta.Marks) > 0 || !reflect.DeepEqual(known.Pod, delta.Pod)
}

// earlier returns segments before the recording, as far as the Pod shows its past.
func (r *Recorder) earlier(present Segment, pod *view.Pod) []Segment {
	created := min(r.Since(pod.Created), present.At)
	present.At = min(max(r.Since(pod.Changed), created), present.At)
	if present.At == created {
		return []Segment{present}
	}
	return []Segment{{At: created, State: "Unknown"}, present}
}

func (s *Segment) same(other *Segment) bool {
	return s.State == other.State && s.Ready == other.Ready && slices.Equal(s.In, other.In)
}

// text returns the line about a workload besides its numbers.
func text(w *view.Workload) string {
	var texts []string
	if w.Unseen != nil {
		texts = append(texts, "the last change is not seen yet")
	}
	if w.Budget != nil {
		texts = append(texts, w.Budget.String(), w.Budget.Method)
	}
	return strings.Join(texts, " · ")
}

// about lists the revisions or images of a workload's Pods, and the Registrations that select them.
func about(w *view.Workload) (out []string) {
	for _, r := range w.Revisions {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s (%d) %s", r.Name, r.Pods, strings.Join(r.Images, " "))))
	}
	if len(w.Revisions) == 0 {
		out = images(w.Members)
	}
	switch names := list.Map(w.Registers, func(r view.Registers) string { return r.Registration }); len(names) {
	case 0:
	case 1:
		out = append(out, "Registration "+names[0])
	default:
		out = append(out, "Registrations "+list.Some(names, mostNamed))
	}
	return out
}

// mostNamed is how many images, and how many Registrations, a workload's header has.
const mostNamed = 3

// images lists the images of Pods, each with the number of Pods, the most frequent first.
func images(pods []view.Pod) []string {
	counts := map[string]int{}
	for i := range pods {
		counts[strings.Join(pods[i].Images, " ")]++
	}
	delete(counts, "")
	all := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	return list.Map(all[:min(len(all), mostNamed)], func(images string) string { return fmt.Sprintf("%s (%d)", images, counts[images]) })
}

// forget drops lanes and segments that ended long ago, as the page does.
func (r *Recorder) forget(run *Run) {
	before := run.Now - r.recording.Keep
	if r.recording.Keep == 0 {
		return
	}
	for i := range run.Sets {
		set := &run.Sets[i]
		set.Lanes = slices.DeleteFunc(set.Lanes, func(l *Lane) bool { return l.ended() && l.Segments[len(l.Segments)-1].At < before })
		for _, lane := range set.Lanes {
			for len(lane.Segments) > 1 && lane.Segments[1].At < before {
				lane.Segments = lane.Segments[1:]
			}
			for len(lane.Marks) > 0 && lane.Marks[0].At < before {
				lane.Marks = lane.Marks[1:]
			}
		}
	}
}

// Actions returns the actions that the page offers to a user who may change a workload.
func Actions(w *view.Workload) (out []Action) {
	if w.Kind != "CloneSet" || w.Phase == view.PhaseDeleting {
		return nil
	}
	switch w.Phase {
	case view.PhasePaused:
		out = append(out, Action{Name: "resume", Title: "Resume", Text: "The rollout goes on, within the budgets of the set."})
	case view.PhaseUpdating, view.PhaseStalled:
		out = append(out, Action{Name: "pause", Title: "Pause", Text: "No further Pod is updated. Those that are on their way finish."})
	}
	if p := w.Previous; p != nil {
		out = append(out, Action{Name: "undo", Title: "Undo", To: p.Name, Text: fmt.Sprintf(
			"Revision %d (%s) becomes the present one again: %s. Pods that have another one are updated, within the budgets of the set.",
			p.Number, p.Name, strings.Join(p.Images, ", "))})
	}
	return out
}

// Recording is the format of what the page shows, and of deltas; see the package.
type Recording struct {
	Title string `json:"title,omitempty"`
	// Note is a message about the whole recording, such as missing rights.
	Note string `json:"note,omitempty"`
	// Live means that the present is shown, and time continues after the last change.
	Live bool `json:"live,omitempty"`
	// Namespace is the namespace that is shown, and Namespaces are the ones that the reader can choose
	// from.
	Namespace  string   `json:"namespace,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
	// Empty says what the reader can do if there is nothing to show.
	Empty string `json:"empty,omitempty"`
	// Silent is the moment after which nothing is known, in milliseconds since 1970; 0 if there is
	// none.
	Silent int64 `json:"silent,omitempty"`
	// Reset removes everything before.
	Reset bool `json:"reset,omitempty"`
	// Keep is for how many milliseconds ended lanes and segments are kept; 0 keeps them for good.
	Keep int64 `json:"keep,omitempty"`
	Runs []Run `json:"runs"`
}

// Run is a stretch of time.
type Run struct {
	Title string `json:"title,omitempty"`
	// Start is in milliseconds since 1970. Other times count from here.
	Start int64 `json:"start"`
	// Now is how far the run is.
	Now int64 `json:"now"`
	// Marks of kind phase divide the run.
	Marks []Mark `json:"marks,omitempty"`
	Sets  []Set  `json:"sets,omitempty"`
}

// Set is a workload with its Pods.
type Set struct {
	// ID is unique within a run.
	ID string `json:"id"`
	// Title is its name for people, Text a line about it, such as the budget.
	Title string `json:"title,omitempty"`
	Text  string `json:"text,omitempty"`
	view.Summary
	// About are its revisions or images, with how many Pods have them, and its Registrations.
	About []string `json:"about,omitempty"`
	// Registries are the lines below each lane, from the top.
	Registries []string `json:"registries,omitempty"`
	// Actions are the actions that the page offers for it.
	Actions []Action `json:"actions,omitempty"`
	Gone    bool     `json:"gone,omitempty"`
	// Marks are the marks that belong to none of its Pods.
	Marks []Mark  `json:"marks,omitempty"`
	Lanes []*Lane `json:"lanes,omitempty"`
}

// Action is an action on a set that the page offers; the reader has to confirm it.
type Action struct {
	Name string `json:"name"`
	// Title is on the button, Text says what the action does.
	Title string `json:"title"`
	Text  string `json:"text"`
	// To is the revision that it leads to.
	To string `json:"to,omitempty"`
}

// ActionNamespace is the action, on no set, with which the page asks for another namespace.
const ActionNamespace = "namespace"

// Lane is a Pod in time. Its name is unique within a set.
type Lane struct {
	view.Pod
	// Segments are in the order of time.
	Segments []Segment `json:"segments,omitempty"`
	Marks    []Mark    `json:"marks,omitempty"`
}

// Segment is the state of a Pod from a moment until the next segment.
type Segment struct {
	At int64 `json:"at"`
	// State is the lifecycle state, or Terminating, Failed or Succeeded; empty after the Pod's end;
	// Unknown while it was not observed.
	State string `json:"state"`
	Ready bool   `json:"ready,omitempty"`
	// In are the registries that list the Pod.
	In []string `json:"in,omitempty"`
}

// Mark is an event at a moment.
type Mark struct {
	At   int64    `json:"at"`
	Kind MarkKind `json:"kind"`
	Text string   `json:"text,omitempty"`
	// Count is how often; 0 is once.
	Count int `json:"count,omitempty"`
}

// MarkKind is the kind of a Mark.
type MarkKind string

// The kinds of marks.
const (
	// MarkPhase begins a phase of a run.
	MarkPhase MarkKind = "phase"
	// MarkRestart is a restart of a container.
	MarkRestart MarkKind = "restart"
	// MarkLost stands for lost requests.
	MarkLost MarkKind = "lost"
	// MarkEvent is any other event, such as an outage of a registry.
	MarkEvent MarkKind = "event"
)

var (
	//go:embed assets/page.html
	html string
	//go:embed assets/page.css
	style string
	//go:embed assets/page.js
	script string

	document = template.Must(template.New("page").Parse(html))
)

// WriteFile writes the page as one file that needs nothing else. Without a recording, the page asks the
// server that it was loaded from for one.
func WriteFile(w io.Writer, recording *Recording) error {
	err := document.Execute(w, map[string]any{
		"Style": template.CSS(style), "Script": template.JS(script), //nolint:gosec // the package's own files
		"Policy": policy(), "Recording": recording,
	})
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// policy lets a browser run only the page's own script and style, and connect only to the page's
// server.
func policy() string {
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; base-uri 'none'; form-action 'none'", digest(script), digest(style))
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

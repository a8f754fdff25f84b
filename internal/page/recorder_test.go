// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// at returns a moment that many seconds after noon.
func at(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

// pod returns a Pod in a state; the registries that list it follow the state in brackets.
func pod(name, state string, restarts int) view.Pod {
	state, in, listed := strings.Cut(state, " in ")
	p := view.Pod{Name: name, State: state, Ready: state == "Normal", Available: state == "Normal", Restarts: restarts, Created: at(-100), Changed: at(-40)}
	if listed {
		p.Entries = []view.Entry{{Registry: in, Listed: "True"}, {Registry: "other", Listed: "Unknown"}}
	}
	return p
}

func web(pods ...view.Pod) Seen {
	return Seen{Workload: view.Workload{Summary: view.Summary{Kind: "CloneSet", Namespace: "shop", Name: "web", Phase: view.PhaseUpdating}, Members: pods}}
}

// lost adds marks of lost requests to Pods.
func lost(seen Seen, at int64, pods ...string) Seen {
	seen.Marks = map[string][]Mark{}
	for _, pod := range pods {
		seen.Marks[pod] = []Mark{{At: at, Kind: MarkLost, Count: 7}}
	}
	return seen
}

// course is the history of a set: each step is a second after the one before.
var course = [][]Seen{
	{web(pod("a", "Normal in dns", 0), pod("b", "Normal", 2))},
	{web(pod("a", "Normal in dns", 0), pod("b", "Normal", 2))},
	{lost(web(pod("a", "Normal", 0), pod("b", "Normal", 3), pod("c", "PreparingNormal", 0)), 1800, "b", "c")},
	{web(pod("b", "Normal", 3), pod("c", "PreparingNormal", 0))},
	{lost(web(pod("b", "Normal", 3), pod("c", "PreparingNormal", 0)), 3900, "a", "")},
	{web(pod("b", "Normal", 3), pod("c", "Normal in dns", 0)), {Workload: view.Workload{Summary: view.Summary{Kind: "CloneSet", Name: "other"}}}},
	{web(pod("b", "Normal", 3), pod("c", "Normal in dns", 0))},
}

// TestCourse reads lanes, as a line of segments and marks each.
func TestCourse(t *testing.T) {
	r := NewRecorder(noon, "", 0)
	for i, seen := range course {
		r.Observe(at(i), seen)
	}
	checktest.Same(t, "the number of the set's marks", 1, len(r.Recording().Runs[0].Sets[0].Marks))
	want := map[string]string{
		"a": "-100000 Unknown; -40000 Normal ready in dns; 2000 Normal ready; 3000 end; 3900 lost 7",
		"b": "-100000 Unknown; -40000 Normal ready; 2000 restart 1; 1800 lost 7",
		"c": "2000 PreparingNormal; 5000 Normal ready in dns; 1800 lost 7",
	}
	got := map[string]string{}
	for _, lane := range r.Recording().Runs[0].Sets[0].Lanes {
		got[lane.Name] = line(lane)
	}
	checktest.Same(t, "recording", want, got)
	checktest.Same(t, "registries", []string{"dns", "other"}, r.Recording().Runs[0].Sets[0].Registries)
}

func line(lane *Lane) string {
	var parts []string
	for _, s := range lane.Segments {
		text := fmt.Sprint(s.At, " ", s.State)
		if s.State == "" {
			text += "end"
		}
		if s.Ready {
			text += " ready"
		}
		if len(s.In) > 0 {
			text += " in " + strings.Join(s.In, ",")
		}
		parts = append(parts, text)
	}
	for _, m := range lane.Marks {
		parts = append(parts, fmt.Sprint(m.At, " ", m.Kind, " ", m.Count))
	}
	return strings.Join(parts, "; ")
}

// TestDeltas: all deltas applied in turn, as the package says, give the recording, and a set that does
// not change sends nothing.
func TestDeltas(t *testing.T) {
	r := NewRecorder(noon, "title", time.Hour)
	var folded Recording
	for i, seen := range course {
		delta := r.Observe(at(i), seen, Mark{At: r.Since(at(i)), Kind: MarkPhase})
		if i == 1 && len(delta.Runs[0].Sets) > 0 {
			t.Errorf("nothing changed, and is sent: %+v", delta.Runs[0].Sets)
		}
		fold(&folded, delta)
	}
	checktest.Same(t, "recording", encoded(t, r.Recording()), encoded(t, &folded))
}

func encoded(t *testing.T, r *Recording) string {
	t.Helper()
	text := checktest.Must(json.MarshalIndent(r, "", " "))(t)
	return string(text)
}

func fold(all, delta *Recording) {
	sets, marks := []Set(nil), []Mark(nil)
	if len(all.Runs) > 0 {
		sets, marks = all.Runs[0].Sets, all.Runs[0].Marks
	}
	*all = *delta
	all.Runs[0].Marks = slices.Concat(marks, delta.Runs[0].Marks)
	for _, change := range delta.Runs[0].Sets {
		i := slices.IndexFunc(sets, func(s Set) bool { return s.ID == change.ID })
		switch {
		case change.Gone:
			sets = slices.Delete(sets, i, i+1)
		case i < 0:
			sets = append(sets, change)
		default:
			news := change.Lanes
			change.Lanes, change.Marks = sets[i].Lanes, slices.Concat(sets[i].Marks, change.Marks)
			sets[i] = change
			for _, lane := range news {
				foldLane(&sets[i], lane)
			}
		}
	}
	all.Runs[0].Sets = sets
}

func foldLane(set *Set, news *Lane) {
	i := slices.IndexFunc(set.Lanes, func(l *Lane) bool { return l.Name == news.Name })
	if i < 0 {
		set.Lanes = append(set.Lanes, news)
		return
	}
	known := set.Lanes[i]
	known.Pod, known.Segments, known.Marks = news.Pod, slices.Concat(known.Segments, news.Segments), slices.Concat(known.Marks, news.Marks)
}

// TestForget: lanes and segments that ended too long ago are dropped, and others stay.
func TestForget(t *testing.T) {
	r := NewRecorder(noon, "", time.Minute)
	for i, seen := range course {
		r.Observe(at(i), seen)
	}
	r.Observe(at(66), course[len(course)-1])
	want := []string{"-40000 Normal ready", "5000 Normal ready in dns"}
	checktest.Same(t, "what is asked", want, list.Map(r.Recording().Runs[0].Sets[0].Lanes, line))
}

// TestFile: no text in a recording can break out of the script, and the file connects to no server.
func TestFile(t *testing.T) {
	var out bytes.Buffer
	evil := `</script><script>alert(1)</script>`
	checktest.NoError(t, WriteFile(&out, &Recording{Title: evil}))
	file := out.String()
	if strings.Contains(file, evil) || strings.Count(file, "<script") != 2 {
		t.Error("the recording's text became a script")
	}
	for _, text := range []string{"http://", "https://", "//cdn", "@import", "ZgotmplZ"} {
		if strings.Contains(file, text) {
			t.Errorf("the file contains %s", text)
		}
	}
	for _, text := range []string{digest(script), digest(style)} {
		if !strings.Contains(strings.NewReplacer("&#43;", "+", "&#39;", "'").Replace(file), text) {
			t.Errorf("the policy does not allow the page's own %s", text)
		}
	}
}

// TestUnseen: the text of a set says if its controller has not seen the last change, with and without a
// budget.
func TestUnseen(t *testing.T) {
	seen := view.Workload{}
	seen.Unseen = &view.Unseen{Generation: 3, Observed: 2}
	checktest.Same(t, "of a Deployment", "the last change is not seen yet", text(&seen))
	seen.Budget = &view.Budget{Method: "ReCreate", MaxUnavailable: 2}
	checktest.Same(t, "of a CloneSet", "the last change is not seen yet · 0 of 2 unavailable · ReCreate", text(&seen))
}

// TestAbout: a set's header has revisions, or the images of its Pods, and Registrations.
func TestAbout(t *testing.T) {
	w := view.Workload{Members: []view.Pod{{Images: []string{"main=a"}}, {Images: []string{"main=b", "side=c"}}, {Images: []string{"main=b", "side=c"}}, {}}}
	checktest.Same(t, "of a Deployment", []string{"main=b side=c (2)", "main=a (1)"}, about(&w))
	w.Revisions = []view.Revision{{Name: "web-2", Pods: 3, Images: []string{"main=a"}}, {Name: "web-1"}}
	w.Registers = []view.Registers{{Registration: "a"}}
	checktest.Same(t, "of a CloneSet", []string{"web-2 (3) main=a", "web-1 (0)", "Registration a"}, about(&w))
	w.Revisions, w.Registers = nil, []view.Registers{{Registration: "a"}, {Registration: "b"}, {Registration: "c"}, {Registration: "d"}}
	checktest.Same(t, "of more", "Registrations a, b, c and 1 more", about(&w)[2])
}

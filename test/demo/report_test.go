// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/test/traffic"
)

func section(name phase, sent, lost int) traffic.Section {
	return traffic.Section{Name: string(name), Sent: sent, Lost: lost}
}

// Losses because a Pod left do not count against a hook that covers how Pods join, and
// losses without hooks do not fail a demonstration; all others do.
func TestLostRequests(t *testing.T) {
	on, off := &RunResult{
		Hooks: true,
		Outcomes: []Outcome{
			{story: story{name: "web"}, Report: traffic.Report{Sections: []traffic.Section{section(phaseCreate, 800, 0), section(phaseInPlace, 12_000, 0)}}},
			{story: story{name: "prenormal", joinsOnly: true}, Leaving: 678, Report: traffic.Report{
				Sections: []traffic.Section{section(phaseCreate, 800, 0), section(phaseRecreate, 6_000, 678)},
				Reasons:  []traffic.ReasonCount{{Reason: "connection refused", Count: 678}},
			}},
		},
	}, &RunResult{
		Outcomes: []Outcome{
			{story: story{name: "web"}, Report: traffic.Report{
				Sections: []traffic.Section{section(phaseInPlace, 900, 51)},
				Reasons:  []traffic.ReasonCount{{Reason: "connection refused", Count: 50}, {Reason: "connection reset", Count: 1}},
			}},
			{story: story{name: "prenormal"}, Report: traffic.Report{
				Sections: []traffic.Section{section(phaseInPlace, 700, 2), section(phaseRecreate, 900, 1300)},
				Reasons:  []traffic.ReasonCount{{Reason: "connection reset", Count: 1302}},
			}},
		},
	}
	result := Result{Runs: []*RunResult{on, off}}
	shown := strings.Join(result.write(false), "\n")
	for _, want := range []string{
		"where 0 requests were lost, and nothing\ncovers how they leave, where 678 were",
		"Lost with hooks and guard off: 1,303 × connection reset, 50 × connection refused.",
		"hooks and guard on: 12,800 requests, 0 lost   hooks and guard off: 2,500 requests, 1,353 lost",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("the report lacks %q:\n%s", want, shown)
		}
	}
	if result.Lost() != 0 || on.lostIn(phaseRecreate) != 0 || off.lostIn(phaseInPlace) != 53 || off.lostIn(phaseRecreate) != 1300 {
		t.Errorf("lost: %d with hooks, %d in the recreate update; without hooks %d and %d in the updates",
			result.Lost(), on.lostIn(phaseRecreate), off.lostIn(phaseInPlace), off.lostIn(phaseRecreate))
	}
	on.Outcomes[0].Report.Sections[1].Lost = 2
	on.Outcomes[1].Leaving--
	if result.Lost() != 3 {
		t.Errorf("%d were lost with hooks, want 3", result.Lost())
	}
}

// The runs in a page.
const runOn, runOff = "Hooks and guard on", "Hooks and guard off"

// recorded reads the page of a whole demo, and counts the lost requests in it by run.
func recorded(t *testing.T, path string) (lost map[string]int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `<script id="recording" type="application/json">`)
	text = []byte(rest[:strings.Index(rest, "</script>")])
	var recording page.Recording
	if err := json.Unmarshal(text, &recording); err != nil {
		t.Fatalf("%v in %.300s", err, text)
	}
	lost = map[string]int{}
	for _, run := range recording.Runs {
		lost[run.Title] = 0
		for _, set := range run.Sets {
			marks := set.Marks
			for _, lane := range set.Lanes {
				marks = append(marks, lane.Marks...)
			}
			for _, mark := range marks {
				if mark.Kind == page.MarkLost {
					lost[run.Title] += mark.Count
				}
			}
		}
	}
	return lost
}

// The page has a mark where a request was lost, on the lane of the Pod that it was sent to,
// and none where none was.
func TestPageHoldsLostRequests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.html")
	runs := []page.Run{}
	for _, hooks := range []bool{true, false} {
		r := &run{hooks: hooks, board: newQuietBoard()}
		web := cloneSets(hooks)[0]
		client, err := traffic.New(traffic.Options{Rate: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.actors = []*actor{{story: web, client: client, set: &unstructured.Unstructured{Object: map[string]any{"kind": "CloneSet"}}}}
		r.board.is(aSet())
		r.board.is(aPod("web-a"))
		if !hooks {
			r.board.lost(loss{traffic.Loss{At: time.Now(), Addr: addrA, Reason: "connection refused"}, web})
			r.board.lost(loss{traffic.Loss{At: time.Now(), Addr: addrA, Reason: "connection refused"}, web})
			r.board.lost(loss{traffic.Loss{At: time.Now()}, web}) // The caller knew no Pod.
			r.board.isGone(aPod("web-a"))
		}
		runs = append(runs, r.recordings()...)
	}
	if lane := runs[1].Sets[0].Lanes[0]; lane.Name != "web-a" || len(lane.Marks) != 1 || lane.Marks[0].Count != 2 || lane.Segments[len(lane.Segments)-1].State != "" {
		t.Errorf("the lane is %+v, want that of web-a with one mark for two requests, and its end", lane)
	}
	if err := write(path, &page.Recording{Runs: runs}); err != nil {
		t.Fatal(err)
	}
	if got, want := recorded(t, path), map[string]int{runOn: 0, runOff: 3}; !maps.Equal(got, want) {
		t.Errorf("the page has lost requests %v, want %v", got, want)
	}
}

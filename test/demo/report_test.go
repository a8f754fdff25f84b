// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
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
			{story: story{Name: "web"}, Report: traffic.Report{Sections: []traffic.Section{section(phaseCreate, 800, 0), section(phaseInPlace, 12_000, 0)}}},
			{story: story{Name: "prenormal", JoinsOnly: true}, Leaving: 678, Report: traffic.Report{
				Sections: []traffic.Section{section(phaseCreate, 800, 0), section(phaseRecreate, 6_000, 678)},
				Reasons:  map[string]int{"connection refused": 678},
			}},
		},
	}, &RunResult{
		Outcomes: []Outcome{
			{story: story{Name: "web"}, Report: traffic.Report{
				Sections: []traffic.Section{section(phaseInPlace, 900, 51)},
				Reasons:  map[string]int{"connection refused": 50, "connection reset": 1},
			}},
			{story: story{Name: "prenormal"}, Report: traffic.Report{
				Sections: []traffic.Section{section(phaseInPlace, 700, 2), section(phaseRecreate, 900, 1300)},
				Reasons:  map[string]int{"connection reset": 1302},
			}},
		},
	}
	result := Result{Runs: []*RunResult{on, off}}
	shown := strings.Join(result.write(false), "\n")
	checktest.Says(t, "what is shown", shown,
		"where 0 requests were lost, and nothing\ncovers how they leave, where 678 were",
		"Lost with hooks and guard off: 1,303 × connection reset, 50 × connection refused.",
		"hooks and guard on: 12,800 requests, 0 lost   hooks and guard off: 2,500 requests, 1,353 lost",
	)
	if result.Lost() != 0 || on.lostIn(phaseRecreate) != 0 || off.lostIn(phaseInPlace) != 53 || off.lostIn(phaseRecreate) != 1300 {
		t.Errorf("lost: %d with hooks, %d in the recreate update; without hooks %d and %d in the updates",
			result.Lost(), on.lostIn(phaseRecreate), off.lostIn(phaseInPlace), off.lostIn(phaseRecreate))
	}
	on.Outcomes[0].Report.Sections[1].Lost = 2
	on.Outcomes[1].Leaving--
	checktest.Same(t, "lost with hooks", 3, result.Lost())
}

// The runs in a page.
const runOn, runOff = "Hooks and guard on", "Hooks and guard off"

// recorded reads the page of a whole demo, and counts the lost requests in it by run.
func recorded(t *testing.T, path string) (lost map[string]int) {
	t.Helper()
	text := checktest.Must(os.ReadFile(path))(t)
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
		web := (Options{}).stories(hooks)[0]
		r.actors = []*actor{{story: web, client: traffic.New(traffic.Options{Rate: 1}), set: &unstructured.Unstructured{Object: map[string]any{"kind": "CloneSet"}}}}
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
	checktest.NoError(t, write(path, &page.Recording{Runs: runs}))
	checktest.Same(t, "lost requests in the page", map[string]int{runOn: 0, runOff: 3}, recorded(t, path))
}

const addrA = "127.9.0.3:8080"

// read reads an object of testdata, and changes it.
func read[T any](file string, change []func(*T)) *T {
	object := new(T)
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err == nil {
		err = yaml.UnmarshalStrict(text, object)
	}
	if err != nil {
		panic(err) // It is misspelt.
	}
	for _, c := range change {
		c(object)
	}
	return object
}

func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	named := func(pod *corev1.Pod) { pod.Name = name }
	return read("pod.yaml", append([]func(*corev1.Pod){named}, change...))
}

func aSet(change ...func(*appsv1alpha1.CloneSet)) *appsv1alpha1.CloneSet {
	return read("set.yaml", change)
}

func unready(pod *corev1.Pod)  { pod.Status.Conditions = pod.Status.Conditions[1:] }
func deleted(pod *corev1.Pod)  { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(50, 0)} }
func draining(pod *corev1.Pod) { pod.Labels[appsv1alpha1.LabelLifecycleState] = "PreparingUpdate" }

func outdated(pod *corev1.Pod) { pod.Labels[appsv1alpha1.LabelTemplateHash] = "old" }

func newQuietBoard() *board {
	return newBoard(time.Now, func(...string) {}, page.NewServer(page.NewRecorder(time.Now(), "", 0), nil))
}

func (b *board) joins(joined bool) { b.registryChanged(addrA, joined) }

func TestSettledAt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*board)
		want   bool
	}{
		"done":           {func(*board) {}, true},
		"no set":         {func(b *board) { b.isGone(aSet()) }, false},
		"not changed":    {func(b *board) { b.is(aSet(func(s *appsv1alpha1.CloneSet) { s.Generation = 1 })) }, false},
		"not observed":   {func(b *board) { b.is(aSet(func(s *appsv1alpha1.CloneSet) { s.Status.ObservedGeneration = 1 })) }, false},
		"not registered": {func(b *board) { b.joins(false) }, false},
		"a Pod too many": {func(b *board) { b.is(aPod("web-b")) }, false},
		"a Pod too few":  {func(b *board) { b.isGone(aPod("web-a")) }, false},
		"not ready":      {func(b *board) { b.is(aPod("web-a", unready)) }, false},
		"at a gate":      {func(b *board) { b.is(aPod("web-a", draining)) }, false},
		"being deleted":  {func(b *board) { b.is(aPod("web-a", deleted)) }, false},
		"not updated":    {func(b *board) { b.is(aPod("web-a", outdated)) }, false},
	} {
		b := newQuietBoard()
		b.is(aSet())
		b.is(aPod("web-a"))
		b.joins(true)
		c.change(b)
		checktest.Same(t, name, c.want, b.settledAt(aSet(), 1, 2))
	}
}

func TestFingerprintChangesWithWhatMustNotHappen(t *testing.T) {
	print := func(pod *corev1.Pod) string {
		b := newQuietBoard()
		b.is(pod)
		return strings.Join(b.fingerprint(), "\n")
	}
	still := print(aPod("web-a"))
	for name, change := range map[string]func(*corev1.Pod){
		"a new image":  func(p *corev1.Pod) { p.Spec.Containers[0].Image = "example.com/web:v2" },
		"a restart":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount++ },
		"a deletion":   deleted,
		"another Pod":  func(p *corev1.Pod) { p.UID = "other" },
		"another name": func(p *corev1.Pod) { p.Name = "web-b" },
	} {
		if print(aPod("web-a", change)) == still {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
	checktest.Same(t, "the fingerprint of a drain", still, print(aPod("web-a", draining, unready)))
}

func TestAnAddressThatIsUsedAgain(t *testing.T) {
	b, now := newQuietBoard(), time.Unix(60, 0)
	b.now = func() time.Time { now = now.Add(time.Second); return now }
	if _, lane := b.at(addrA, now); lane.lost(now) {
		t.Error("a request is lost because an unknown Pod left")
	}
	b.is(aPod("web-a"))
	b.is(aPod("web-a", deleted))
	if name, lane := b.at(addrA, now); name != "web-a" || !lane.lost(now) {
		t.Error("the Pod of the address is being deleted, but it has not left")
	}
	b.is(aPod("web-b"))
	if name, lane := b.at(addrA, now); name != "web-b" || lane.lost(now) {
		t.Error("the address has a new Pod, but it has left")
	}
}

// short returns the options of a demo with hooks that takes seconds. The tests mostly wait, so they run
// in parallel.
func short(t *testing.T) Options {
	t.Helper()
	t.Parallel()
	out := checktest.Must(os.Create(filepath.Join(t.TempDir(), "out.txt")))(t)
	t.Cleanup(func() {
		_ = out.Close()
		if text, err := os.ReadFile(out.Name()); err == nil && t.Failed() {
			t.Logf("what the demo showed:\n%s", text)
		}
	})
	return Options{Out: out, hooksOnly: true, pace: pace{
		rate: 100, cacheDelay: 200 * time.Millisecond, slowMin: 200 * time.Millisecond, slowMax: 500 * time.Millisecond,
		propagation: 1500 * time.Millisecond, outage: 8 * time.Second, bound: 90 * time.Second,
	}}
}

// play plays a demo, which must lose nothing with hooks, and returns what it showed.
func play(t *testing.T, options Options) (Result, string) {
	t.Helper()
	result := checktest.Must(Run(t.Context(), options))(t)
	on := result.Runs[0]
	if !on.Hooks || len(on.Took) != len(options.phases()) {
		t.Fatalf("the first run, with hooks %t, has the phases %v", on.Hooks, on.Took)
	}
	for _, o := range on.Outcomes {
		if sent := o.Report.Total().Sent; sent < 300 || o.Charged() != 0 {
			t.Errorf("%s: of %d requests %d were lost: %v", o.Name, sent, o.Charged(), o.Report.Reasons)
		}
	}
	if on.DrainedSlow() == 0 {
		t.Error("no slow request was drained: the run has not shown that they are not cut")
	}
	text := checktest.Must(os.ReadFile(options.Out.Name()))(t)
	return result, string(text)
}

// The whole life of all CloneSets: with hooks nothing is lost, without them something
// is.
func TestHooksLoseNothing(t *testing.T) {
	options := short(t)
	options.hooksOnly, options.Page = false, filepath.Join(t.TempDir(), "demo.html")
	result, shown := play(t, options)
	off := result.Runs[1].sum(func(o Outcome) int { return o.Report.Total().Lost })
	if lost := recorded(t, options.Page); lost[runOn] != 0 || lost[runOff] != off {
		t.Errorf("the page has lost requests %v, want none with hooks, and %d without", lost, off)
	}
	if len(result.Runs) != 2 || result.Runs[1].Hooks || result.Runs[1].Lost() == 0 {
		t.Error("nothing was lost without hooks: the run has not shown what hooks are for")
	}
	checktest.Says(t, "what is shown", shown,
		"PreparingUpdate → Updating  (left etcd", "runs v2", "Updated → Normal", "PreparingDelete", "has left discovery; callers may still use it",
		"is deleted  (left etcd", "is gone", "Draining", " is drained of ", "hooks and guard on: ", "hooks and guard off: ",
	)
}

// Usher is killed in every phase, and in one of them the registry is stopped as well.
func TestTroubleLosesNothing(t *testing.T) {
	options := short(t)
	options.KillUsher, options.StopRegistry = true, true
	result, shown := play(t, options)
	checktest.Same(t, "how often Usher was killed", len(options.phases()), strings.Count(shown, "Usher is killed"))
	waited := strings.Join(result.Runs[0].Waited, "\n")
	checktest.Says(t, "what the objects say during the outage", waited, "Pod web-", "inPlaceUpdate", "Registry discovery")
}

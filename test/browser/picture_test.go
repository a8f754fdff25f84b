// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/internal/view"
)

var update = flag.Bool("update", false, "write the pictures")

const (
	// noticeable is by how much a colour of two pixels has to differ, of 65535.
	noticeable = 10_000
	// tolerance is how many of a picture's pixels may differ, in thousandths: another release of
	// Chromium smooths the edges of letters in another way.
	tolerance = 5
)

// TestPictures compares the page with reviewed pictures; go test . -update writes them. The browser has
// one font, and its clock stands still.
func TestPictures(t *testing.T) {
	b := open(t, 1280, 640)
	b.stopClock()
	for name, recording := range map[string]*page.Recording{"live": rollout(15), "many": rollout(2000), "demo": runs()} {
		for _, look := range []string{"light", "dark"} {
			t.Run(name+"-"+look, func(t *testing.T) {
				params := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look}}}
				checktest.Must(chromedp.Call(b.ctx, emulation.SetEmulatedMedia, params))(t)
				b.show(t, recording)
				compare(t, filepath.Join("testdata", name+"-"+look+".png"), get(b, chromedp.CaptureScreenshot()))
			})
		}
	}
}

// stopClock stops the clock of the pages that are opened after it.
func (b *tab) stopClock() {
	b.Helper()
	params := cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: "performance.now = () => 0"}
	checktest.Must(chromedp.Call(b.ctx, cdppage.AddScriptToEvaluateOnNewDocument, params))(b)
}

// show opens a recording as a file, and waits until it is drawn.
func (b *tab) show(t *testing.T, recording *page.Recording) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.html")
	out := checktest.Must(os.Create(file))(t)
	checktest.NoError(t, page.WriteFile(out, recording))
	checktest.NoError(t, out.Close())
	b.do(chromedp.Navigate("file://" + file))
	b.eventually("a picture", `document.querySelector(".axis").width > 0`)
}

// compare compares a picture with the one in a file.
func compare(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		checktest.NoError(t, os.WriteFile(file, got, 0o600))
	}
	golden := checktest.Must(os.ReadFile(file))(t)
	a, b := decoded(t, golden), decoded(t, got)
	if a.Bounds() != b.Bounds() {
		t.Fatalf("%v, want %v", b.Bounds(), a.Bounds())
	}
	differ, all := 0, a.Bounds().Dx()*a.Bounds().Dy()
	for y := range a.Bounds().Dy() {
		for x := range a.Bounds().Dx() {
			if apart(a, b, x, y) {
				differ++
			}
		}
	}
	if differ*1000 > all*tolerance {
		seen := filepath.Join(os.TempDir(), filepath.Base(file))
		t.Errorf("%d of %d pixels differ from %s; what was seen is in %s (%v)", differ, all, file, seen, os.WriteFile(seen, got, 0o600))
	}
}

func decoded(t *testing.T, data []byte) image.Image {
	t.Helper()
	return checktest.Must(png.Decode(bytes.NewReader(data)))(t)
}

func apart(a, b image.Image, x, y int) bool {
	r, g, bl, _ := a.At(x, y).RGBA()
	r2, g2, bl2, _ := b.At(x, y).RGBA()
	return slices.ContainsFunc([][2]uint32{{r, r2}, {g, g2}, {bl, bl2}}, func(pair [2]uint32) bool { return max(pair[0], pair[1])-min(pair[0], pair[1]) > noticeable })
}

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// rollout returns a live recording: one Pod after the other is updated in place; the third does not
// come back, and below there is a Deployment.
func rollout(pods int) *page.Recording {
	r := page.NewRecorder(noon, "Usher: namespace shop", time.Hour)
	web := page.Seen{Workload: view.Workload{
		Summary: view.Summary{
			Kind: "CloneSet", Namespace: "shop", Name: "web", Phase: view.PhaseUpdating, Desired: pods, Available: pods - 3, Updated: 10, ToUpdate: pods,
			Budget: &view.Budget{Method: "InPlaceIfPossible", MaxUnavailable: 3, Unavailable: 3}, Deadline: noon.Add(8 * time.Minute),
		},
		Previous:  &view.Revision{Name: "web-1", Number: 1},
		Revisions: []view.Revision{{Name: "web-2", Pods: 10, Images: []string{"main=web:v2"}}, {Name: "web-1", Pods: pods - 10, Images: []string{"main=web:v1"}}},
	}}
	web.Registers = []view.Registers{{Registration: "web"}}
	for i := range pods {
		web.Members = append(web.Members, serving(fmt.Sprintf("web-%04d", i), "discovery", "lb"))
	}
	web.Actions = page.Actions(&web.Workload)
	cart := page.Seen{Workload: view.Workload{Summary: view.Summary{Kind: "Deployment", Namespace: "shop", Name: "cart", Phase: view.PhaseDone, Desired: 3, Available: 3, Updated: 3, ToUpdate: 3}}}
	for i := range 3 {
		cart.Members = append(cart.Members, serving(fmt.Sprintf("cart-6c9f-%d", i), "discovery"))
	}
	for second := 0; second < 180; second += 2 {
		now := noon.Add(time.Duration(second) * time.Second)
		for i := range min(pods, 15) {
			updating(&web.Members[i], i, (second-i*12)/6, now)
		}
		r.Observe(now, []page.Seen{web, cart})
	}
	return r.Recording()
}

func serving(name string, registries ...string) view.Pod {
	p := view.Pod{Name: name, State: "Normal", Ready: true, Available: true, Created: noon.Add(-3 * time.Hour), Changed: noon.Add(-2 * time.Hour)}
	for _, r := range registries {
		p.Entries = append(p.Entries, view.Entry{Registry: r, Listed: "True"})
	}
	return p
}

// updating sets the state of a Pod at a step of its update.
func updating(p *view.Pod, i, step int, now time.Time) {
	if step < 0 || step > 4 || i == 2 && step > 2 {
		return
	}
	p.State = []string{"PreparingUpdate", "PreparingUpdate", "Updating", "Updated", "Normal"}[step]
	p.Ready, p.Available, p.Waits, p.Trouble = step != 2, step == 4, nil, false
	for j := range p.Entries {
		if p.Entries[j].Listed = "False"; step <= j || step == 4 {
			p.Entries[j].Listed = "True"
		}
	}
	waiting(p, i, step, now)
}

// waiting sets the wait of a Pod.
func waiting(p *view.Pod, i, step int, now time.Time) {
	switch {
	case step < 2:
		p.Waits = []view.Wait{{What: "leaves discovery, lb", Since: now, Deadline: now.Add(5 * time.Minute)}}
	case step == 2 && i == 2:
		p.Trouble, p.Restarts = true, 1
		p.Waits = []view.Wait{{What: "is not ready: container main: CrashLoopBackOff", Since: now, Next: "kubectl logs web-0002 -c main --previous -n shop"}}
	case step == 2:
		p.Restarts = 1
	case step == 3:
		p.Waits = []view.Wait{{What: "waits to be listed by discovery, lb", Since: now}}
	}
}

// runs returns two runs side by side, of which the second loses requests.
func runs() *page.Recording {
	all := &page.Recording{Title: "Usher: make demo"}
	for _, hooks := range []bool{true, false} {
		run := page.Run{Title: map[bool]string{true: "Hooks and guard on", false: "Hooks and guard off"}[hooks], Now: 60_000}
		for i, phase := range []string{"create", "update", "scale in"} {
			run.Marks = append(run.Marks, page.Mark{At: int64(i) * 19_000, Kind: page.MarkPhase, Text: phase})
		}
		set := page.Set{ID: "web", Title: "CloneSet demo/web", Registries: []string{"etcd"}}
		for i := range 6 {
			set.Lanes = append(set.Lanes, life(i, hooks))
		}
		run.Sets = []page.Set{set}
		all.Runs = append(all.Runs, run)
	}
	return all
}

// life returns the lane of a Pod, from its creation to a scale-in.
func life(i int, hooks bool) *page.Lane {
	lane, later, in := &page.Lane{Pod: view.Pod{Name: fmt.Sprintf("web-%c7k2p", 'a'+i)}}, int64(i)*1500, []string{"etcd"}
	for _, s := range []page.Segment{
		{At: 500, State: "PreparingNormal"}, {At: 2500, State: "PreparingNormal", Ready: true}, {At: 3500, State: "Normal", Ready: true, In: in},
		{At: 20_000, State: "PreparingUpdate", Ready: true, In: in}, {At: 21_000, State: "PreparingUpdate", Ready: true}, {At: 24_000, State: "Updating"},
		{At: 26_000, State: "Updated", Ready: true}, {At: 26_800, State: "Normal", Ready: true, In: in}, {At: 39_000, State: "PreparingDelete", Ready: true},
		{At: 43_000, State: "Terminating"}, {At: 44_000},
	} {
		if s.At < 39_000 || i >= 4 {
			s.At += later
			lane.Segments = append(lane.Segments, s)
		}
	}
	lane.Marks = []page.Mark{{At: 25_500 + later, Kind: page.MarkRestart}}
	if !hooks {
		lane.Marks = append(lane.Marks, page.Mark{At: 24_400 + later, Kind: page.MarkLost, Count: 3})
	}
	return lane
}

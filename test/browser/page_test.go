// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/internal/view"
)

// served is a page that is served on loopback.
type served struct {
	*tab
	server  *page.Server
	end     context.CancelFunc
	address string
	done    chan string

	mu       sync.Mutex
	requests []string
}

// serve opens the page in a browser.
func serve(t *testing.T) *served {
	t.Helper()
	s := &served{tab: open(t, 1280, 860), done: make(chan string, 1)}
	recorder := page.NewRecorder(time.Now(), "Usher: namespace shop", time.Hour)
	recorder.Recording().Empty = "There is no CloneSet here. Make one."
	s.server = page.NewServer(recorder, func(_ context.Context, set, action, to string) error {
		s.done <- strings.Join([]string{set, action, to}, " ")
		return nil
	})
	listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	s.end = end
	go func() { _ = s.server.Serve(ctx, listener) }() // the browser finds out
	checktest.NoError(t, chromedp.Listen(s.ctx, s.hear))
	s.address = s.server.Address(listener)
	checktest.Must(chromedp.Call(s.ctx, network.Enable, network.EnableParams{}))(t)
	s.do(chromedp.Navigate(s.address))
	return s
}

func (s *served) hear(event any) {
	if sent, ok := event.(*network.EventRequestWillBeSent); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, sent.Request.URL)
	}
}

func (s *served) observe(all ...page.Seen) {
	s.Helper()
	s.server.Observe(time.Now(), "", all)
}

// eventually waits until a script's condition holds.
func (b *tab) eventually(what, condition string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bound)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool]("!!("+condition+")", chromedp.WithPollingInterval(50*time.Millisecond))); err != nil {
		b.Fatalf("%s: %v; the page says:\n%s", what, err, get(b, chromedp.Evaluate[string]("document.body.innerText")))
	}
}

// set returns a CloneSet of Pods a, b, c …, of which the first has that state.
func set(state string, phase view.Phase, pods int) page.Seen {
	seen := page.Seen{Workload: view.Workload{
		Summary:  view.Summary{Kind: "CloneSet", Namespace: "shop", Name: "web", Phase: phase, Desired: pods, Available: pods, ToUpdate: pods},
		Previous: &view.Revision{Name: "web-1", Number: 1, Images: []string{"main=web:v1"}},
	}}
	for i := range pods {
		p := view.Pod{Name: fmt.Sprintf("web-%04d", i), State: "Normal", Ready: true, Available: true, Created: time.Now(), Changed: time.Now()}
		p.Entries = []view.Entry{{Registry: "discovery", Listed: "True"}}
		seen.Members = append(seen.Members, p)
	}
	seen.Members[0].State = state
	seen.Actions = page.Actions(&seen.Workload)
	return seen
}

const text = "document.body.innerText"

// TestPage: lanes appear and change with the server's deltas, and a wait that does not end by itself is
// announced. The keyboard alone finds a Pod, pauses the rollout after a confirmation, and cancels
// another action. The page sends requests only to the server.
func TestPage(t *testing.T) {
	s := serve(t)
	s.observe(set("Normal", view.PhaseUpdating, 3))
	s.eventually("lanes", text+`.includes("web-0002") && document.querySelector("#link").textContent === "live"`)
	stuck := set("PreparingUpdate", view.PhaseUpdating, 3)
	stuck.Members[0].Trouble, stuck.Members[0].Waits = true, []view.Wait{{What: "waits for a hook that nobody answers", Next: "kubectl usher release"}}
	s.observe(stuck)
	s.eventually("a change", `document.querySelector("tbody tr.bad .state")?.textContent === "PreparingUpdate"`)
	s.eventually("trouble", `document.querySelector("#trouble[aria-live]")?.innerText.includes("nobody answers kubectl usher release")`)
	s.named("grid Pods of CloneSet shop/web", "rowheader web-0001", "button Pause CloneSet shop/web", "progressbar 0 of 3 updated", "searchbox Find", "list Legend")

	s.press("Pause CloneSet shop/web")
	s.eventually("a question", `document.querySelector("#ask[open]") && document.activeElement.id === "ask-no"`)
	s.named("dialog Pause CloneSet shop/web?")
	s.do(chromedp.KeyEvent("\x1b"))
	s.eventually("no question", `!document.querySelector("#ask[open]") && document.activeElement.textContent === "Pause"`)
	s.do(chromedp.KeyEvent("\r"))
	s.eventually("the question again", `document.querySelector("#ask[open]")`)
	s.do(chromedp.KeyEvent("\t"), chromedp.KeyEvent("\r"))
	select {
	case got := <-s.done:
		checktest.Same(t, "what the page asks for", "CloneSet/shop/web pause ", got)
	case <-time.After(bound):
		t.Fatal("nothing reaches the server")
	}
	s.observe(set("Normal", view.PhasePaused, 3))
	s.eventually("what follows", `!document.querySelector("#ask[open]") && [...document.querySelectorAll(".actions button")].map(b => b.textContent).join() === "Undo,Resume"`)

	s.do(chromedp.Focus(chromedp.CSS("table")), chromedp.KeyEvent(kb.ArrowDown))
	s.eventually("the second row", `document.getElementById(document.activeElement.getAttribute("aria-activedescendant"))?.innerText.startsWith("web-0001")`)
	s.do(chromedp.KeyEvent("\r"))
	s.eventually("the Pod", `document.querySelector("#pod[open]")?.innerText.includes("web-0001")`)
	s.mu.Lock()
	defer s.mu.Unlock()
	own, _, _ := strings.Cut(s.address, "#")
	for _, url := range s.requests {
		if !strings.HasPrefix(url, own) {
			t.Errorf("the page asks %s", url)
		}
	}
	if len(s.requests) < 3 {
		t.Errorf("only %q was heard", s.requests)
	}
}

// TestNoAnswer: while the API server or the plugin does not answer, the page says since when, its bars
// end there, and its buttons are disabled.
func TestNoAnswer(t *testing.T) {
	s := serve(t)
	s.observe(set("Normal", view.PhaseUpdating, 3))
	s.eventually("lanes", text+`.includes("web-0002") && !document.querySelector(".actions button").disabled`)
	since := time.Now()
	s.server.Silent(since)
	const off = `[...document.querySelectorAll(".actions button")].every(b => b.disabled) && document.querySelector("#link.bad")`
	s.eventually("silence", off+fmt.Sprintf(`?.textContent === "no answer from the API server since %s"`, since.UTC().Format(time.TimeOnly)))
	s.server.Silent(time.Time{})
	s.eventually("its end", `document.querySelector("#link").textContent === "live" && !document.querySelector(".actions button").disabled`)
	s.end()
	s.eventually("the end of the plugin", off+`?.textContent.startsWith("no answer since ")`)
	s.shot("no-answer")
}

// TestMany: if there are many Pods, those with the same text are one row, which Enter opens and closes;
// the search covers each of them, and says so if it finds none.
func TestMany(t *testing.T) {
	s := serve(t)
	many := set("PreparingUpdate", view.PhaseUpdating, 80)
	many.Members[0].Trouble, many.Members[0].Waits = true, []view.Wait{{What: "waits for a hook that nobody answers"}}
	many.Revisions = []view.Revision{{Name: "web-2", Pods: 80, Images: []string{"main=web:v2"}}}
	many.Registers = []view.Registers{{Registration: "web"}}
	s.observe(many)
	const rows = `[...document.querySelectorAll("tbody .name")].map(one => one.textContent).join()`
	s.eventually("two rows", rows+` === "web-0000,▸ 79 Pods"`)
	s.eventually("what it is about", text+`.includes("web-2 (80) main=web:v2 · Registration web")`)
	s.shot("many-grouped")
	s.named("treegrid Pods of CloneSet shop/web")
	s.do(chromedp.Focus(chromedp.CSS("table")), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent("\r"))
	s.eventually("all rows", rows+`.startsWith("web-0000,▾ 79 Pods,web-0001,web-0002") && document.querySelector("tr.group").ariaExpanded === "true"`)
	s.do(chromedp.KeyEvent("\r"))
	s.eventually("two rows again", rows+` === "web-0000,▸ 79 Pods"`)
	s.do(chromedp.Focus(chromedp.CSS("#find")), chromedp.KeyEvent("web-0042"))
	s.eventually("the one that was looked for", rows+` === "web-0042"`)
	s.do(chromedp.KeyEvent("x"))
	s.eventually("none", `!`+rows+` && document.querySelector("#nothing").textContent.includes("“web-0042x”") && document.querySelector(".set").hidden`)
	s.shot("find-nothing")
}

// TestNamespaces: the reader chooses another namespace, and sees its workloads instead.
func TestNamespaces(t *testing.T) {
	s := serve(t)
	s.observe(set("Normal", view.PhaseDone, 3))
	s.eventually("no choice of one", text+`.includes("web-0002") && document.querySelector("#namespace").parentNode.hidden`)
	follow := func(namespace string) {
		recorder := page.NewRecorder(time.Now(), "Usher: namespace "+namespace, time.Hour)
		r := recorder.Recording()
		r.Namespace, r.Namespaces = namespace, []string{"billing", "shop"}
		s.server.Follow(recorder)
	}
	follow("shop")
	s.eventually("two to choose from", `document.querySelector("#namespace").value === "shop" && !`+text+`.includes("web-0002")`)
	s.named("combobox Namespace")
	s.do(chromedp.Focus(chromedp.CSS("#namespace")), chromedp.KeyEvent(kb.ArrowUp))
	select {
	case got := <-s.done:
		checktest.Same(t, "what the page asks for", " namespace billing", got)
	case <-time.After(bound):
		t.Fatal("nothing reaches the server")
	}
	follow("billing")
	s.eventually("the other", `document.querySelector("h1").textContent.endsWith("billing") && document.querySelector("#namespace").value === "billing"`)
	s.shot("namespaces")
}

// TestEmpty: a namespace with nothing to show says what to do, until there is something.
func TestEmpty(t *testing.T) {
	s := serve(t)
	s.server.Observe(time.Now(), "You may not list and watch Registrations in namespace shop.", nil)
	s.eventually("what to do", text+`.includes("There is no CloneSet here. Make one.") && `+text+`.includes("You may not list")`)
	s.shot("empty")
	s.observe(set("Normal", view.PhaseDone, 1))
	s.eventually("lanes", text+`.includes("web-0000") && document.querySelector("#nothing").hidden`)
}

// shot writes a picture to look at.
func (b *tab) shot(name string) {
	b.Helper()
	file := filepath.Join(os.TempDir(), "usher-"+name+".png")
	checktest.NoError(b, os.WriteFile(file, get(b, chromedp.CaptureScreenshot()), 0o600))
	b.Log("what was seen is in " + file)
}

// press goes to a button with the tabulator key, and presses it.
func (b *tab) press(name string) {
	b.Helper()
	for range 20 {
		b.do(chromedp.KeyEvent("\t"))
		if get(b, chromedp.Evaluate[string](`document.activeElement.getAttribute("aria-label") ?? ""`)) == name {
			b.do(chromedp.KeyEvent("\r"))
			return
		}
	}
	b.Fatalf("the keyboard does not get to %q", name)
}

// named checks that all roles in the accessibility tree have names.
func (b *tab) named(want ...string) {
	b.Helper()
	tree := checktest.Must(chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}))(b)
	var got []string
	for _, node := range tree.Nodes {
		if node.Role != nil && node.Name != nil && !node.Ignored {
			got = append(got, strings.Trim(string(node.Role.Value), `"`)+" "+strings.Trim(string(node.Name.Value), `"`))
		}
	}
	for _, one := range want {
		if !slices.Contains(got, one) {
			b.Errorf("no %q in\n%s", one, strings.Join(got, "\n"))
		}
	}
}

// frames scrolls through the page for 120 frames, and measures them.
const frames = `new Promise(done => {
  let n = 0, began = performance.now();
  const step = () => {
    scrollBy(0, 37);
    if (++n < 120) return requestAnimationFrame(step);
    done(n / (performance.now() - began) * 1000);
  };
  requestAnimationFrame(step);
})`

// TestFrames: with 2,000 Pods, of which some change four times a second, the page scrolls about as fast
// as with 40, since it draws only the visible ones. The numbers are in the log.
func TestFrames(t *testing.T) {
	rates := map[int]float64{}
	for _, pods := range []int{40, 2000} {
		s := serve(t)
		s.observe(set("Normal", view.PhaseUpdating, pods))
		if pods > 40 {
			s.eventually("one row", text+`.includes("2,000 Pods") && document.querySelectorAll("tbody tr").length === 1`)
			s.do(chromedp.Focus(chromedp.CSS("table")), chromedp.KeyEvent("\r"))
		}
		s.eventually("lanes", text+`.includes("web-0001")`)
		ctx, stop := context.WithCancel(t.Context())
		var changing sync.WaitGroup
		changing.Go(func() { s.change(ctx, pods) })
		rates[pods] = get(s.tab, chromedp.Evaluate[float64](frames, chromedp.EvalAwaitPromise))
		stop()
		changing.Wait()
		rows := get(s.tab, chromedp.Evaluate[int](`document.querySelectorAll("tbody tr").length`))
		t.Logf("%d Pods: %.0f frames a second, %d rows in the document", pods, rates[pods], rows)
		if rows > 80 {
			t.Errorf("%d Pods: %d rows are in the document", pods, rows)
		}
	}
	if rates[2000] < rates[40]/4 {
		t.Errorf("2,000 Pods: %.0f frames a second; 40 Pods: %.0f", rates[2000], rates[40])
	}
}

// change changes every fortieth Pod four times a second.
func (s *served) change(ctx context.Context, pods int) {
	clock := time.NewTicker(250 * time.Millisecond)
	defer clock.Stop()
	states := []string{"PreparingUpdate", "Updating", "Updated", "Normal"}
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		seen := set("Normal", view.PhaseUpdating, pods)
		for i := turn % 40; i < pods; i += 40 {
			seen.Members[i].State = states[turn%4]
		}
		s.observe(seen)
	}
}

// TestSearch: the keyboard finds a section of the documentation and goes there, in the site as `make
// docs` writes it to the disk: without a server and without a network.
func TestSearch(t *testing.T) {
	home := checktest.Must(filepath.Abs("../../bin/docs/index.html"))(t)
	b := open(t, 1280, 860)
	b.do(chromedp.Navigate("file://"+home), chromedp.Focus(chromedp.CSS("#search")), chromedp.KeyEvent("whose service"))
	b.eventually("the best first", `document.querySelector("#results li")?.textContent.includes("Whose a service is")`)
	b.eventually("the words marked", `[...document.querySelectorAll("#results mark")].some((m) => m.textContent === "service")`)
	b.named("combobox Search", "listbox Pages found")
	b.do(chromedp.KeyEvent("\r"), chromedp.WaitVisible(chromedp.CSS(`nav [aria-current][href*="registration"]`)))
}

// TestSearchKnowsOtherWords: the search lists pages that say what to do before pages about the design,
// and finds pages also by words that people use for theirs.
func TestSearchKnowsOtherWords(t *testing.T) {
	home := checktest.Must(filepath.Abs("../../bin/docs/index.html"))(t)
	b := open(t, 1280, 860)
	b.do(chromedp.Navigate("file://"+home), chromedp.Focus(chromedp.CSS("#search")))
	for word, page := range map[string]string{
		"rollback": "troubleshooting.html#go-back", "canary": "update-in-place.html#a-few-pods-first",
		"ImagePullBackOff": "troubleshooting.html#a-container", "crash": "troubleshooting.html#a-container", "drain a node": "drain-a-node.html",
		"whose a service": "registration.html#whose",
	} {
		b.do(chromedp.SetValue(chromedp.CSS("#search"), word))
		b.eventually(word+" leads to "+page, fmt.Sprintf(`document.getElementById("search").dispatchEvent(new Event("input")) &&
			document.querySelector("#results a")?.href.includes(%q)`, page))
	}
}

// TestSiteOnAPhone: no page is wider than the screen, tables are cards with the headings of their columns, and
// commands have a button that copies them. The header says which version it is.
func TestSiteOnAPhone(t *testing.T) {
	folder := checktest.Must(filepath.Abs("../../bin/docs"))(t)
	b := open(t, 380, 700)
	for _, page := range []string{"index", "install", "troubleshooting", "metrics", "registration", "performance"} {
		b.do(chromedp.Navigate("file://" + filepath.Join(folder, page+".html")))
		b.eventually("page "+page+" fits", `document.documentElement.scrollWidth <= innerWidth`)
		b.eventually("its tables fit", `[...document.querySelectorAll(".table")].every((t) => t.scrollWidth <= t.clientWidth + 1)`)
	}
	b.do(chromedp.Navigate("file://" + filepath.Join(folder, "first-deployment.html")))
	b.eventually("a button beside each command", `document.querySelectorAll("pre > code.language-sh").length > 3 &&
		[...document.querySelectorAll("pre > code.language-sh")].every((c) => c.closest(".code").querySelector("button.copy"))`)
	b.eventually("the version", `/^Usher \d+\.\d+/.test(document.querySelector("header .name").textContent)`)
}

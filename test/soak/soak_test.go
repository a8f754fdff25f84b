// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/traffic"
)

// TestDraw: a seed decides all faults, all kinds come in each round, none is shorter or longer than it
// may be, and no fault ends Usher when it is to be spared.
func TestDraw(t *testing.T) {
	for _, ha := range []bool{false, true} {
		testDraw(t, (&soak{options: Options{HA: ha}}).kinds())
	}
}

func testDraw(t *testing.T, kinds []kind) {
	t.Helper()
	play := func(spare bool) (faults []fault) {
		d := &deck{random: rand.New(rand.NewPCG(7, 0)), kinds: kinds}
		for range 5 * len(kinds) {
			faults = append(faults, d.draw(spare))
		}
		return faults
	}
	first, again, seen := play(false), play(false), map[string]int{}
	for i, f := range first {
		if f != again[i] {
			t.Errorf("fault %d is %s, and with the same seed %s", i, f, again[i])
		}
		if f.takes < f.shortest || f.takes > f.shortest+f.length {
			t.Errorf("%s lasts %s", f.name, f.takes)
		}
		seen[f.name]++
	}
	for _, k := range kinds {
		if seen[k.name] != 5 {
			t.Errorf("%s came %d times in five rounds", k.name, seen[k.name])
		}
	}
	for _, f := range play(true) {
		if f.ends {
			t.Errorf("%s ends Usher, which was to be spared", f)
		}
	}
}

// TestFailed: a run fails if a request was lost, if the leader's goroutines or memory grew, and if
// anything remains; usage that goes up and down is no leak.
func TestFailed(t *testing.T) {
	led := func(goroutines, resident func(i int) int) *life {
		var all lives
		for i := range 100 {
			all.note(time.Unix(int64(i), 0), state{pid: 1, leads: true, goroutines: goroutines(i), resident: int64(resident(i)) << 20})
			all.note(time.Unix(int64(3*i), 0), state{pid: 2})
		}
		return all.longest()
	}
	flat, waves, grows := func(int) int { return 300 }, func(i int) int { return 50 + 10*(i%7) }, func(i int) int { return 50 + i }
	for says, r := range map[string]*Result{
		"": {longest: led(flat, waves)},
		"1 requests were lost": {
			longest: led(flat, waves), Report: traffic.Report{Sections: []traffic.Section{{Sent: 9, Lost: 1}}},
		},
		"goroutines grew from 65 to 144": {longest: led(grows, waves)},
		"memory grew from 65 MiB to":     {longest: led(flat, grows)},
		"no replica of Usher":            {longest: lives{}.longest()},
		"did not lead wrote patch pods":  {longest: led(flat, waves), Strays: []string{"patch pods"}},
		"2 requests were lost":           {before: "v0.1.0", longest: led(grows, grows), Report: traffic.Report{Sections: []traffic.Section{{Sent: 9, Lost: 2}}}},
		"there remain Pod web-1":         {longest: led(flat, waves), Left: []string{"Pod web-1"}},
	} {
		if failed := r.Failed(); (says == "") != (failed == "") || !strings.Contains(failed, says) {
			t.Errorf("it says %q, want %q", failed, says)
		}
		if text := r.Table().Markdown(); !strings.Contains(text, "| its goroutines after a tenth") == (r.before == "" && r.longest != nil) {
			t.Errorf("the table is\n%s", text)
		}
	}
}

// TestStrays: a write that took effect is stray if the last one to write the lease before was another replica.
func TestStrays(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	writes := func(by, resource string, code, received int) (w write) {
		w.Verb, w.ObjectRef.Resource, w.Response.Code, w.Received, w.Answered = "patch", resource, code, at(received), at(received+1)
		w.User.Extra = map[string][]string{credential: {by}}
		if resource == "leases" {
			w.ObjectRef.Name = lease
		}
		return w
	}
	log := []write{
		writes("b", "pods", 200, 1),                                                                                            // before anybody led
		writes("a", "leases", 200, 1), writes("b", "leases", 409, 2), writes("a", "pods", 200, 3), writes("b", "pods", 200, 4), // b's
		writes("b", "events", 201, 5), writes("b", "pods", 409, 5), writes("b", "leases", 200, 6), writes("a", "pods", 200, 6),
		writes("b", "clonesets", 200, 8), writes("a", "pods", 200, 9), // a's
	}
	for body, code := range map[string]int{ // the guard's, and one that was refused
		`{"metadata":{"uid":"1","annotations":{"usher.dev/deletion-request":"{}"}}}`: 200, `[{"op":"test"}]`: 409,
	} {
		w := writes("a", "pods", code, 10)
		w.Patch = []byte(body)
		log = append(log, w)
	}
	trial := writes("a", "pods", 200, 11)
	trial.RequestURI = "/api/v1/namespaces/demo/pods/web-1/eviction?dryRun=All"
	log = append(log, trial)
	operators := writes("a", "pods", 200, 12)
	operators.Patch = []byte(`{"metadata":{"resourceVersion":"7","annotations":{"usher.dev/deletion-request":"{}"}}}`)
	log = append(log, operators)
	var found []string
	for _, w := range strays(log) {
		found = append(found, w.by()+w.Received.Format(" 5"))
	}
	checktest.Same(t, "stray writes", []string{"[b] 1", "[b] 4", "[a] 9", "[a] 12"}, found)
}

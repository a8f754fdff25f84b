// SPDX-License-Identifier: Apache-2.0

package width

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

// control decides how many writes are under way: a Width, or a worse algorithm.
type control interface {
	Now() int
	Begin()
	Done(kind string, took time.Duration, tooMany bool)
}

// A rollout plays an in-place update of a set on an API server with two workers and a queue that it
// shares with the nodes, in the way the controller works: pass by pass, Pods that come back first, then
// four times as many starts as the width, and now and then the status. Pods that get ready during a
// pass return async, before other writes, and the next pass does not wait for them.
type rollout struct {
	events    []event // in order
	now       time.Duration
	random    *rand.Rand
	control   control
	latency   time.Duration // of a round trip
	restart   time.Duration
	service   time.Duration // of a write on the server
	workers   int           // idle workers of the server
	waiting   []func()      // for the server
	budget    int
	remaining int // Pods to update
	out       int
	mostOut   int
	ready     []*pod        // are to be put back into service
	jobs      []job         // of the pass, not begun
	reported  time.Duration // when the status was last written
	unjoined  int           // jobs of the pass that are not done
	doing     int
	returning int // outside passes
	outFor    []time.Duration
	// tooMany makes the server refuse writes.
	tooMany func() bool
}

type pod struct{ since time.Duration }

// job is a sequence of writes, and what happens after each.
type job []func()

type event struct {
	at time.Duration
	do func()
}

func (r *rollout) after(d time.Duration, do func()) {
	at := r.now + d
	last, _ := slices.BinarySearchFunc(r.events, at+1, func(e event, at time.Duration) int { return cmp.Compare(e.at, at) })
	r.events = slices.Insert(r.events, last, event{at, do})
}

// write sends a request; done is called with its answer.
func (r *rollout) write(done func()) {
	r.after(r.latency/2, func() {
		r.waiting = append(r.waiting, done)
		r.serve()
	})
}

func (r *rollout) serve() {
	for r.workers > 0 && len(r.waiting) > 0 {
		done := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.workers--
		r.after(r.service/2+time.Duration(r.random.Int64N(int64(r.service))), func() {
			r.workers++
			r.serve()
			r.after(r.latency/2, done)
		})
	}
}

// pass makes a pass of the controller.
func (r *rollout) pass() {
	if r.unjoined > 0 {
		return
	}
	for _, p := range r.ready {
		r.jobs = append(r.jobs, job{r.returns(p)})
	}
	r.ready = nil
	for starts := 4 * r.control.Now(); starts > 0 && r.remaining > 0 && r.out < r.budget; starts-- {
		p := &pod{}
		r.remaining--
		r.out++
		r.mostOut = max(r.mostOut, r.out)
		r.jobs = append(r.jobs, job{func() { p.since = r.now }, func() { r.kubelet(p) }})
	}
	r.unjoined = len(r.jobs)
	r.work()
}

func (r *rollout) returns(p *pod) func() {
	return func() {
		r.outFor = append(r.outFor, r.now-p.since)
		r.out--
	}
}

// back puts a Pod back into service, async while a pass goes on.
func (r *rollout) back(p *pod) {
	r.ready = append(r.ready, p)
	if r.unjoined == 0 {
		r.pass()
		return
	}
	r.beside()
}

func (r *rollout) beside() {
	for r.unjoined > 0 && len(r.ready) > 0 && r.returning < r.control.Now() {
		p := r.ready[0]
		r.ready = r.ready[1:]
		r.returning++
		r.do(job{r.returns(p)}, func() {
			r.returning--
			r.beside()
		})
	}
}

func (r *rollout) work() {
	for len(r.jobs) > 0 && r.doing < Room(r.control.Now(), r.returning) {
		j := r.jobs[0]
		r.jobs = r.jobs[1:]
		r.doing++
		r.do(j, r.joined)
	}
}

// joined ends a job of the pass. After the last job, the status is written, at most every two seconds,
// and then the next pass begins.
func (r *rollout) joined() {
	r.doing--
	end := func() {
		r.unjoined--
		r.after(0, r.pass)
	}
	switch {
	case r.unjoined > 1:
		r.unjoined--
		r.work()
	case r.now < r.reported+2*time.Second:
		end()
	default:
		r.reported = r.now
		r.write(end)
	}
}

func (r *rollout) do(j job, ended func()) {
	sent := r.now
	r.control.Begin()
	r.write(func() {
		if r.tooMany != nil && r.tooMany() {
			r.control.Done("patch", r.now-sent, true)
			r.after(time.Second, func() { r.do(j, ended) })
			return
		}
		r.control.Done("patch", r.now-sent, false)
		j[0]()
		if len(j) > 1 {
			r.do(j[1:], ended)
			return
		}
		ended()
	})
}

// kubelet restarts a Pod and writes its status: not ready, started, ready.
func (r *rollout) kubelet(p *pod) {
	r.after(20*time.Millisecond, func() {
		r.write(func() {})
		r.after(r.restart, func() {
			r.write(func() {
				r.write(func() { r.after(5*time.Millisecond, func() { r.back(p) }) })
			})
		})
	})
}

const (
	pods = 2000
	// usual is the service time with which two workers do as many writes as two processors.
	usual = 5500 * time.Microsecond
)

// play runs a rollout to its end, and returns Pods per second and the 99th percentile of the
// time that Pods are out of service.
func (r *rollout) play() (speed float64, out time.Duration) {
	r.workers, r.random, r.remaining, r.budget = 2, rand.New(rand.NewPCG(1, 2)), pods, pods/5
	r.pass()
	for len(r.outFor) < pods {
		e := r.events[0]
		r.now, r.events = e.at, r.events[1:]
		e.do()
	}
	slices.Sort(r.outFor)
	return pods / r.now.Seconds(), r.outFor[pods*99/100]
}

// possible returns the best speed that the API server and the budget allow, up to the last Pod's
// return.
func (r *rollout) possible() float64 {
	cycle := r.restart + 20*time.Millisecond + 4*(r.latency+r.service)
	api := time.Duration(float64(r.service) * 6 / 2)
	return pods / (pods*max(api, cycle/time.Duration(r.budget)) + cycle).Seconds()
}

func TestRollouts(t *testing.T) {
	for _, latency := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
		for _, restart := range []time.Duration{50 * time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second} {
			t.Run(fmt.Sprintf("latency %v, restart %v", latency, restart), func(t *testing.T) {
				r := &rollout{control: New(128), latency: latency, restart: restart, service: usual}
				speed, out := r.play()
				if possible := r.possible(); speed < 0.92*possible {
					t.Errorf("slow: %.1f Pods/s, of %.1f possible", speed, possible)
				}
				// The protocol itself has five round trips while a Pod is out of service. The rest is a queue, and
				// the wave of the first Pods if the budget bounds the rollout: they all restart in the same
				// time, while real ones spread more.
				most := restart + 5*latency + time.Second
				if restart < 5*time.Second {
					most -= 400 * time.Millisecond
				}
				if out > most {
					t.Errorf("out of service too long: %v at p99, more than %v", out, most)
				}
				if r.mostOut > r.budget {
					t.Errorf("over the budget: %d Pods out, more than %d", r.mostOut, r.budget)
				}
			})
		}
	}
}

type constant int

func (c constant) Now() int                       { return int(c) }
func (constant) Begin()                           {}
func (constant) Done(string, time.Duration, bool) {}

// TestConstants shows that no constant width suffices: a width that is large enough for a fast server
// far away floods a slow server near by.
func TestConstants(t *testing.T) {
	far := func(c control) float64 {
		speed, _ := (&rollout{control: c, latency: 100 * time.Millisecond, restart: time.Second, service: time.Millisecond}).play()
		return speed
	}
	near := func(c control) time.Duration {
		_, out := (&rollout{control: c, restart: 50 * time.Millisecond, service: 4 * usual}).play()
		return out
	}
	speed, out := far(New(256)), near(New(256))
	for c := constant(4); c <= 256; c *= 2 {
		if far(c) > 0.7*speed && near(c) < 2*out {
			t.Errorf("%d writes at a time: %.0f Pods/s far away, out of service for %v near by; a Width: %.0f, %v", c, far(c), near(c), speed, out)
		}
	}
}

// TestRefusals: a server answers every second write with 429 for two seconds.
func TestRefusals(t *testing.T) {
	w := New(128)
	r := &rollout{control: w, latency: 20 * time.Millisecond, restart: time.Second, service: usual}
	before, during := 0, 0
	count := 0
	r.tooMany = func() bool {
		switch {
		case r.now < 5*time.Second:
			before = w.Now()
		case r.now < 7*time.Second:
			during = w.Now()
			count++
			return count%2 == 0
		}
		return false
	}
	r.play()
	if during > before/2 || w.Now() <= during {
		t.Errorf("the width is %d before, %d while the server refuses, %d at the end", before, during, w.Now())
	}
}

// TestMovesAway: an API server that was near answers from far away, after a failover for instance.
// Three seconds later the width is about as wide as if it had always been there.
func TestMovesAway(t *testing.T) {
	w := New(128)
	r := &rollout{control: w, restart: 50 * time.Millisecond, service: usual}
	near, far := 0, 0
	r.tooMany = func() bool {
		switch {
		case r.now < 5*time.Second:
			near = w.Now()
		case r.now < 8*time.Second:
			r.latency = 100 * time.Millisecond
		case far == 0:
			far = w.Now()
		}
		return false
	}
	r.play()
	if near > 20 || far < 22 {
		t.Errorf("the width is %d near by, and %d three seconds after", near, far)
	}
}

// TestCollects: while the API server collects its garbage, as it does for 1.5 of 5 s, each write takes
// twice as long. Fewer Pods leave service meanwhile, so that others can come back.
func TestCollects(t *testing.T) {
	r := &rollout{control: New(128), restart: 50 * time.Millisecond, service: usual}
	r.tooMany = func() bool {
		if r.service = usual; r.now%(5*time.Second) < 1500*time.Millisecond {
			r.service = 2 * usual
		}
		return false
	}
	if speed, out := r.play(); speed < 48 || out > time.Second {
		t.Errorf("%.1f Pods/s, out of service for %v at p99", speed, out)
	}
}

// feed reports writes to a Width that all took the same time, as many at a time as it allows.
func feed(w *Width, writes int, took time.Duration) {
	for writes > 0 {
		round := w.Now()
		for range round {
			w.Begin()
		}
		for range round {
			w.Done("patch", took, false)
		}
		writes -= round
	}
}

func TestAdapts(t *testing.T) {
	w := New(64)
	feed(w, 500, 10*time.Millisecond)
	checktest.Same(t, "the width while nothing waits", 64, w.Now())
	feed(w, 128, 100*time.Millisecond)
	if w.Now() >= 64 {
		t.Errorf("the server has become slow, and the width is still %d", w.Now())
	}
	feed(w, 3000, 100*time.Millisecond)
	checktest.Same(t, "the width when the connection has become slow for good", 64, w.Now())
	w.Begin()
	w.Done("patch", 2*time.Second, false) // one write alone, which client-go has repeated
	if w.Now() >= 64 {
		t.Errorf("a write was stalled, and the width is %d", w.Now())
	}
	restarted := New(64)
	feed(restarted, 500, 10*time.Millisecond)
	for range 64 {
		restarted.Begin()
		restarted.Failed() // at once
	}
	feed(restarted, 500, 10*time.Millisecond)
	checktest.Same(t, "the width after writes that failed at once", 64, restarted.Now())
	idle := New(64)
	for range 500 {
		idle.Begin()
		idle.Done("patch", 10*time.Millisecond, false)
	}
	checktest.Same(t, "the width after one write at a time", 16, idle.Now())
}

// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// room is a Room under test: nobody runs it, and the test has the time.
type room struct {
	*Room
	clock *clocktesting.FakePassiveClock
	woken []string
}

func newRoom() *room {
	r := &room{clock: clocktesting.NewFakePassiveClock(epoch)}
	r.Room = NewRoom(r.clock, nil, func(namespace string) { r.woken = append(r.woken, namespace) })
	return r
}

// pass lets time pass.
func (r *room) pass(d time.Duration) { r.clock.SetTime(r.clock.Now().Add(d)) }

// wakes returns who was woken since it was last called.
func (r *room) wakes() []string {
	woken := r.woken
	r.woken = nil
	return woken
}

func wanted(pod, registration string, paths ...string) plan.Ask {
	return plan.Ask{
		AskKey: plan.AskKey{Pod: types.UID(pod), Registration: registration}, For: 5 * time.Second,
		Checks: list.Map(paths, func(path string) plan.Check {
			return plan.Check{At: netip.MustParseAddrPort("10.0.0.1:80"), Path: path}
		}),
	}
}

// names are the Pods of turns.
func names(turns []turn) []string {
	return list.Map(turns, func(t turn) string { return string(t.Pod) + " for " + t.Registration })
}

// TestRate: a Pod is asked once a second, whoever asks and however often it is wanted, and a request takes a second each.
func TestRate(t *testing.T) {
	r := newRoom()
	all := []plan.Ask{wanted("a", "one", "/"), wanted("b", "one", "/", "/more"), wanted("a", "two", "/")}
	r.Want("shop", all)
	due, _ := r.take()
	checktest.Same(t, "who is asked first", []string{"a for one", "b for one"}, names(due))
	r.pass(time.Second)
	again, _ := r.take()
	checktest.Same(t, "who is asked then", []string{"a for two"}, names(again))
	for _, one := range slices.Concat(due, again) {
		r.note(one, result{said: said{idle: false}})
	}
	r.Want("shop", nil)
	r.Want("shop", all)
	none, next := r.take()
	checktest.Same(t, "who is asked at once", nil, names(none))
	checktest.Same(t, "when somebody is asked", time.Second, next)
	r.pass(time.Second)
	due, _ = r.take()
	checktest.Same(t, "who is asked in the end", []string{"a for one", "b for one"}, names(due))
}

// TestPlaces: Pods of a namespace that do not answer keep those of others from nothing.
func TestPlaces(t *testing.T) {
	r := newRoom()
	var asks []plan.Ask
	for i := range 2 * mostOfNamespace {
		asks = append(asks, wanted(fmt.Sprintf("slow-%02d", i), "one", "/"))
	}
	r.Want("slow", asks)
	r.Want("shop", []plan.Ask{wanted("a", "one", "/")})
	due, _ := r.take()
	checktest.Same(t, "how many are asked", mostOfNamespace+1, len(due))
	checktest.Same(t, "who is among them", "a for one", names(due)[0])
	r.note(due[1], result{})
	due, _ = r.take()
	checktest.Same(t, "who comes next", []string{"slow-16 for one"}, names(due))
}

// serving is a Pod in service that is asked every ten seconds.
func serving(pod string) plan.Ask {
	ask := wanted(pod, "one", "/")
	ask.Serves, ask.Every = true, 10*time.Second
	return ask
}

// TestServing: Pods in service are asked seldom and last, and at once again when they leave.
func TestServing(t *testing.T) {
	r := newRoom()
	var asks []plan.Ask
	for i := range 2 * mostServing {
		asks = append(asks, serving(fmt.Sprintf("pod-%02d", i)))
	}
	all := append(slices.Clone(asks), wanted("z", "one", "/"))
	r.Want("shop", all)
	due, _ := r.take()
	checktest.Same(t, "how many are asked", mostServing+1, len(due))
	checktest.Same(t, "who is first", "z for one", names(due)[0])
	for _, one := range due {
		r.note(one, result{said: said{underWay: new(int64(1))}})
	}
	r.Want("shop", asks)
	due, _ = r.take()
	checktest.Same(t, "who comes next", "pod-08 for one", names(due)[0])
	for _, one := range due {
		r.note(one, result{})
	}
	asks[1].Every = time.Minute
	r.Want("shop", asks)
	r.pass(5 * time.Second)
	none, next := r.take()
	checktest.Same(t, "who is asked too soon", nil, names(none))
	checktest.Same(t, "when somebody is asked", 5*time.Second, next)
	checktest.Same(t, "how many answers are known, also of one that is asked less often", 2*mostServing, len(r.Answers("shop")))
	r.Want("shop", []plan.Ask{asks[0], wanted("pod-01", "one", "/")})
	due, _ = r.take()
	checktest.Same(t, "who leaves, and is asked at once", []string{"pod-01 for one"}, names(due))
	checktest.Same(t, "what is known of it", 1, len(r.Answers("shop")))
}

// TestServingNotes: which answers of Pods in service have a pass made.
func TestServingNotes(t *testing.T) {
	r := newRoom()
	r.Want("shop", []plan.Ask{serving("a")})
	busy := func(n int64) result { return result{said: said{underWay: new(n)}} }
	idle := result{said: said{idle: true, underWay: new(int64(0))}}
	for i, c := range []struct {
		answer result
		wakes  []string
	}{
		{busy(3), []string{"shop"}}, // the first one
		{busy(2), nil},              // of the same class
		{busy(40), []string{"shop"}},
		{idle, []string{"shop"}},
		{idle, []string{"shop"}}, // for long enough
		{idle, nil},
		{result{problem: "silent"}, []string{"shop"}},
		{result{problem: "silent"}, nil},
	} {
		due, _ := r.take()
		checktest.Same(t, fmt.Sprint("how many are asked in turn ", i), 1, len(due))
		r.note(due[0], c.answer)
		checktest.Same(t, fmt.Sprint("who is woken in turn ", i), c.wakes, r.wakes())
		r.pass(10 * time.Second)
	}
}

// TestNotes: which answers have a pass made.
func TestNotes(t *testing.T) {
	r := newRoom()
	r.Want("shop", []plan.Ask{wanted("a", "one", "/")})
	busy := func(n int64) result { return result{said: said{underWay: new(n)}} }
	idle := result{said: said{idle: true, underWay: new(int64(0))}}
	for i, c := range []struct {
		answer result
		wakes  []string
		since  time.Duration // of being idle; -1 while it is busy
	}{
		{busy(3), []string{"shop"}, -1}, // 0s: the first one
		{busy(2), nil, -1},              // 1s
		{idle, nil, 2 * time.Second},
		{idle, nil, 2 * time.Second},
		{busy(1), nil, -1}, // 4s: back to busy
		{idle, nil, 5 * time.Second},
		{result{problem: "silent"}, nil, -1},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, []string{"shop"}, 7 * time.Second}, // 10s: something else than 3
		{idle, nil, 7 * time.Second},
		{idle, []string{"shop"}, 7 * time.Second}, // 12s: idle for 5s
		{idle, nil, 7 * time.Second},              // and nobody has let it go yet
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, nil, 7 * time.Second},
		{idle, []string{"shop"}, 7 * time.Second}, // 22s: it is still there
		{busy(9), nil, -1},
	} {
		due, _ := r.take()
		r.note(due[0], c.answer)
		checktest.Same(t, fmt.Sprintf("who is woken after %ds", i), c.wakes, r.wakes())
		since := time.Duration(-1)
		if answer := r.Answers("shop")[plan.AskKey{Pod: "a", Registration: "one"}]; !answer.IdleSince.IsZero() {
			since = answer.IdleSince.Sub(epoch)
		}
		checktest.Same(t, fmt.Sprintf("since when it is idle after %ds", i), c.since, since)
		r.pass(time.Second)
	}
}

// panics is a transport with a bug.
type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("a bug") }

// TestPanics: a bug in what reads answers makes a Pod busy, and ends nothing.
func TestPanics(t *testing.T) {
	r := newRoom()
	r.client.Transport = panics{}
	got := r.askPod(t.Context(), wanted("a", "one", "/").Checks)
	checktest.Same(t, "the answer", "its answer cannot be read false", fmt.Sprint(got.problem, " ", got.idle))
}

// TestForgets: what was answered to other checks, and by Pods that nobody wants, is forgotten.
func TestForgets(t *testing.T) {
	r := newRoom()
	answers := func() int { return len(r.Answers("shop")) }
	say := func() {
		due, _ := r.take()
		for _, one := range due {
			r.note(one, result{said: said{idle: true}})
		}
		r.pass(time.Minute)
	}
	r.Want("shop", []plan.Ask{wanted("a", "one", "/"), wanted("b", "one", "/")})
	say()
	checktest.Same(t, "the answers", 2, answers())
	r.Want("shop", []plan.Ask{wanted("a", "one", "/"), wanted("b", "one", "/other")})
	r.Want("elsewhere", []plan.Ask{wanted("c", "one", "/")})
	checktest.Same(t, "the answers to the same checks", 1, answers())
	say()
	late, _ := r.take()
	r.Want("shop", nil)
	r.Want("elsewhere", nil)
	for _, one := range late {
		r.note(one, result{said: said{idle: true}})
	}
	r.pass(time.Minute)
	r.Want("shop", nil)
	checktest.Same(t, "what is left", "0 0 0 0 0", fmt.Sprint(answers(), len(r.asked), len(r.pods), len(r.turns), len(r.reported)))
}

// TestStart: a room that runs asks a Pod until it is idle, and has a pass made then.
func TestStart(t *testing.T) {
	var asked atomic.Int32
	at := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	woken := make(chan string, 10)
	r := NewRoom(clock.RealClock{}, nil, func(namespace string) { woken <- namespace })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Start(ctx) }()
	r.Want("shop", []plan.Ask{{AskKey: plan.AskKey{Pod: "a", Registration: "one"}, Checks: []plan.Check{{At: at, Path: "/"}}}})
	idle := func() bool {
		return !r.Answers("shop")[plan.AskKey{Pod: "a", Registration: "one"}].IdleSince.IsZero()
	}
	for !idle() {
		checktest.Same(t, "who is woken", "shop", <-woken)
	}
	cancel()
	checktest.NoError(t, <-ended)
	checktest.Same(t, "whether the Pod was asked until it was idle", true, asked.Load() >= 2)
}

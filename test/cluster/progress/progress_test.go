// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"
	"time"
)

func at(seconds float64) time.Time {
	return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func TestBoardLines(t *testing.T) {
	cases := map[string]struct {
		events []Event
		now    time.Time
		width  int
		want   []string
	}{
		"nothing": {want: []string{}},
		"waiting has no clock": {
			events: []Event{{Task: "etcd", State: Waiting, At: at(0)}}, now: at(9),
			want: []string{"  etcd  waiting"},
		},
		"counts and aligns": {
			events: []Event{
				{Task: "etcd", State: Waiting, At: at(0)},
				{Task: "scheduler", State: Waiting, At: at(0)},
				{Task: "etcd", State: Compiling, Count: 3, Total: 570, At: at(1)},
				{Task: "scheduler", State: Downloading, Count: 12, At: at(2)},
			}, now: at(75),
			want: []string{
				"  etcd       compiling 3 of 570 packages, 1m14s",
				"  scheduler  downloading modules (12), 1m13s",
			},
		},
		"an end stops the clock, a detail takes its place": {
			events: []Event{
				{Task: "etcd", State: Starting, At: at(1)},
				{Task: "etcd", State: Done, Detail: "ready on port 1", At: at(1.4)},
				{Task: "api", State: Starting, At: at(1)},
				{Task: "api", State: Failed, At: at(13)},
			}, now: at(500),
			want: []string{"  etcd  ready on port 1, 0.4s", "  api   failed, 12s"},
		},
		"no line wraps": {
			events: []Event{{Task: "etcd", State: Compiling, Count: 3, Total: 570, At: at(1)}}, now: at(2), width: 20,
			want: []string{"  etcd  compiling 3…"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := Board{}
			for _, e := range c.events {
				b.Apply(e)
			}
			if got := b.Lines(c.now, c.width); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestShort(t *testing.T) {
	cases := map[time.Duration]string{
		-time.Second:                             "0.0s",
		449 * time.Millisecond:                   "0.4s",
		9949 * time.Millisecond:                  "9.9s",
		9999 * time.Millisecond:                  "9s",
		59 * time.Second:                         "59s",
		4*time.Minute + 7*time.Second:            "4m07s",
		3*time.Hour + 20*time.Minute:             "3h20m",
		50*time.Hour + time.Minute + time.Second: "50h01m",
	}
	for d, want := range cases {
		if got := Short(d); got != want {
			t.Errorf("%s: got %s, want %s", time.Duration(d), got, want)
		}
	}
}

// show creates a display whose clock stands still and whose ticks the test triggers.
func show(t *testing.T, width func() int) (*Display, *strings.Builder) {
	t.Helper()
	out := &strings.Builder{}
	d := Show(Screen{Out: out, Width: width, Now: func() time.Time { return at(10) }})
	// The ticker's own ticks would mix with the test's.
	close(d.stop)
	<-d.ended
	return d, out
}

func TestPlainDisplay(t *testing.T) {
	d, out := show(t, nil)
	take := d.Sink()
	take(Event{Detail: "Building."})
	take(Event{Task: "etcd", State: Waiting, At: at(0)})
	take(Event{Task: "etcd", State: Compiling, Count: 1, Total: 2, At: at(1)})
	take(Event{Task: "etcd", State: Compiling, Count: 2, Total: 2, At: at(2)})
	d.tick()
	take(Event{Task: "etcd", State: Done, At: at(4)})
	d.tick()
	d.settle()
	want := "Building.\netcd: compiling 2 of 2 packages, 9.0s\netcd: done, 3.0s\n"
	if out.String() != want {
		t.Errorf("got\n%q\nwant\n%q", out.String(), want)
	}
}

func TestLiveDisplayOverwritesItsOwnLinesOnly(t *testing.T) {
	d, out := show(t, func() int { return 80 })
	take := d.Sink()
	take(Event{Detail: "Building."})
	take(Event{Task: "etcd", State: Waiting, At: at(0)})
	take(Event{Task: "api", State: Waiting, At: at(0)})
	d.tick()
	take(Event{Detail: "Starting."})
	take(Event{Task: "etcd", State: Starting, At: at(8)})
	d.settle()
	const up1, up2 = "\r\x1b[1A\x1b[J", "\r\x1b[2A\x1b[J"
	want := "Building.\n" +
		"  etcd  waiting\n" +
		up1 + "  etcd  waiting\n  api   waiting\n" +
		up2 + "  etcd  waiting\n  api   waiting\n" + // the tick
		up2 + "  etcd  waiting\n  api   waiting\n" + // left permanently
		"Starting.\n" +
		"  etcd  starting, 2.0s\n" +
		up1 + "  etcd  starting, 2.0s\n"
	if out.String() != want {
		t.Errorf("got\n%q\nwant\n%q", out.String(), want)
	}
}

func TestDisplayCloses(t *testing.T) {
	out := &strings.Builder{}
	d := Show(Screen{Out: out})
	d.Sink().Tell(Event{Task: "etcd", State: Done})
	d.Close()
	if out.String() != "etcd: done, 0.0s\n" {
		t.Errorf("got %q", out.String())
	}
}

func TestNoSinkHearsNothing(t *testing.T) {
	Sink(nil).Tell(Event{Task: "etcd"})
	heard := []Event{}
	Sink(func(e Event) { heard = append(heard, e) }).Tell(Event{Task: "etcd"})
	if len(heard) != 1 || heard[0].At.IsZero() {
		t.Errorf("heard %+v; want one event with a time", heard)
	}
}

// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// steady is a stream of 500 requests a second from four callers.
func steady(seed uint64) plan {
	return plan{seed: seed, every: 2 * time.Millisecond, callers: 4, slowShare: 0.03, slowMin: time.Second, slowMax: 2 * time.Second}
}

const planned = 20_000

func TestRequestsAreDueAtFixedTimesAndCallersTakeTurns(t *testing.T) {
	p := steady(7)
	for n := range planned {
		r := p.at(n)
		if want := time.Duration(n) * 2 * time.Millisecond; r.due != want || r.caller != n%4 {
			t.Fatalf("request %d is due at %s by caller %d, want %s and %d", n, r.due, r.caller, want, n%4)
		}
		if r != p.at(n) {
			t.Fatalf("request %d differs from one call to the next", n)
		}
	}
}

func TestSomeRequestsAreSlow(t *testing.T) {
	p, other := steady(7), steady(8)
	slow, same := 0, 0
	for n := range planned {
		r := p.at(n)
		if r.slow == 0 {
			continue
		}
		slow++
		if r.slow < time.Second || r.slow > 2*time.Second {
			t.Fatalf("request %d is slow for %s, want 1 s to 2 s", n, r.slow)
		}
		if r == other.at(n) {
			same++
		}
	}
	if slow < planned*2/100 || slow > planned*4/100 {
		t.Errorf("%d of %d requests are slow, want about 3 %%", slow, planned)
	}
	if same > slow/10 {
		t.Errorf("%d of %d slow requests are the same under another seed", same, slow)
	}
}

func TestLagsReachTheWholeDelay(t *testing.T) {
	got := lags(4, time.Second)
	want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond, time.Second}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("lags %v, want %v", got, want)
	}
}

func TestDefaultOptions(t *testing.T) {
	o, err := Options{Source: Etcd{}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	want := Options{
		Source: Etcd{}, Rate: 500, Callers: 8, CacheDelay: time.Second, SlowShare: 0.03, SlowMin: time.Second,
		SlowMax: 2 * time.Second, Timeout: 10 * time.Second, MaxInFlight: 4096, KeepLosses: 1000,
	}
	if !reflect.DeepEqual(o, want) {
		t.Errorf("defaults are\n%+v, want\n%+v", o, want)
	}
	none, err := Options{Source: Etcd{}, CacheDelay: -1, SlowShare: -1}.withDefaults()
	if err != nil || none.CacheDelay != 0 || none.SlowShare != 0 {
		t.Errorf("negative means none, got delay %s, share %g, error %v", none.CacheDelay, none.SlowShare, err)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name    string
		options Options
		want    string
	}{
		{"no source", Options{}, "Source"},
		{"negative rate", Options{Source: Etcd{}, Rate: -1}, "rate of -1"},
		{"absurd rate", Options{Source: Etcd{}, Rate: 1_000_000}, "rate of 1000000"},
		{"share", Options{Source: Etcd{}, SlowShare: 3}, "share of 3"},
		{"bounds", Options{Source: Etcd{}, SlowMin: 3 * time.Second, SlowMax: 2 * time.Second}, "SlowMin"},
		{"timeout", Options{Source: Etcd{}, Timeout: time.Second}, "timeout of 1s"},
	} {
		if _, err := c.options.withDefaults(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %q", c.name, err, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := Latencies{}
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for _, c := range []struct {
		latencies Latencies
		p         float64
		want      time.Duration
	}{
		{nil, 50, 0},
		{Latencies{7}, 50, 7},
		{Latencies{7}, 99, 7},
		{Latencies{2, 1}, 50, 1},
		{hundred, 0, 1},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := c.latencies.Percentile(c.p); got != c.want {
			t.Errorf("p%g of %d latencies is %d, want %d", c.p, len(c.latencies), got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("Percentile reordered its input")
	}
}

func TestMeterCountsTheLastSecond(t *testing.T) {
	var m meter
	for i := range 400 { // 100 a second for 4 s
		m.add(at(float64(i) / 100))
	}
	if got := m.perSecond(at(3.99)); got != 100 {
		t.Errorf("%d a second, want 100", got)
	}
	if got := m.perSecond(at(4.6)); got != 50 {
		t.Errorf("0.6 s after the end: %d a second, want 50 of the whole slots that are left", got)
	}
	if got := m.perSecond(at(60)); got != 0 {
		t.Errorf("a minute later: %d a second, want 0", got)
	}
	m.add(at(60))
	if got := m.perSecond(at(60.3)); got != 1 {
		t.Errorf("after a pause: %d a second, want 1", got)
	}
}

func TestTotalAddsSections(t *testing.T) {
	r := Report{Sections: []Section{
		{Name: "create", From: 0, To: time.Second, Sent: 3, Lost: 1, Fast: Latencies{5, 6}},
		{Name: "update", From: time.Second, To: 3 * time.Second, Sent: 4, Drained: 2, DrainedSlow: 1, Fast: Latencies{7}, Slow: Latencies{9}},
	}}
	want := Section{Name: "total", To: 3 * time.Second, Sent: 7, Lost: 1, Drained: 2, DrainedSlow: 1, Fast: Latencies{5, 6, 7}, Slow: Latencies{9}}
	if got := r.Total(); !reflect.DeepEqual(got, want) {
		t.Errorf("total\n got %+v\nwant %+v", got, want)
	}
}

func TestReasonsAreOrdered(t *testing.T) {
	got := countReasons(map[string]int{"b": 2, "a": 2, "c": 9})
	want := []ReasonCount{{"c", 9}, {"a", 2}, {"b", 2}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"
	"time"
)

func TestCrashBackoff(t *testing.T) {
	limits := backoffLimits{base: 10 * time.Second, max: 5 * time.Minute}
	second := time.Second
	for _, test := range []struct {
		name string
		runs []time.Duration // how long each instance runs
		want []time.Duration // the delay after each
	}{
		{"the first restart is immediate, then it doubles up to the longest",
			make([]time.Duration, 8),
			[]time.Duration{0, 10 * second, 20 * second, 40 * second, 80 * second, 160 * second, 300 * second, 300 * second}},
		{"ten minutes without a crash start over",
			[]time.Duration{0, 0, 0, 10*time.Minute + second, 0},
			[]time.Duration{0, 10 * second, 20 * second, 0, 10 * second}},
		{"ten minutes exactly do not",
			[]time.Duration{0, 0, 10 * time.Minute},
			[]time.Duration{0, 10 * second, 20 * second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b backoff
			var got []time.Duration
			now := time.Unix(0, 0)
			for _, run := range test.runs {
				now = now.Add(run)
				var delay time.Duration
				delay, b = b.crashed(now, limits)
				got = append(got, delay)
				now = now.Add(delay)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("delays %v, want %v", got, test.want)
			}
		})
	}
}

func TestPullBackoff(t *testing.T) {
	limits := backoffLimits{base: 10 * time.Second, max: 25 * time.Second}
	var b backoff
	now := time.Unix(0, 0)
	for i, want := range []time.Duration{10 * time.Second, 20 * time.Second, 25 * time.Second, 25 * time.Second} {
		if b = b.failed(now, limits); b.wait != want {
			t.Errorf("wait after failure %d is %v, want %v", i+1, b.wait, want)
		}
		now = now.Add(b.wait)
	}
	if b = b.failed(now.Add(time.Minute), limits); b.wait != limits.base {
		t.Errorf("wait after a long pause is %v, want %v", b.wait, limits.base)
	}
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"
)

func TestDistribute(t *testing.T) {
	if got := distribute(nil); got != nil {
		t.Errorf("of nothing: %+v, want nil", got)
	}
	hundred := []time.Duration{}
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Second)
	}
	for name, c := range map[string]struct {
		given []time.Duration
		want  Distribution
	}{
		"one":                 {[]time.Duration{2 * time.Second}, Distribution{Count: 1, P50: 2, P99: 2, Max: 2}},
		"two":                 {[]time.Duration{3 * time.Second, time.Second}, Distribution{Count: 2, P50: 1, P99: 3, Max: 3}},
		"a hundred":           {hundred, Distribution{Count: 100, P50: 50, P99: 99, Max: 100}},
		"one hundred and one": {append(hundred, 200*time.Second), Distribution{Count: 101, P50: 51, P99: 100, Max: 200}},
	} {
		got := distribute(c.given)
		if got.Count != c.want.Count || got.P50 != c.want.P50 || got.P99 != c.want.P99 || got.Max != c.want.Max {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
	}
	if hundred[0] != 100*time.Second {
		t.Error("the caller's slice was sorted")
	}
}

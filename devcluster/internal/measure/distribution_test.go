// SPDX-License-Identifier: Apache-2.0

package measure

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
		"one":                 {[]time.Duration{2 * time.Second}, Distribution{1, 2, 2, 2}},
		"two":                 {[]time.Duration{3 * time.Second, time.Second}, Distribution{2, 1, 3, 3}},
		"a hundred":           {hundred, Distribution{100, 50, 99, 100}},
		"one hundred and one": {append(hundred, 200*time.Second), Distribution{101, 51, 100, 200}},
	} {
		if got := distribute(c.given); *got != c.want {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
	}
	if hundred[0] != 100*time.Second {
		t.Error("the caller's slice was sorted")
	}
}

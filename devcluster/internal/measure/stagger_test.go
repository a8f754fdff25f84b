// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fakeHeap has 400 bytes in use, makes 40 of garbage whenever it is asked, and
// collects it after ten times.
type fakeHeap struct{ asked int }

func (f *fakeHeap) metrics(context.Context) ([]byte, error) {
	f.asked++
	return fmt.Appendf(nil, "# HELP %[1]s bytes\n%[1]s %[2]d\n%[3]s %[4]d\n%[5]s 800\n",
		allocated, 40*f.asked, lastCollected, f.asked/10, collectsAt), nil
}

func TestStagger(t *testing.T) {
	for _, c := range []struct {
		share        float64
		before, want int // how often it was asked
	}{
		{share: 0, want: 10},
		{share: 0, before: 12, want: 20},
		{share: 0.5, want: 15},
		{share: 0.9, want: 19},
		{share: 1.5, want: 20}, // the next collection came before
	} {
		f := &fakeHeap{asked: c.before}
		if err := stagger(t.Context(), c.share, f.metrics); err != nil || f.asked != c.want {
			t.Errorf("share %g after %d: ends after %d, %v; want %d", c.share, c.before, f.asked, err, c.want)
		}
	}
}

func TestStaggerFails(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "read the API server's metrics: gone",
		allocated + " 1e9\n":       "lack one of " + allocated,
		allocated + " many\n":      allocated + `: strconv.ParseFloat: parsing "many"`,
		collectsAt + "{of=\"x\"} ": "lack one of",
	} {
		err := stagger(t.Context(), 0.5, func(context.Context) ([]byte, error) {
			if text == "" {
				return nil, errors.New("gone")
			}
			return []byte(text), nil
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("metrics %q: %v, want %q", text, err, want)
		}
	}
}

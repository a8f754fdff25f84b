// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

// dice is a random source that repeats the given throws.
func dice(throws ...int) func(int) int {
	next := 0
	return func(n int) int {
		throw := throws[next%len(throws)]
		next++
		return throw % n
	}
}

func TestChoosePorts(t *testing.T) {
	all := func(int) bool { return true }
	cases := map[string]struct {
		n     int
		throw func(int) int
		free  func(int) bool
		want  []int
	}{
		"none":                 {0, dice(1), all, []int{}},
		"the first that come":  {3, dice(5, 1, 9), all, []int{20005, 20001, 20009}},
		"each only once":       {2, dice(5, 5, 5, 7), all, []int{20005, 20007}},
		"taken ones are left":  {2, dice(1, 2, 3, 4), func(p int) bool { return p%2 == 0 }, []int{20002, 20004}},
		"there are too few":    {2, dice(1, 2), func(p int) bool { return p == 20001 }, nil},
		"there are none":       {1, dice(1, 2, 3), func(int) bool { return false }, nil},
		"one of many is there": {1, dice(1, 2, 3, 4, 5, 6, 7), func(p int) bool { return p == 20007 }, []int{20007}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := choosePorts(c.n, c.throw, c.free)
			if (err != nil) != (c.want == nil) || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func listen(t *testing.T) int {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestTryPort(t *testing.T) {
	free, err := FreePorts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := tryPort(t.Context(), free[0]); err != nil {
		t.Errorf("a free port: %v", err)
	}
	taken := listen(t)
	err = tryPort(t.Context(), taken)
	var inUse *PortInUseError
	if !errors.As(err, &inUse) || inUse.Port != taken {
		t.Errorf("a taken port: %v, want *PortInUseError", err)
	}
}

// Both are reported before anything is built or started.
func TestStartRefusesATakenPort(t *testing.T) {
	taken := listen(t)
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), Port: taken})
	var inUse *PortInUseError
	if !errors.As(err, &inUse) || inUse.Port != taken {
		t.Fatalf("error is %v, want *PortInUseError", err)
	}
	if !strings.Contains(err.Error(), "another port") {
		t.Errorf("the message names no remedy: %v", err)
	}
}

func TestStartRefusesAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}

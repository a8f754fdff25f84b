// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// What the API server tells of its memory: all bytes that it has ever asked for, when
// it last collected its garbage, and with how many bytes it will do so again.
const (
	allocated     = "go_memstats_alloc_bytes_total"
	lastCollected = "go_memstats_last_gc_time_seconds"
	collectsAt    = "go_memstats_next_gc_bytes"
)

// stagger leaves the API server a share, from 0 to 1, of the way from one garbage
// collection to the next. Rounds are much alike, and without this the collections
// would meet the same phases in all of them, and the others in none.
func (s *session) stagger(ctx context.Context, share float64) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	return stagger(ctx, share, func(ctx context.Context) ([]byte, error) {
		return s.pods.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	})
}

// stagger asks for metrics, which makes garbage too: until the next collection, and
// on to the share.
func stagger(ctx context.Context, share float64, metrics func(context.Context) ([]byte, error)) error {
	before, err := readMemory(ctx, metrics)
	now := before
	for err == nil && now[lastCollected] == before[lastCollected] {
		now, err = readMemory(ctx, metrics)
	}
	// The heap doubles between two collections.
	collected := now
	target := now[allocated] + share*now[collectsAt]/2
	for err == nil && now[allocated] < target && now[lastCollected] == collected[lastCollected] {
		now, err = readMemory(ctx, metrics)
	}
	return err
}

func readMemory(ctx context.Context, metrics func(context.Context) ([]byte, error)) (map[string]float64, error) {
	text, err := metrics(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	found := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case allocated, lastCollected, collectsAt:
			if found[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, fmt.Errorf("the API server's metric %s: %w", name, err)
			}
		}
	}
	if len(found) < 3 {
		return nil, fmt.Errorf("the API server's metrics lack one of %s, %s and %s", allocated, lastCollected, collectsAt)
	}
	return found, nil
}

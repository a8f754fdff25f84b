// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/test/stage"
)

// streams are long answers, token by token, from Pods that callers find through a registry.
type streams struct {
	all      int
	span     time.Duration
	mu       sync.Mutex
	ended    int
	cut      map[string]int // by why
	finished sync.WaitGroup
}

// stream begins streams, evenly over some time: "N of SPAN over SPAN".
func (s *Scene) stream(about string) {
	words := strings.Fields(about)
	if len(words) != 5 || words[1] != "of" || words[3] != "over" {
		s.fatalf("want N of SPAN over SPAN, not %q", about)
	}
	all := &streams{all: s.number(words[0]), span: s.duration(words[2]), cut: map[string]int{}}
	pause := s.duration(words[4]) / time.Duration(all.all)
	client, known := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, s.callers.clients[0].Known
	s.streams = all
	all.finished.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for range all.all {
			select {
			case <-tick.C:
			case <-s.ctx.Done():
				return
			}
			all.finished.Go(func() { all.note(follow(s.ctx, client, known(), all.span)) })
		}
	})
}

// follow reads one stream to its end.
func follow(ctx context.Context, client *http.Client, known []string, span time.Duration) error {
	if len(known) == 0 {
		return errors.New("callers know no Pod")
	}
	url := fmt.Sprintf("http://%s/stream?d=%s", known[rand.IntN(len(known))], span)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return errors.New("nobody answers")
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	last := ""
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		last = lines.Text()
	}
	if last != "end" {
		return errors.New("it was cut")
	}
	return nil
}

// note notes how a stream ended.
func (all *streams) note(err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ended++
	if err != nil {
		all.cut[err.Error()]++
	}
}

// lost is how many streams were lost so far, and why.
func (all *streams) lost() (n int, why string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, of := range all.cut {
		n += of
	}
	if n == 0 {
		return 0, ""
	}
	return n, fmt.Sprint(all.cut)
}

// awaitStreams waits until all streams have ended, and notes how many were lost.
func (s *Scene) awaitStreams() {
	done := make(chan struct{})
	go func() { s.streams.finished.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		s.fatalf("waited %s for the streams to end", patience)
	}
	n, why := s.streams.lost()
	note := fmt.Sprintf("%d of %d streams of %s lost %s", n, s.streams.all, s.streams.span, why)
	s.notes = append(s.notes, strings.TrimSpace(note))
}

// lostStreams is a fact: how many streams were lost.
func lostStreams(s *Scene, _ State, is []string) string {
	n, why := s.streams.lost()
	return stage.Unless(fmt.Sprint(n) == is[0], "%d were lost: %s", n, why)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

const (
	// gatherFor is how long events of Pods are gathered before a line reports them.
	gatherFor = time.Second
	// mostExamples is how many Pods a line about several of them names.
	mostExamples = 3
)

// crowd gathers events of many Pods, so that one line reports what happens to several at about the same
// time.
type crowd struct {
	mu    sync.Mutex // guards the fields below
	texts []string
	pods  map[string][]string
}

// add records an event of a Pod.
func (c *crowd) add(pod, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods == nil {
		c.pods = map[string][]string{}
	}
	if c.pods[text] == nil {
		c.texts = append(c.texts, text)
	}
	c.pods[text] = append(c.pods[text], pod)
}

// lines takes the gathered events, in the order in which each first happened.
func (c *crowd) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := list.Map(c.texts, func(text string) string {
		pods := c.pods[text]
		if len(pods) == 1 {
			return "pod/" + pods[0] + " " + text
		}
		return list.Count(len(pods), "Pod") + " " + view.Several(text) + ", such as " + strings.Join(pods[:min(len(pods), mostExamples)], ", ")
	})
	c.texts, c.pods = nil, nil
	return out
}

// printCrowd prints the gathered events from time to time. Calling end prints the remaining ones.
func (s *session) printCrowd(c *crowd, began time.Time) (end func()) {
	print := func() {
		for _, line := range c.lines() {
			printf(s.Out, "%6.1fs  %s\n", time.Since(began).Seconds(), line)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		clock := time.NewTicker(gatherFor)
		defer clock.Stop()
		for {
			select {
			case <-stop:
				print()
				return
			case <-clock.C:
				print()
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

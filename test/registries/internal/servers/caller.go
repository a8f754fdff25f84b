// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

// callerLife bounds the life of a Caller.
const callerLife = time.Hour

// Caller is a program that finds instances with a registry's own client. It is a traffic.Source.
type Caller struct {
	mu      sync.Mutex
	known   []string
	changed chan struct{}
}

// Call runs Java with these arguments until the test ends. The program writes "instances" with what it knows of each, again when that changes, and ends with its
// standard input.
func Call(t *testing.T, args []string) *Caller {
	t.Helper()
	// It outlives the test's context, in order to end by itself.
	running, kill := context.WithTimeout(context.WithoutCancel(t.Context()), callerLife)
	t.Cleanup(kill)
	cmd := exec.CommandContext(running, "java", append([]string{"-Xmx128m"}, args...)...)
	stdin := checktest.Must(cmd.StdinPipe())(t)
	stdout := checktest.Must(cmd.StdoutPipe())(t)
	complaints := &strings.Builder{}
	cmd.Stderr = complaints
	checktest.NoError(t, cmd.Start())
	c := &Caller{changed: make(chan struct{})}
	var reader sync.WaitGroup
	var other []string
	reader.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "instances"); ok {
				c.learn(strings.Fields(text))
			} else {
				other = append(other, lines.Text())
			}
		}
	})
	t.Cleanup(func() {
		_ = stdin.Close()
		reader.Wait()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the caller ended: %v\n%s\n%s", err, complaints, strings.Join(other[max(len(other)-shownLines, 0):], "\n"))
		}
	})
	return c
}

func (c *Caller) learn(known []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.known, c.changed = known, make(chan struct{})
}

// Known returns what the program knows of each instance: its address, or more.
func (c *Caller) Known() []string {
	known, _ := c.now()
	return known
}

func (c *Caller) now() (known []string, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known, c.changed
}

// Follow implements traffic.Source, of a program that writes addresses.
func (c *Caller) Follow(ctx context.Context, report func(addresses []string)) error {
	for {
		known, changed := c.now()
		report(known)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

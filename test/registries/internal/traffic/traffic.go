// SPDX-License-Identifier: Apache-2.0

// Package traffic sends real requests to instances that join, drain and leave, like
// callers that find them in a registry, and counts the lost ones.
package traffic

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// requestTimeout is when a request counts as lost.
	requestTimeout = 30 * time.Second
	// patience bounds every wait for something that must happen.
	patience = 30 * time.Second
	poll     = 10 * time.Millisecond
)

// Load describes the requests to send.
type Load struct {
	// Callers is the number of concurrent callers.
	Callers int
	// Pause is the time between two requests of one caller.
	Pause time.Duration
	// Client sends them.
	Client *http.Client
	// Where returns the URL of the next request when it is due. Its error counts as a
	// lost request.
	Where func(ctx context.Context) (string, error)
}

// Callers send requests until they are stopped.
type Callers struct {
	answers atomic.Int64
	stop    func()

	mu     sync.Mutex
	losses []string
}

// Call starts callers, which continue until Stop or the test's end.
func Call(t *testing.T, load Load) *Callers {
	t.Helper()
	c := &Callers{}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range load.Callers {
		all.Go(func() {
			for ctx.Err() == nil {
				c.count(One(ctx, load.Client, load.Where))
				select {
				case <-ctx.Done():
				case <-time.After(load.Pause):
				}
			}
		})
	}
	c.stop = func() {
		cancel()
		all.Wait()
		load.Client.CloseIdleConnections()
	}
	t.Cleanup(c.stop)
	return c
}

func (c *Callers) count(err error) {
	if err == nil {
		c.answers.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses = append(c.losses, err.Error())
}

// Answers is how many requests have succeeded so far.
func (c *Callers) Answers() int64 { return c.answers.Load() }

// Losses lists the cause of each lost request so far.
func (c *Callers) Losses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.losses
}

// Stop ends the callers and returns what was lost.
func (c *Callers) Stop() []string {
	c.stop()
	return c.Losses()
}

// One sends a request and reports what is wrong with the answer. It has its own
// timeout, so the end of the context loses no request. Clients send a POST only once,
// unless not a single byte of it was sent.
func One(ctx context.Context, client *http.Client, where func(ctx context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	address, err := where(ctx)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // It has been read.
	if _, err := io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Await waits until a condition holds: look returns what is missing, empty for nothing.
func Await(t *testing.T, what string, look func() string) {
	t.Helper()
	for end := time.Now().Add(patience); ; <-time.After(poll) {
		wrong := look()
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s: %s", patience, what, wrong)
		}
	}
}

// AwaitCount waits until a count is at least n.
func AwaitCount(t *testing.T, what string, n int64, count func() int64) {
	t.Helper()
	Await(t, what, func() string {
		if have := count(); have < n {
			return "too few"
		}
		return ""
	})
}

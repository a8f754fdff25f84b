// SPDX-License-Identifier: Apache-2.0

// Package traffic sends real requests to instances that join, drain and leave,
// as callers that find them in a registry do, and counts those that are lost.
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
	// patience bounds every wait for something that has to happen.
	patience = 30 * time.Second
	poll     = 10 * time.Millisecond
)

// Load says which requests are sent.
type Load struct {
	// Callers is how many send requests side by side.
	Callers int
	// Pause is between two requests of one caller.
	Pause time.Duration
	// Client sends them.
	Client *http.Client
	// Where returns the URL of the next one at its time. Its error counts as a
	// lost request.
	Where func(ctx context.Context) (string, error)
}

// Callers send requests until they are told to stop.
type Callers struct {
	answers atomic.Int64
	stop    func()

	mu     sync.Mutex
	losses []string
}

// Call starts callers, who go on until Stop or the test's end.
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

// Answers is how many requests succeeded so far.
func (c *Callers) Answers() int64 { return c.answers.Load() }

// Losses says why each of the lost requests so far was lost.
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

// One sends a request and reports what is wrong with the answer. Its time is its
// own, since the end of the context loses none. Clients try a POST only once, unless not a
// byte of it was sent.
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
	defer func() { _ = response.Body.Close() }() // It was read.
	if _, err := io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Await waits until a condition holds: look returns what is in its way, empty
// for nothing.
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

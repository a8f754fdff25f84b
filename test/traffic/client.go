// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// readyPoll is how often the start of the stream checks whether every caller knows an
// instance.
const readyPoll = 10 * time.Millisecond

// Client sends the stream and counts the outcomes.
type Client struct {
	options Options
	lags    []time.Duration

	mu        sync.Mutex
	directory *directory
	next      []int // per caller: the round-robin counter
	gone      []bool
	ending    bool
	instances map[string]*instance
	started   time.Time
	sections  []*Section
	losses    []Loss
	reasons   map[string]int
	trouble   error
}

// New creates a client. Requests before the first Section belong to a section without a name.
func New(o Options) *Client {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.slowShare = cmp.Or(o.slowShare, 0.03)
	o.keepLosses = cmp.Or(o.keepLosses, 1000)
	c := &Client{
		options: o, lags: lags(o.CacheDelay), directory: &directory{keep: o.CacheDelay},
		next: make([]int, callers), gone: make([]bool, callers),
		instances: map[string]*instance{}, sections: []*Section{{}}, reasons: map[string]int{},
	}
	for i := range c.next {
		c.next[i] = i // otherwise all callers would rotate in step, on one instance at a time
	}
	return c
}

// Run follows the registry and, once every caller knows an instance, sends the stream
// until ctx ends or the service is gone after EndWhenGone. It returns when every
// request has been answered or has timed out.
func (c *Client) Run(ctx context.Context) error {
	// Requests in flight when ctx ends are still to be answered: only the registry and
	// the sending stop.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { follow(following, c.options.Source, c.learn, c.complain) })
	defer func() {
		stop()
		background.Wait()
		c.closeIdle()
	}()

	if err := c.awaitStart(ctx); err != nil {
		return err
	}
	var requests sync.WaitGroup
	defer requests.Wait()
	for n := 0; !c.over(); n++ {
		r := c.options.request(n)
		if !sleepUntil(ctx, c.started.Add(r.due)) {
			break
		}
		c.dispatch(ctx, &requests, r)
	}
	return nil
}

// awaitStart returns when every caller knows an instance. Until then the service does
// not exist yet, and no request can be lost.
func (c *Client) awaitStart(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) { return c.begin(time.Now()), nil })
	if err != nil {
		err = errors.Join(err, c.Trouble())
	}
	return err
}

func (c *Client) begin(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = now
	return !slices.ContainsFunc(c.lags, func(lag time.Duration) bool { return len(c.directory.view(now, lag)) == 0 })
}

// Section starts a new section of the report, named after a phase.
func (c *Client) Section(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sections = append(c.sections, &Section{Name: name})
}

// EndWhenGone announces to the callers that the service is about to end permanently: a caller that no
// longer knows any instance then stops, while otherwise its requests would be lost. The stream ends
// when all callers have stopped.
func (c *Client) EndWhenGone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
}

func (c *Client) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.Contains(c.gone, false)
}

// Settled reports whether the last registry change can no longer cause losses: every caller knows of
// it, and no request is in flight to an instance that is gone.
func (c *Client) Settled(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.instances {
		if i.inFlight > 0 && !c.directory.lists(i.addr) {
			return false
		}
	}
	return c.directory.caughtUp(now)
}

// Known returns the addresses that the registry lists.
func (c *Client) Known() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.directory.current()
}

// Trouble returns the latest error in following the registry; nil while it can be followed.
func (c *Client) Trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

func (c *Client) complain(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = err
}

// learn records the addresses that the registry lists.
func (c *Client) learn(addresses []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = nil
	left, joined := c.directory.replace(time.Now(), addresses)
	if c.options.OnChange == nil {
		return
	}
	for _, address := range left {
		c.options.OnChange(address, false)
	}
	for _, address := range joined {
		c.options.OnChange(address, true)
	}
}

// Report returns the outcome so far. Empty sections are left out.
func (c *Client) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	report := Report{Losses: slices.Clip(c.losses), Reasons: maps.Clone(c.reasons)}
	for _, section := range c.sections {
		if section.Sent > 0 || section.Lost > 0 {
			copied := *section
			copied.Fast, copied.Slow = slices.Clip(section.Fast), slices.Clip(section.Slow) // Nothing in them changes.
			report.Sections = append(report.Sections, copied)
		}
	}
	return report
}

// sleepUntil returns false when ctx ends first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return ctx.Err() == nil
	}
}

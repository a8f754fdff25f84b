// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
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
	sent      int
	lost      int
	inFlight  int
	meter     meter
	trouble   error
}

// New creates a client. What it sends before the first Section has no name.
func New(options Options) (*Client, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		options: o, lags: lags(o.CacheDelay), directory: &directory{keep: o.CacheDelay},
		next: make([]int, callers), gone: make([]bool, callers),
		instances: map[string]*instance{}, sections: []*Section{{}}, reasons: map[string]int{},
	}
	for i := range c.next {
		c.next[i] = i // otherwise all callers would rotate in step, on one instance at a time
	}
	return c, nil
}

// Run follows the registry and, once every caller knows an instance, sends the stream
// until ctx ends or the service is gone after EndWhenGone. It returns when every
// request has been answered or has timed out.
func (c *Client) Run(ctx context.Context) error {
	// Requests in flight when ctx ends are still to be answered: only the registry and
	// the sending stop.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { follow(following, c.options.Source, (*sink)(c), c.complain) })
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
	c.closeSection(time.Now())
	return nil
}

// awaitStart returns when every caller knows an instance. Until then the service does
// not exist yet, and no request can be lost.
func (c *Client) awaitStart(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		now := time.Now()
		if c.begin(now) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), c.Trouble())
		case <-tick.C:
		}
	}
}

func (c *Client) begin(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, lag := range c.lags {
		if len(c.directory.view(now, lag)) == 0 {
			return false
		}
	}
	c.started = now
	return true
}

// Section starts a new section of the report, named after a phase.
func (c *Client) Section(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.sinceStart(time.Now())
	c.sections[len(c.sections)-1].To = now
	c.sections = append(c.sections, &Section{Name: name, From: now, To: now})
}

func (c *Client) closeSection(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sections[len(c.sections)-1].To = c.sinceStart(now)
}

func (c *Client) sinceStart(now time.Time) time.Duration {
	if c.started.IsZero() {
		return 0
	}
	return now.Sub(c.started)
}

// EndWhenGone announces to the callers that the service is about to end permanently: a
// caller that no longer knows any instance then stops, where otherwise its requests
// would be lost. The stream ends when all callers have stopped.
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

// Settled reports whether the last registry change can no longer cause losses: every
// caller knows of it, and no request is left at an instance that is gone.
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

// Trouble is the latest error in following the registry; nil while it can be followed.
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

// Report is the outcome so far. Empty sections are left out.
func (c *Client) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	report := Report{Losses: append([]Loss(nil), c.losses...), Reasons: countReasons(c.reasons)}
	for _, section := range c.sections {
		if section.Sent > 0 || section.Lost > 0 {
			copied := *section
			copied.Fast = append(Latencies(nil), section.Fast...)
			copied.Slow = append(Latencies(nil), section.Slow...)
			report.Sections = append(report.Sections, copied)
		}
	}
	return report
}

// InstanceStats are the counters of one instance.
type InstanceStats struct {
	// Addr is its address.
	Addr string
	// Registered reports whether the registry lists it.
	Registered bool
	// Since is when that last changed.
	Since time.Time
	// PerSecond is the number of requests that were sent to it in the last second.
	PerSecond int
	// Sent, Lost and InFlight count its requests.
	Sent, Lost, InFlight int
}

// Stats are the counters of a running stream.
type Stats struct {
	// Started is when the first request was due; zero before.
	Started time.Time
	// Sent, Lost and InFlight count requests.
	Sent, Lost, InFlight int
	// PerSecond is the number of requests sent in the last second.
	PerSecond int
	// Instances are all that were ever known, by address.
	Instances []InstanceStats
	// Versions counts the answers by the instance's version.
	Versions map[string]int
	// Reasons counts the lost requests by reason, the most common first.
	Reasons []ReasonCount
}

// Stats returns the present counters.
func (c *Client) Stats(now time.Time) Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := Stats{
		Started: c.started, Sent: c.sent, Lost: c.lost, InFlight: c.inFlight,
		PerSecond: c.meter.perSecond(now), Versions: map[string]int{}, Reasons: countReasons(c.reasons),
	}
	for _, i := range c.instances {
		for version, count := range i.versions {
			stats.Versions[version] += count
		}
		stats.Instances = append(stats.Instances, InstanceStats{
			Addr: i.addr, Registered: c.directory.lists(i.addr), Since: i.since,
			PerSecond: i.meter.perSecond(now), Sent: i.sent, Lost: i.lost, InFlight: i.inFlight,
		})
	}
	slices.SortFunc(stats.Instances, func(a, b InstanceStats) int { return strings.Compare(a.Addr, b.Addr) })
	return stats
}

// sink is the client's side that receives registry changes.
type sink Client

func (s *sink) Replace(entries []Entry) {
	s.change(func(now time.Time) []Change { return s.directory.replace(now, entries) })
}

func (s *sink) Update(put []Entry, removed []string) {
	s.change(func(now time.Time) []Change { return s.directory.update(now, put, removed) })
}

func (s *sink) change(apply func(time.Time) []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = nil
	for _, change := range apply(time.Now()) {
		(*Client)(s).instance(change.Addr).since = change.At
		if s.options.OnChange != nil {
			s.options.OnChange(change)
		}
	}
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

// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// NoInstance is the reason for a loss that no server caused.
const NoInstance = "the caller knew no instance"

const (
	// dialTimeout allows for one SYN dropped by a busy machine: it is resent after 1 s.
	dialTimeout = 2 * time.Second
	maxIdle     = 256
	// maxAnswer limits how much of an answer is read.
	maxAnswer = 64 << 10
)

// instance is one address with its keep-alive connections. The client's mutex guards its
// counter.
type instance struct {
	addr     string
	http     *http.Transport
	inFlight int
}

func (c *Client) instance(addr string) *instance {
	if known := c.instances[addr]; known != nil {
		return known
	}
	i := &instance{addr: addr, http: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: maxIdle,
		DisableKeepAlives:   c.options.NewConnections,
		DisableCompression:  true,
	}}
	c.instances[addr] = i
	return i
}

// flight is one request in flight.
type flight struct {
	request
	at       time.Time // when it was due
	instance *instance
	section  *Section
}

// dispatch sends one request, unless its caller has stopped or knows no instance.
func (c *Client) dispatch(ctx context.Context, wait *sync.WaitGroup, r request) {
	f, ok := c.launch(r)
	if !ok {
		return
	}
	wait.Go(func() {
		deadline := f.at.Add(c.options.Timeout)
		// The end of the stream cuts no request: each has its own deadline.
		sending, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
		err := f.send(sending)
		c.land(f, err, time.Now())
	})
}

// launch chooses the instance and counts the request.
func (c *Client) launch(r request) (*flight, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now() // the directory keeps no history before the last question
	known := c.directory.view(now, c.lags[r.caller])
	if len(known) == 0 && c.ending {
		c.gone[r.caller] = true
		return nil, false
	}
	if len(known) == 0 && c.options.Pauses {
		return nil, false
	}
	f := &flight{request: r, at: c.started.Add(r.due), section: c.sections[len(c.sections)-1]}
	f.section.Sent++
	if len(known) == 0 {
		c.lose(f, NoInstance, now)
		return nil, false
	}
	f.instance = c.instance(known[c.next[r.caller]%len(known)])
	c.next[r.caller]++
	f.instance.inFlight++
	return f, true
}

// land counts the outcome.
func (c *Client) land(f *flight, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.instance.inFlight--
	if err != nil {
		c.lose(f, reason(err, c.options.Timeout), now)
		return
	}
	latency := now.Sub(f.at)
	if f.slow > 0 {
		f.section.Slow = append(f.section.Slow, latency)
	} else {
		f.section.Fast = append(f.section.Fast, latency)
	}
	if c.directory.lists(f.instance.addr) {
		return
	}
	f.section.Drained++
	if f.slow > 0 {
		f.section.DrainedSlow++
	}
	if f.instance.inFlight == 0 && !c.directory.usable(now, f.instance.addr) {
		f.instance.http.CloseIdleConnections()
	}
}

// lose counts a lost request where the loss was found: a slow one may have been sent
// long before what cut it.
func (c *Client) lose(f *flight, why string, now time.Time) {
	c.sections[len(c.sections)-1].Lost++
	c.reasons[why]++
	loss := Loss{Due: f.at, At: now, Reason: why}
	if f.instance != nil {
		loss.Addr = f.instance.addr
	}
	if len(c.losses) < c.options.keepLosses {
		c.losses = append(c.losses, loss)
	}
	if c.options.OnLost != nil {
		c.options.OnLost(loss)
	}
}

func (c *Client) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.instances {
		i.http.CloseIdleConnections()
	}
}

// send sends the request once and reads the whole answer.
func (f *flight) send(ctx context.Context) error {
	url := "http://" + f.instance.addr + "/"
	if f.slow > 0 {
		url += "slow?d=" + f.slow.String()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	if !f.instance.http.DisableKeepAlives {
		// Go's transport silently resends a request when a kept-alive connection turns out
		// to be dead, which would hide losses, unless the request has a body that cannot be
		// rewound. A server that does not read the body resets a connection that it closes.
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(".")), 1
	}
	answer, err := f.instance.http.RoundTrip(req)
	if err != nil {
		return err
	}
	_, readErr := io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	if err := errors.Join(readErr, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("answered with %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	return nil
}

// reason names the cause of a loss without the parts that differ between requests, so
// that losses can be counted by it.
func reason(err error, timeout time.Duration) string {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial" && dial.Timeout():
		return fmt.Sprintf("no connection within %s", dialTimeout)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.As(err, &dial) && dial.Op == "dial":
		return "cannot connect: " + dial.Err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		strings.Contains(err.Error(), "server closed"):
		return "connection closed before the answer"
	default:
		return err.Error()
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package call asks the applications of Pods to leave their registries, and to come back. It believes no answer: what
// the registries list then decides.
package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxTime is how long one request may take, its answer included.
	maxTime = 2 * time.Second
	// maxHeader and maxAnswer bound what is read of an answer, in bytes.
	maxHeader, maxAnswer = 16 << 10, 4 << 10
	// parallel is how many Pods are asked at a time.
	parallel = 16
)

// Dial connects to an address of a Pod, host and port.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Client asks Pods. It is safe for concurrent use.
type Client struct{ http *http.Client }

// New returns a Client that connects by dial; nil stands for the network. It uses no proxy, follows no redirect and keeps
// no connection: the next request shall not find a process that has gone.
func New(dial Dial) *Client {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return &Client{&http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       maxTime,
	}}
}

// All makes the calls of these changes. Its errors are ChangeErrors, transient ones: each is made again as long as the
// registry lists something else than the change wants.
func (c *Client) All(ctx context.Context, changes []registry.Change, calls map[string]plan.Call) error {
	errs := registry.Each(ctx, len(changes), parallel, func(n int) error { return c.one(ctx, calls[changes[n].Entry.ID]) })
	for n, err := range errs {
		if err != nil {
			errs[n] = changes[n].Refused(registry.Transient(err))
		}
	}
	return errors.Join(errs...)
}

// one makes a request. Its error names the address, the answer and the remedy.
func (c *Client) one(ctx context.Context, call plan.Call) error {
	where := call.At.String() + call.Path
	request, err := http.NewRequestWithContext(ctx, call.Method, "http://"+where, strings.NewReader(call.Body))
	if err != nil || request.URL.Host != call.At.String() {
		return fmt.Errorf("its application cannot be asked for %s: correct the path in spec.drain.application", registry.Excerpt(call.Path))
	}
	request.Header.Set("User-Agent", "usher")
	if call.Body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("its application does not answer %s at %s: %w: %s", call.Method, where, causeOf(err), call.Hint)
	}
	defer func() { _ = response.Body.Close() }() // What it says is for messages only.
	if response.StatusCode/100 == 2 {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer)) // what has come of it is enough
	text := strings.TrimSuffix(" "+registry.Excerpt(strings.TrimSpace(string(said))), " ")
	return fmt.Errorf("its application answers %s at %s with %d %s:%s %s", call.Method, where, response.StatusCode,
		http.StatusText(response.StatusCode), text, call.Hint)
}

// causeOf is why a request failed, in words that are the same each time: a status shall not change with a port number.
func causeOf(err error) error {
	dialed, isDial := errors.AsType[*net.OpError](err)
	timed, isTimed := errors.AsType[net.Error](err)
	switch {
	case isTimed && timed.Timeout():
		return fmt.Errorf("not within %s", maxTime)
	case isDial && dialed.Op == "dial":
		return dialed.Err
	}
	return errors.New("what it says is no HTTP, or breaks off")
}

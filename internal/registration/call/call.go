// SPDX-License-Identifier: Apache-2.0

// Package call asks the applications of Pods to leave their registries, and to come back. It believes no answer: what
// the registries list then decides.
package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/podhttp"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 4 << 10
	// parallel is how many Pods are asked at a time.
	parallel = 16
)

// Client asks Pods. It is safe for concurrent use.
type Client struct{ http *http.Client }

// New returns a Client that connects by dial; nil stands for the network.
func New(dial podhttp.Dial) *Client { return &Client{podhttp.NewClient(dial)} }

// All makes the calls of these changes. Its errors are ChangeErrors, transient ones: each is made again as long as the
// registry lists something else than the change wants.
func (c *Client) All(ctx context.Context, changes []registry.Change, calls map[string]plan.Call) error {
	errs := registry.Each(ctx, len(changes), parallel, func(n int) error {
		return c.one(ctx, calls[changes[n].Entry.ID])
	})
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
	request, err := podhttp.NewRequest(ctx, call.Method, call.At, call.Path, call.Body)
	if err != nil {
		return fmt.Errorf("its application cannot be asked for %s: %w: correct the path in spec.drain.application",
			registry.Excerpt(call.Path), err)
	}
	if call.Body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("its application does not answer %s at %s: %w: %s",
			call.Method, where, podhttp.Cause(err), call.Hint)
	}
	defer func() { _ = response.Body.Close() }() // What it says is for messages only.
	if response.StatusCode/100 == 2 {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer)) // what has come of it is enough
	text := strings.TrimSuffix(" "+registry.Excerpt(strings.TrimSpace(string(said))), " ")
	return fmt.Errorf("its application answers %s at %s with %d %s:%s %s",
		call.Method, where, response.StatusCode, http.StatusText(response.StatusCode), text, call.Hint)
}

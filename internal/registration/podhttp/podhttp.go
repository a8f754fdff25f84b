// SPDX-License-Identifier: Apache-2.0

// Package podhttp makes HTTP requests to Pods. Pods belong to tenants, so a request goes to the Pod's own address and
// nowhere else: no redirect is followed, no proxy is used, no credentials are sent, and time and headers are bounded.
package podhttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

const (
	// MaxTime is how long one request may take, its answer included.
	MaxTime = 2 * time.Second
	// MaxHeader bounds the header of an answer, in bytes.
	MaxHeader = 16 << 10
)

// Dial connects to an address of a Pod, host and port.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// NewClient returns a client that connects by dial; nil stands for the network. Each request has a connection of its own:
// the next one shall not find a process that has gone.
func NewClient(dial Dial) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: MaxTime}).DialContext
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dial, Proxy: nil, DisableKeepAlives: true,
			DisableCompression: true, MaxResponseHeaderBytes: MaxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       MaxTime,
	}
}

// ErrPath means that a path, which a tenant has written, would lead to another address than the Pod's.
var ErrPath = errors.New("the path is none of the Pod's")

// NewRequest returns a request for a path of the Pod, with its query. The error is ErrPath.
func NewRequest(ctx context.Context, method string, at netip.AddrPort, path, body string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+at.String()+path, strings.NewReader(body))
	if err != nil || request.URL.Host != at.String() || request.URL.User != nil {
		return nil, ErrPath
	}
	request.Header.Set("User-Agent", "usher")
	return request, nil
}

// Cause is why a request failed, in words that are the same each time: a status shall not change with a port number.
func Cause(err error) error {
	dialed, isDial := errors.AsType[*net.OpError](err)
	timed, isTimed := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), isTimed && timed.Timeout():
		return fmt.Errorf("not within %s", MaxTime)
	case isDial && dialed.Op == "dial":
		return dialed.Err
	}
	return errors.New("its answer is not HTTP, or breaks off")
}

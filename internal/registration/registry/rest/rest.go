// SPDX-License-Identifier: Apache-2.0

// Package rest is what connectors to registries that speak HTTP have in common:
// the address and its TLS, one request, and errors that a user can act on.
package rest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

const (
	// defaultMaxAnswer bounds what is read of an answer, in bytes: 30,000 entries
	// and more.
	defaultMaxAnswer = 64 << 20
	// defaultIdle is how many connections are kept open.
	defaultIdle = 4
	// idleTime is how long a connection that nobody uses is kept.
	idleTime = 90 * time.Second
)

// Options say where the server is.
type Options struct {
	// Field is the name of the address in a Registry's spec, and Example one that
	// is right; errors show both.
	Field, Example string
	// Address is a URL without credentials. Paths are added to it.
	Address string
	// Secret holds credentials.KeyCA, KeyCertificate and KeyPrivateKey for https,
	// all of them optional; it may be nil.
	Secret map[string][]byte
	// Idle is how many connections are kept open. Default: 4.
	Idle int
	// MaxAnswer bounds what is read of an answer, in bytes. Default: 64 MiB.
	MaxAnswer int64
}

// Client talks to one server. It can be used from several goroutines.
type Client struct {
	field, base string
	maxAnswer   int64
	http        *http.Client
}

// New checks the options and connects to nothing. Errors are permanent and name
// the field or the Secret's key.
func New(options Options) (*Client, error) {
	base, err := url.Parse(options.Address)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, registry.Permanent(fmt.Errorf("%s is no http or https address: write %s", options.Field, options.Example))
	}
	if base.User != nil {
		// Errors repeat the address.
		return nil, registry.Permanent(fmt.Errorf("%s holds credentials: put them into the credentials Secret", options.Field))
	}
	config, err := credentials.TLS(options.Secret)
	if err != nil {
		return nil, registry.Permanent(err)
	}
	return &Client{
		field: options.Field, base: strings.TrimRight(options.Address, "/"),
		maxAnswer: cmp.Or(options.MaxAnswer, defaultMaxAnswer),
		http: &http.Client{
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				MaxIdleConnsPerHost: cmp.Or(options.Idle, defaultIdle),
				IdleConnTimeout:     idleTime,
				TLSClientConfig:     config,
				ForceAttemptHTTP2:   true,
			},
			// A redirect would send credentials to whom the user never named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close frees connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// URL is the address of a path, for messages.
func (c *Client) URL(path string) string { return c.base + path }

// Question is a request.
type Question struct {
	// Method is one of net/http's, Path is below the address.
	Method, Path string
	Query        url.Values
	Header       http.Header
	// Body is nil where there is none.
	Body []byte
}

// Answer is what the server said, whatever its code.
type Answer struct {
	// Where is the URL that was asked, without its query.
	Where  string
	Code   int
	Header http.Header
	Body   []byte
}

// Send makes one request. An answer of any code is no error; errors are
// transient, but for a request that cannot be made and an answer that is too long.
func (c *Client) Send(ctx context.Context, q Question) (*Answer, error) {
	where := c.URL(q.Path)
	target := where
	if len(q.Query) > 0 {
		target += "?" + q.Query.Encode()
	}
	var body io.Reader // Some servers complain of a GET that has one.
	if q.Body != nil {
		body = bytes.NewReader(q.Body)
	}
	request, err := http.NewRequestWithContext(ctx, q.Method, target, body)
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("%s: %w", c.field, err))
	}
	for key, values := range q.Header {
		request.Header[key] = values
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, registry.Transient(withoutQuery(err, where))
	}
	defer func() { _ = response.Body.Close() }() // Nothing is lost: it was read or is not wanted.
	data, err := io.ReadAll(io.LimitReader(response.Body, c.maxAnswer+1))
	if err != nil {
		return nil, registry.Transient(fmt.Errorf("read the answer: %w", err))
	}
	if int64(len(data)) > c.maxAnswer {
		return nil, registry.Permanent(fmt.Errorf("%s answered with more than %d bytes", where, c.maxAnswer))
	}
	return &Answer{Where: where, Code: response.StatusCode, Header: response.Header, Body: data}, nil
}

// withoutQuery keeps what net/http says of a request that failed, and shows the
// address alone: a query is long, and may hold what is nobody's business.
func withoutQuery(err error, where string) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		failed.URL = where
	}
	return err
}

// Failure describes an answer that is none; what is hidden is left out of it.
func (a *Answer) Failure(hidden ...string) error {
	return fmt.Errorf("%s answered %d %s: %s", a.Where, a.Code, http.StatusText(a.Code), registry.Excerpt(string(a.Body), hidden...))
}

// Temporary says whether the same request may succeed later.
func (a *Answer) Temporary() bool {
	return a.Code == http.StatusRequestTimeout || a.Code == http.StatusTooEarly || a.Code == http.StatusTooManyRequests ||
		a.Code >= http.StatusInternalServerError && a.Code != http.StatusNotImplemented
}

// Denied says whether the server wants other credentials.
func (a *Answer) Denied() bool {
	return a.Code == http.StatusUnauthorized || a.Code == http.StatusForbidden
}

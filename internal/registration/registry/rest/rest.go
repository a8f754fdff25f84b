// SPDX-License-Identifier: Apache-2.0

// Package rest is the shared client of connectors to HTTP registries: the address and
// its TLS, single requests, and actionable errors.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// idle is the number of idle connections to keep open: as many as any connector uses at a time.
const idle = 16

// Options locate the server.
type Options struct {
	// Field is the name of the address in a Registry's spec, and Example a valid value.
	// Errors show both.
	Field, Example string
	// Address is a URL without credentials. Paths are appended to it.
	Address string
	// Secret holds credentials.KeyCA, KeyCertificate and KeyPrivateKey for https. Each
	// is optional, and Secret may be nil. Errors repeat none of its values.
	Secret map[string][]byte
	// Header is sent with every request.
	Header http.Header
	// Hint says what to check if the server wants other credentials.
	Hint string
	// ServerName is the name that the certificate of an https server has. Default: the host of the address.
	ServerName string
}

// Client talks to one server. It is safe for concurrent use.
type Client struct {
	options Options
	http    *http.Client
	secrets registry.Secrets
}

// New checks the options but does not connect. Errors are permanent and name the field
// or the Secret's key.
func New(options Options) (*Client, error) {
	base, err := url.Parse(options.Address)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, registry.Permanent(fmt.Errorf("%s is not an http or https address: write it like %s", options.Field, options.Example))
	}
	if base.User != nil {
		// Later errors repeat the address, so it must not contain credentials.
		return nil, registry.Permanent(fmt.Errorf("%s contains credentials: put them into the credentials Secret", options.Field))
	}
	config, err := credentials.TLS(options.Secret)
	if err != nil {
		return nil, registry.Permanent(err)
	}
	config.ServerName = options.ServerName
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.TLSClientConfig = idle, config
	options.Address = strings.TrimRight(options.Address, "/")
	return &Client{
		options: options, secrets: registry.SecretsOf(options.Secret),
		http: &http.Client{
			Transport: transport,
			// A redirect would send credentials to a server that the user never named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// At returns a client of another server with the same options. Both share their connections.
func (c *Client) At(address string) *Client {
	other := *c
	other.options.Address = address
	return &other
}

// Close frees connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// URL returns the address of a path, for messages.
func (c *Client) URL(path string) string { return c.options.Address + path }

// Question is a request.
type Question struct {
	// Method is an HTTP method of net/http. Path is relative to the address.
	Method, Path string
	Query        url.Values
	Header       http.Header
	// Body is nil if there is none.
	Body []byte
	// JSON is sent as the body, unless nil.
	JSON any
}

// Answer is the server's answer, whatever its status code.
type Answer struct {
	// Where is the requested URL without its query.
	Where  string
	Code   int
	Header http.Header
	Body   []byte
	client *Client
	// sent are the headers of the request.
	sent http.Header
}

// Send makes one request. It returns no error for any status code. Errors are
// transient, except for a request that cannot be built and an answer that is too long.
func (c *Client) Send(ctx context.Context, q Question) (*Answer, error) {
	where := c.URL(q.Path)
	target := where
	if len(q.Query) > 0 {
		target += "?" + q.Query.Encode()
	}
	if q.JSON != nil {
		q.Body = encode.JSON(q.JSON)
	}
	// An empty reader is no body: some servers reject a GET that has one.
	request, err := http.NewRequestWithContext(ctx, q.Method, target, bytes.NewReader(q.Body))
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("%s: %w", c.options.Field, err))
	}
	maps.Copy(request.Header, c.options.Header)
	maps.Copy(request.Header, q.Header)
	if q.JSON != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			failed.URL = where // Without the query, which is long and may contain private data.
		}
		// An answer that is no HTTP is repeated.
		return nil, registry.Transient(c.hiding(request.Header).Error(err))
	}
	defer func() { _ = response.Body.Close() }() // The body was read or is not needed.
	data, err := io.ReadAll(registry.Taking(ctx, response.Body))
	if err == nil {
		err = registry.Take(ctx, padding(data))
	}
	switch {
	case errors.Is(err, registry.ErrOneService):
		return nil, fmt.Errorf("%s: %w", where, err)
	case err != nil:
		return nil, registry.Transient(fmt.Errorf("read the answer: %w", c.hiding(request.Header).Error(err)))
	}
	return &Answer{
		Where: where, Code: response.StatusCode, Header: response.Header, Body: data,
		client: c, sent: request.Header,
	}, nil
}

const (
	// maxDepth is how deep lists and objects may be, as for encoding/json.
	maxDepth = 10000
	// memberBytes is how much a member of an object counts at least, and a string in a list: in Go,
	// either takes some 40 bytes of a map or of a list, however short it was.
	memberBytes = 32
)

// padding is how many bytes more an answer in JSON counts than it has: in Go, an element such as
// null or {} is as large as any other of its list.
func padding(data []byte) int {
	p := padded{data: data}
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			p.open(i)
		case ']', '}':
			p.end(i)
			p.around = p.around[:max(len(p.around)-1, 0)]
		case ',':
			p.end(i)
		}
	}
	return p.missing
}

type padded struct {
	data    []byte
	around  []element
	missing int
}

// element is what is being read of a list or an object: where it began, and what was missing then.
type element struct {
	ofList         bool
	began, missing int
}

func (p *padded) open(at int) {
	if len(p.around) < maxDepth { // what is deeper cannot be decoded
		p.around = append(p.around, element{p.data[at] == '[', at + 1, p.missing})
	}
}

// end ends an element; the next one begins behind it.
func (p *padded) end(at int) {
	if len(p.around) == 0 {
		return
	}
	e := &p.around[len(p.around)-1]
	if e.began < at {
		least := memberBytes
		if e.ofList && p.data[e.began] != '"' {
			least = registry.EntryBytes
		}
		counted := at - e.began + p.missing - e.missing
		p.missing += max(least-counted, 0)
	}
	e.began, e.missing = at+1, p.missing
}

// Excerpt is what an error may repeat of the answer, or of a text in it.
func (a *Answer) Excerpt(text string) string { return a.client.hiding(a.sent).Excerpt(text) }

// open are the headers that say nothing secret.
var open = []string{"Accept", "Content-Type", "Usher-Timestamp"}

// hiding returns what errors about an answer must not repeat: what is in the Secret, and the values of
// the headers as they were sent, without their scheme or version, too.
func (c *Client) hiding(sent http.Header) registry.Secrets {
	var values []string
	for name, all := range sent {
		if slices.Contains(open, name) {
			continue
		}
		for _, value := range all {
			_, credentials, _ := strings.Cut(value, " ")
			_, signature, _ := strings.Cut(value, "=")
			values = append(values, value, credentials, signature)
		}
	}
	return c.secrets.With(values...)
}

// Failure describes an unusable answer, without the hidden texts.
func (a *Answer) Failure() error {
	return fmt.Errorf("%s answered %d %s: %s", a.Where, a.Code, http.StatusText(a.Code), a.Excerpt(string(a.Body)))
}

// ErrDenied marks an answer about the credentials, which applies to every change.
var ErrDenied = errors.New("access denied")

// Refusal is Failure as the error of a connector: transient, or permanent.
func (a *Answer) Refusal() error {
	err := a.Failure()
	switch {
	case a.Code == http.StatusRequestTimeout, a.Code == http.StatusTooEarly, a.Code == http.StatusTooManyRequests,
		a.Code >= http.StatusInternalServerError && a.Code != http.StatusNotImplemented:
		return registry.Transient(err)
	case a.Denied():
		return registry.Permanent(fmt.Errorf("%w; check %s: %w", err, a.client.options.Hint, ErrDenied))
	}
	return registry.Permanent(err)
}

// Decode decodes the body. server is what should have answered.
func (a *Answer) Decode(server string, into any) error { return a.DecodePart(a.Body, server, into) }

// DecodePart is Decode for a part of the body.
func (a *Answer) DecodePart(part []byte, server string, into any) error {
	if err := json.Unmarshal(part, into); err != nil {
		return registry.Permanent(fmt.Errorf("%s did not answer like %s: check %s: %w",
			a.Where, server, a.client.options.Field, a.client.hiding(a.sent).Error(err)))
	}
	return nil
}

// Denied reports whether the server wants other credentials.
func (a *Answer) Denied() bool {
	return a.Code == http.StatusUnauthorized || a.Code == http.StatusForbidden
}

// SPDX-License-Identifier: Apache-2.0

// Package webhook keeps entries in an HTTP service of the user's own.
// docs/webhook.md describes the protocol for those who write that service.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registry"
)

// Keys of the credentials Secret.
const (
	// KeyHMAC signs every request.
	KeyHMAC = "hmac"
	// KeyCA is the PEM bundle that the server's certificate is checked with,
	// the system's roots if absent.
	KeyCA = "ca.crt"
)

// Headers of every request.
const (
	// HeaderTimestamp holds the seconds since 1970 when the request was signed.
	HeaderTimestamp = "Usher-Timestamp"
	// HeaderSignature holds "v1=" and the signature in hexadecimal. It is absent
	// without a key.
	HeaderSignature = "Usher-Signature"
)

// Paths of the operations, below the base URL. All are POST.
const (
	PathPing  = "/v1/ping"
	PathList  = "/v1/list"
	PathApply = "/v1/apply"
)

const (
	// maxResponse bounds what is read of an answer, in bytes: about 50,000 entries.
	maxResponse = 32 << 20
	// maxMessage bounds how much of an answer an error repeats, in bytes.
	maxMessage = 256
)

// ListRequest asks for the entries of a service.
type ListRequest struct {
	Service string `json:"service"`
}

// ListResponse holds every entry of the service, of all owners.
type ListResponse struct {
	Entries []registry.Entry `json:"entries"`
}

// ApplyRequest asks for changes.
type ApplyRequest struct {
	Service string            `json:"service"`
	Changes []registry.Change `json:"changes"`
}

// ApplyResponse names the changes that were refused; the others were made.
type ApplyResponse struct {
	Refused []Refusal `json:"refused,omitempty"`
}

// Code is why a change was refused.
type Code string

// The codes of a Refusal.
const (
	// CodeConflict: the entry is not as the change's version says.
	CodeConflict Code = "conflict"
	// CodeForeign: the entry belongs to somebody else.
	CodeForeign Code = "foreign"
	// CodeInvalid: the change will never be accepted as it is.
	CodeInvalid Code = "invalid"
	// CodeUnavailable: the change may be accepted later.
	CodeUnavailable Code = "unavailable"
)

// Refusal is one change that was not made.
type Refusal struct {
	ID      string `json:"id"`
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
}

// Options say where the service is.
type Options struct {
	// URL is the base address.
	URL string
	// Secret holds the credentials by the keys above; it may be nil.
	Secret map[string][]byte
	// Now is the clock that stamps requests, time.Now if nil.
	Now func() time.Time
}

// Registry implements registry.Connector.
type Registry struct {
	base      string
	key       []byte
	now       func() time.Time
	client    *http.Client
	transport *http.Transport
}

var _ registry.Connector = (*Registry)(nil)

// New checks the options. Errors are permanent and name the field.
func New(options Options) (*Registry, error) {
	base, err := url.Parse(options.URL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, registry.Permanent(errors.New("webhook.url is no http or https address: write https://host/path"))
	}
	if base.User != nil {
		// Errors repeat the address.
		return nil, registry.Permanent(errors.New("webhook.url holds credentials: put them into the credentials Secret"))
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		MaxIdleConnsPerHost:   4,
		IdleConnTimeout:       90 * time.Second,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:     true,
		ExpectContinueTimeout: time.Second,
	}
	if ca := options.Secret[KeyCA]; len(ca) > 0 {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(ca) {
			return nil, registry.Permanent(fmt.Errorf(
				"the credentials Secret's %s holds no certificate: put a PEM bundle there", KeyCA))
		}
	}
	return &Registry{
		base: strings.TrimRight(options.URL, "/"), key: options.Secret[KeyHMAC], now: options.Now,
		transport: transport,
		client: &http.Client{
			Transport: transport,
			// A redirect would send a signed request to whom the user never named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Sign returns the value of HeaderSignature: HMAC-SHA256 over the timestamp, the
// request's path below the base URL and the body, with a line feed after the
// first two. The path keeps a recorded list from being replayed as an apply.
func Sign(key []byte, timestamp, path string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(timestamp + "\n" + path + "\n"))
	mac.Write(body)
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}

// Ping implements registry.Connector.
func (r *Registry) Ping(ctx context.Context) error {
	return r.call(ctx, PathPing, struct{}{}, nil)
}

// List implements registry.Connector.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	var answer ListResponse
	if err := r.call(ctx, PathList, ListRequest{Service: service}, &answer); err != nil {
		return nil, err
	}
	if answer.Entries == nil {
		// An empty answer must be said: {} is more likely another service's, and
		// would release hooks.
		return nil, registry.Permanent(fmt.Errorf("%s%s answered without entries: it must send "+
			`{"entries":[]} for a service that has none`, r.base, PathList))
	}
	for i := range answer.Entries {
		if answer.Entries[i].ID == "" || answer.Entries[i].Version == "" {
			return nil, registry.Permanent(fmt.Errorf("%s%s answered with an entry that has no id or no version",
				r.base, PathList))
		}
		answer.Entries[i].Unsettled = shorten(answer.Entries[i].Unsettled)
	}
	sortByID(answer.Entries)
	return answer.Entries, nil
}

// Apply implements registry.Connector.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes); err != nil {
		return err
	}
	var answer ApplyResponse
	if err := r.call(ctx, PathApply, ApplyRequest{Service: service, Changes: changes}, &answer); err != nil {
		return err
	}
	var refused []error
	for _, refusal := range answer.Refused {
		refused = append(refused, &registry.ChangeError{ID: refusal.ID, Err: refusal.err()})
	}
	return errors.Join(refused...)
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	r.transport.CloseIdleConnections()
	return nil
}

func (r Refusal) err() error {
	switch r.Code {
	case CodeConflict:
		return fmt.Errorf("%s: %w", shorten(r.Message), registry.ErrConflict)
	case CodeForeign:
		return fmt.Errorf("%s: %w", shorten(r.Message), registry.ErrForeign)
	case CodeUnavailable:
		return registry.Transient(errors.New(shorten(r.Message)))
	}
	return registry.Permanent(fmt.Errorf("%s: %s", r.Code, shorten(r.Message)))
}

func (r *Registry) call(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return registry.Permanent(fmt.Errorf("encode the request: %w", err))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+path, bytes.NewReader(body))
	if err != nil {
		return registry.Permanent(fmt.Errorf("webhook.url: %w", err))
	}
	timestamp := strconv.FormatInt(r.now().Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set(HeaderTimestamp, timestamp)
	if len(r.key) > 0 {
		request.Header.Set(HeaderSignature, Sign(r.key, timestamp, path, body))
	}
	response, err := r.client.Do(request)
	if err != nil {
		return registry.Transient(err)
	}
	defer func() { _ = response.Body.Close() }() // Nothing is lost: it was read or is not wanted.
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return registry.Transient(fmt.Errorf("read the answer: %w", err))
	}
	if len(data) > maxResponse {
		return registry.Permanent(fmt.Errorf("%s%s answered with more than %d bytes", r.base, path, maxResponse))
	}
	return r.read(response, path, data, answer)
}

// read turns a status code into a typed error, and the body into the answer.
func (r *Registry) read(response *http.Response, path string, data []byte, answer any) error {
	code := response.StatusCode
	failure := func() error {
		return fmt.Errorf("%s%s answered %s: %s", r.base, path, response.Status, shorten(string(data)))
	}
	switch {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly,
		code == http.StatusTooManyRequests, code >= 500 && code != http.StatusNotImplemented:
		return registry.Transient(failure())
	case code >= 300 && code < 400:
		return registry.Permanent(fmt.Errorf("%w: redirects are not followed; set webhook.url to %q",
			failure(), response.Header.Get("Location")))
	case code != http.StatusOK && code != http.StatusNoContent:
		return registry.Permanent(failure())
	case answer == nil, len(data) == 0:
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return registry.Permanent(fmt.Errorf("%s%s answered with something else than the protocol's JSON: %w",
			r.base, path, err))
	}
	return nil
}

func shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

func sortByID(entries []registry.Entry) {
	slices.SortFunc(entries, func(a, b registry.Entry) int { return strings.Compare(a.ID, b.ID) })
}

// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/usher-dev/usher/internal/registry"
)

const (
	// maxResponse bounds what is read of an answer, in bytes: about 60,000 entries.
	maxResponse = 64 << 20
	// maxMessage bounds how much of an answer an error repeats, in bytes.
	maxMessage = 256
)

// errDenied marks an answer that concerns the credentials and so every change.
var errDenied = errors.New("access denied")

// application is the name that Eureka keeps a service under.
func application(service string) string { return strings.ToUpper(service) }

// pathOf is below the address: an application, an instance of it.
func pathOf(parts ...string) string {
	path := "/apps"
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// get reads what is there; found is false where nothing is.
func (r *Registry) get(ctx context.Context, path string, into any) (found bool, err error) {
	code, data, err := r.send(ctx, http.MethodGet, path, nil)
	switch {
	case err != nil:
		return false, err
	case code == http.StatusNotFound:
		return false, nil
	case code != http.StatusOK:
		return false, r.failure(path, code, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, registry.Permanent(fmt.Errorf("%s%s answered with something else than Eureka does: %w", r.base, path, err))
	}
	return true, nil
}

// write changes something. To change what is gone is no error.
func (r *Registry) write(ctx context.Context, method, path string, body any) error {
	code, data, err := r.send(ctx, method, path, body)
	switch {
	case err != nil:
		return err
	case code == http.StatusOK, code == http.StatusNoContent:
		return nil
	case code == http.StatusNotFound && method != http.MethodPost:
		return nil
	}
	return r.failure(path, code, data)
}

// send makes one request.
func (r *Registry) send(ctx context.Context, method, path string, question any) (int, []byte, error) {
	body := io.Reader(http.NoBody)
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return 0, nil, registry.Permanent(fmt.Errorf("encode the request: %w", err))
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, r.base+path, body)
	if err != nil {
		return 0, nil, registry.Permanent(fmt.Errorf("eureka.address: %w", err))
	}
	request.Header.Set("Accept", "application/json")
	if question != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.username != "" || r.password != "" {
		request.SetBasicAuth(r.username, r.password)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return 0, nil, registry.Transient(err)
	}
	defer func() { _ = response.Body.Close() }() // Nothing is lost: it was read or is not wanted.
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return 0, nil, registry.Transient(fmt.Errorf("read the answer: %w", err))
	}
	if len(data) > maxResponse {
		return 0, nil, registry.Permanent(fmt.Errorf("%s%s answered with more than %d bytes", r.base, path, maxResponse))
	}
	return response.StatusCode, data, nil
}

// failure types an answer that is none.
func (r *Registry) failure(path string, code int, data []byte) error {
	err := fmt.Errorf("%s%s answered %d %s: %s", r.base, path, code, http.StatusText(code), r.shorten(data))
	switch {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return registry.Transient(err)
	case code == http.StatusForbidden, code == http.StatusUnauthorized:
		return registry.Permanent(fmt.Errorf("%w; check the keys %s and %s of the credentials Secret: %w",
			err, KeyUsername, KeyPassword, errDenied))
	}
	return registry.Permanent(err)
}

// shorten makes text fit for an error; a password that a server repeats is left out.
func (r *Registry) shorten(data []byte) string {
	text := string(data)
	if r.password != "" {
		text = strings.ReplaceAll(text, r.password, "<the password>")
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

// each calls for every number below n, some side by side, and returns the errors
// by that number.
func each(n int, call func(int) error) []error {
	errs := make([]error, n)
	slots := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = call(i)
		})
	}
	all.Wait()
	return errs
}

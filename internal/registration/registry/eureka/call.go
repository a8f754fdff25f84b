// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// errDenied marks an answer about the credentials, which applies to every change.
var errDenied = errors.New("access denied")

// application returns the name under which Eureka keeps a service.
func application(service string) string { return strings.ToUpper(service) }

// pathOf returns the path, below the address, of an application or one of its
// instances.
func pathOf(parts ...string) string {
	path := "/apps"
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// get reads the path into into. found is false if nothing is there.
func (r *Registry) get(ctx context.Context, path string, into any) (found bool, err error) {
	answer, err := r.send(ctx, http.MethodGet, path, nil)
	switch {
	case err != nil:
		return false, err
	case answer.Code == http.StatusNotFound:
		return false, nil
	case answer.Code != http.StatusOK:
		return false, r.failure(answer)
	}
	if err := json.Unmarshal(answer.Body, into); err != nil {
		return false, registry.Permanent(fmt.Errorf("%s answered with something else than Eureka does: %w", answer.Where, err))
	}
	return true, nil
}

// write changes something. It is no error if that no longer exists.
func (r *Registry) write(ctx context.Context, method, path string, body any) error {
	answer, err := r.send(ctx, method, path, body)
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusOK, answer.Code == http.StatusNoContent:
		return nil
	case answer.Code == http.StatusNotFound && method != http.MethodPost:
		return nil
	}
	return r.failure(answer)
}

// send makes one request.
func (r *Registry) send(ctx context.Context, method, path string, question any) (*rest.Answer, error) {
	request := http.Request{Header: http.Header{"Accept": {"application/json"}}}
	if r.username != "" || r.password != "" {
		request.SetBasicAuth(r.username, r.password)
	}
	q := rest.Question{Method: method, Path: path, Header: request.Header}
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return nil, registry.Permanent(fmt.Errorf("encode the request: %w", err))
		}
		q.Body = data
		q.Header.Set("Content-Type", "application/json")
	}
	return r.client.Send(ctx, q)
}

// failure types an unusable answer.
func (r *Registry) failure(answer *rest.Answer) error {
	err := answer.Failure(r.password)
	switch {
	case answer.Temporary():
		return registry.Transient(err)
	case answer.Denied():
		return registry.Permanent(fmt.Errorf("%w; check the keys %s and %s of the credentials Secret: %w",
			err, KeyUsername, KeyPassword, errDenied))
	}
	return registry.Permanent(err)
}

// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

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
	answer, err := r.client.Send(ctx, rest.Question{Method: http.MethodGet, Path: path})
	switch {
	case err != nil:
		return false, err
	case answer.Code == http.StatusNotFound:
		return false, nil
	case answer.Code != http.StatusOK:
		return false, answer.Refusal()
	}
	err = answer.Decode("Eureka", into)
	return err == nil, err
}

// write changes something. It is no error if that no longer exists.
func (r *Registry) write(ctx context.Context, method, path string, body any) error {
	answer, err := r.client.Send(ctx, rest.Question{Method: method, Path: path, JSON: body})
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusOK, answer.Code == http.StatusNoContent:
		return nil
	case answer.Code == http.StatusNotFound && method != http.MethodPost:
		return nil
	}
	return answer.Refusal()
}

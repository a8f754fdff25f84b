// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"io"
	"net/http"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// counting accounts for answers as they are read.
type counting struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = counted{registry.Taking(request.Context(), response.Body), response.Body}
	return response, nil
}

type counted struct {
	io.Reader
	io.Closer
}

// CloseIdleConnections is what http.Client looks for.
func (c counting) CloseIdleConnections() {
	if closer, ok := c.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

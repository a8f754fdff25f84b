// SPDX-License-Identifier: Apache-2.0

package awsapi

import (
	"bytes"
	"io"
	"net/http"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// counting accounts for answers as they are read.
type counting struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	request, err := whole(request)
	if err != nil {
		return nil, err
	}
	response, err := c.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = counted{registry.Taking(request.Context(), response.Body), response.Body}
	return response, nil
}

// whole is the request with a body of its own. AWS's library closes its body as soon as the answer begins, and a
// transport that has not yet seen the end of the body then takes the connection for broken.
func whole(request *http.Request) (*http.Request, error) {
	if request.Body == nil {
		return request, nil
	}
	body, err := io.ReadAll(request.Body)
	_ = request.Body.Close() // it was read
	if err != nil {
		return nil, err
	}
	request = request.Clone(request.Context())
	request.Body = io.NopCloser(bytes.NewReader(body))
	return request, nil
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

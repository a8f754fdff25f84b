// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// HTTP is a server with an HTTP API, for a test's own requests, which bypass the
// connector.
type HTTP struct {
	// Address is the URL that paths are appended to.
	Address string
	// Header is sent with each request.
	Header http.Header
	// Client sends the requests; nil for http.DefaultClient.
	Client *http.Client
}

// Do sends a request, with JSON in its body unless question is nil, and decodes the answer
// into into: nothing if nil, and its text if a string.
func (h HTTP) Do(ctx context.Context, method, path string, question, into any) (http.Header, error) {
	body := io.Reader(http.NoBody)
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, h.Address+path, body)
	if err != nil {
		return nil, err
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	for key, values := range h.Header {
		request.Header[key] = values
	}
	response, err := cmp.Or(h.Client, http.DefaultClient).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // It has been read.
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s answered %s: %s", path, response.Status, data)
	}
	switch into := into.(type) {
	case nil:
		return response.Header, nil
	case *string:
		*into = string(data)
		return response.Header, nil
	}
	return response.Header, json.Unmarshal(data, into)
}

// askTimeout bounds one Ask.
const askTimeout = 20 * time.Second

// Ask sends a server a command and returns what it answers before it closes the
// connection.
func Ask(ctx context.Context, network, address, command string) (string, error) {
	conn, err := (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return strings.TrimSpace(string(answer)), err
}

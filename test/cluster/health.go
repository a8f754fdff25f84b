// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// startTimeout bounds a start, without the build.
	startTimeout = 2 * time.Minute
	// probeTimeout bounds one health request to a component.
	probeTimeout = 2 * time.Second
)

// get returns nil if a URL answers 200.
func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Readers of the audit log recognize our requests by this name.
	req.Header.Set("User-Agent", "usher-devcluster")
	// A kept-alive connection to a component that has ended would be tried first.
	req.Close = true
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, text)
	}
	return err
}

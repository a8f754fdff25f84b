// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usher-dev/usher/test/cluster/process"
)

const (
	// startTimeout bounds a start, without the build.
	startTimeout = 2 * time.Minute
	// probeTimeout bounds one health request to a component.
	probeTimeout = 2 * time.Second
	// pollEvery is how often a condition is checked during a start.
	pollEvery = 30 * time.Millisecond
)

// waitFor returns nil as soon as ready does. It fails if the process ends, with its
// *process.ExitError, and when ctx ends, with its cause and the last answer.
func waitFor(ctx context.Context, p *process.Process, ready func(context.Context) error) error {
	var answer error
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		answer = ready(ctx)
		// After the process has ended, another one may answer in its place.
		if exit := p.ExitError(); exit != nil {
			return false, exit
		}
		return answer == nil, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s is not ready: %w; its last answer was: %w\n  log: %s", p.Name(), context.Cause(ctx), answer, p.Log())
	}
	return err
}

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

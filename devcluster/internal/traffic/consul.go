// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// consulWait is how long Consul may hold a blocking query that has no news.
	consulWait = 10 * time.Second
	// consulTimeout bounds a query: Consul adds up to a sixteenth to the wait.
	consulTimeout = consulWait + consulWait/16 + listTimeout
)

// Consul is a service in Consul, followed with blocking queries to the health API,
// as Consul's clients do.
type Consul struct {
	// Address is that of an agent, for instance "http://127.0.0.1:8500".
	Address string
	// Service is the name that callers ask for.
	Service string
}

// Follow implements Source. It returns an error when a query fails.
func (c Consul) Follow(ctx context.Context, sink Sink) error {
	index := uint64(0)
	for {
		entries, next, err := c.passing(ctx, index)
		if err != nil {
			return fmt.Errorf("ask Consul for %s: %w", c.Service, err)
		}
		sink.Replace(entries)
		if next < index {
			next = 0 // A server with another state: what Consul's documentation asks for.
		}
		index = next
	}
}

// passing lists the instances whose checks pass, once that differs from what was
// listed at the index.
func (c Consul) passing(ctx context.Context, index uint64) (entries []Entry, next uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, consulTimeout)
	defer cancel()
	address := fmt.Sprintf("%s/v1/health/service/%s?passing&wait=%s&index=%d", c.Address, url.PathEscape(c.Service), consulWait, index)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, 0, statusError(response.StatusCode)
	}
	next, err = strconv.ParseUint(response.Header.Get("X-Consul-Index"), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("the index: %w", err)
	}
	var listed []struct {
		Service struct {
			ID      string
			Address string
			Port    int
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&listed); err != nil {
		return nil, 0, err
	}
	for _, i := range listed {
		entries = append(entries, Entry{Key: i.Service.ID, Addr: net.JoinHostPort(i.Service.Address, strconv.Itoa(i.Service.Port))})
	}
	return entries, next, nil
}

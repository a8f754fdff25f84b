// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/servers/run"
)

// pause is how long to wait before a Source starts over.
const pause = 200 * time.Millisecond

// Source is a service in a registry, as callers find it.
type Source interface {
	// Follow tells the service's addresses, host:port, and again all of them after each
	// change. It returns when ctx ends or when it must start over.
	Follow(ctx context.Context, tell func(addresses []string)) error
}

// follow follows a source until ctx ends. An error leaves callers with the latest list, as
// an outage does.
func follow(ctx context.Context, source Source, tell func(addresses []string), failed func(error)) {
	for ctx.Err() == nil {
		err := source.Follow(ctx, tell)
		if ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return
		}
		failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// Consul is a service in Consul, as callers without an agent query it: the instances
// that pass their checks.
type Consul struct {
	// Address is Consul's HTTP API, for instance "http://127.0.0.1:8500".
	Address string
	// Service is the name that callers query.
	Service string
}

// Follow implements Source with blocking queries.
func (c Consul) Follow(ctx context.Context, tell func(addresses []string)) error {
	for index := "0"; ctx.Err() == nil; {
		listed, next, err := run.Passing(ctx, run.HTTP{Address: c.Address}, c.Service, index)
		if err != nil {
			return fmt.Errorf("list service %s in Consul: %w", c.Service, err)
		}
		var addresses []string
		for _, i := range listed {
			addresses = append(addresses, i.HostPort())
		}
		tell(addresses)
		index = next
	}
	return ctx.Err()
}

// Fixed is one constant address: that of a load balancer, which finds the instances
// itself.
type Fixed string

// Follow implements Source.
func (f Fixed) Follow(ctx context.Context, tell func(addresses []string)) error {
	tell([]string{string(f)})
	<-ctx.Done()
	return ctx.Err()
}

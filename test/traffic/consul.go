// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"

	"github.com/usher-dev/usher/test/servers/run"
)

// Consul is a service in Consul, as callers without an agent query it: the instances
// that pass their checks.
type Consul struct {
	// Address is Consul's HTTP API, for instance "http://127.0.0.1:8500".
	Address string
	// Service is the name that callers query.
	Service string
}

// Follow implements Source with blocking queries.
func (c Consul) Follow(ctx context.Context, sink Sink) error {
	for index := "0"; ctx.Err() == nil; {
		entries, next, err := c.list(ctx, index)
		if err != nil {
			return err
		}
		sink.Replace(entries)
		index = next
	}
	return ctx.Err()
}

func (c Consul) list(ctx context.Context, index string) (entries []Entry, next string, err error) {
	listed, next, err := run.Passing(ctx, run.HTTP{Address: c.Address}, c.Service, index)
	if err != nil {
		return nil, "", fmt.Errorf("list service %s in Consul: %w", c.Service, err)
	}
	for _, i := range listed {
		entries = append(entries, Entry{Key: i.Service.ID, Addr: i.HostPort()})
	}
	return entries, next, nil
}

// Fixed is one constant address: that of a load balancer, which finds the instances
// itself.
type Fixed string

// Follow implements Source.
func (f Fixed) Follow(ctx context.Context, sink Sink) error {
	sink.Replace([]Entry{{Key: string(f), Addr: string(f)}})
	<-ctx.Done()
	return ctx.Err()
}

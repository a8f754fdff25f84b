// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net/http"
)

// Balancer is a load balancer: callers know nothing else.
type Balancer struct {
	// Addr is where it listens, host:port.
	Addr string
}

// Follow implements Source. Callers hear of the balancer when it first answers
// for an instance: before, the service is not there yet.
func (b Balancer) Follow(ctx context.Context, sink Sink) error {
	if err := b.ask(ctx); err != nil {
		return fmt.Errorf("ask the load balancer %s: %w", b.Addr, err)
	}
	sink.Replace([]Entry{{Key: b.Addr, Addr: b.Addr}})
	<-ctx.Done()
	return ctx.Err()
}

func (b Balancer) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.Addr+"/", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return statusError(response.StatusCode)
	}
	return nil
}

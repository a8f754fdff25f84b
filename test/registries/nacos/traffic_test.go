// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
)

// period is how often the caller asks.
const period = 500 * time.Millisecond

// testTraffic rolls instances under a caller that polls Nacos's client API, as clients
// without a subscription do.
func testTraffic(t *testing.T, s *server) {
	root := s.root()
	service := traffic.Service{Connector: s.connect(t, nacos.Options{Root: root}), Name: "web", Propagation: 2 * period}
	traffic.Roll(t, service, func(t *testing.T) func() []string {
		var known atomic.Pointer[[]string]
		known.Store(&[]string{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for tick := time.NewTicker(period); ctx.Err() == nil; {
				addresses, err := s.callable(ctx, root, "web")
				if err != nil && ctx.Err() == nil {
					t.Errorf("the caller: %v", err)
					return
				}
				known.Store(&addresses)
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		}()
		t.Cleanup(func() { cancel(); <-ended })
		return func() []string { return *known.Load() }
	})
}

// callable are the addresses that a caller gets.
func (s *server) callable(ctx context.Context, root nacos.Root, service string) ([]string, error) {
	data, err := s.do(ctx, http.MethodGet, "/nacos/v3/client/ns/instance/list",
		url.Values{"namespaceId": {root.Namespace}, "serviceName": {service}, "healthyOnly": {"true"}})
	if err != nil {
		return nil, err
	}
	var listed []struct {
		IP   string
		Port int
	}
	if err := json.Unmarshal(data, &listed); err != nil {
		return nil, err
	}
	var addresses []string
	for _, i := range listed {
		addresses = append(addresses, fmt.Sprintf("%s:%d", i.IP, i.Port))
	}
	return addresses, nil
}

// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
)

// DataPlane sends requests to the targets of a target group in turn: to those that are healthy, and for a while to those
// that drain, as an Application Load Balancer does. It tries no request twice.
type DataPlane struct {
	Server *elb.Server
	ARN    string
	// Late is how long a target gets new requests after it began to drain.
	Late time.Duration

	next atomic.Int64
}

// ServeHTTP implements http.Handler.
func (d *DataPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var used []elb.Target
	for _, t := range d.Server.Targets(d.ARN) {
		if t.State == elb.Healthy || t.State == elb.Draining && t.For < d.Late {
			used = append(used, t)
		}
	}
	if len(used) == 0 {
		http.Error(w, "no target is healthy", http.StatusServiceUnavailable)
		return
	}
	to := used[int(d.next.Add(1))%len(used)]
	Forward(net.JoinHostPort(Loopback(to.Address), strconv.Itoa(int(to.Port))), "").ServeHTTP(w, r)
}

// transport keeps no connections: a server that ends would be noticed by them.
var transport = &http.Transport{DisableKeepAlives: true}

// Forward sends requests to an address, with a prefix before their paths. What cannot be sent is answered with 502.
func Forward(address, prefix string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.Path = "http", address, prefix+r.In.URL.Path
		r.Out.Host = address
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}}
}

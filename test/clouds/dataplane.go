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
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/neg"
)

// DataPlane sends requests to a load balancer's targets in turn. It tries no request twice.
type DataPlane struct {
	// Used are the targets that get new requests.
	Used func() []Target

	next atomic.Int64
}

// OfELB uses the healthy targets of a target group and, for a while, those that drain.
func OfELB(server *elb.Server, arn string, late time.Duration) *DataPlane {
	return &DataPlane{Used: func() (used []Target) {
		for _, t := range server.Targets(arn) {
			if t.State == elb.Healthy || t.State == elb.Draining && t.For < late {
				used = append(used, Target{t.Address, t.Port})
			}
		}
		return used
	}}
}

// OfNEG uses the healthy endpoints of a network endpoint group, "ZONE/NAME", and for a while those that drain.
func OfNEG(server *neg.Server, group string, late time.Duration) *DataPlane {
	return &DataPlane{Used: func() (used []Target) {
		for _, e := range server.Endpoints(group) {
			if e.Health == neg.Healthy || e.Health == neg.Draining && e.For < late {
				used = append(used, Target{e.Address, e.Port})
			}
		}
		return used
	}}
}

// ServeHTTP implements http.Handler.
func (d *DataPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	used := d.Used()
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

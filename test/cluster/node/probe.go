// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// firstAttempt is when a probe starts: a program that is up by then is spared a
	// failure.
	firstAttempt = 100 * time.Millisecond
	// probeTimeout bounds one attempt.
	probeTimeout = time.Second
)

// startProbe starts the readiness probe of the running instance, which ends with it. Only
// a GET is probed, and the last attempt counts, whatever the thresholds are.
func (p *pod) startProbe(c *container) {
	passes, probe := &atomic.Bool{}, c.spec.ReadinessProbe
	c.passes = passes
	if probe == nil || probe.HTTPGet == nil || !p.traits.Real {
		passes.Store(true)
		return
	}
	ctx, cancel := context.WithCancel(p.base)
	c.stopProbe = cancel
	url := "http://" + net.JoinHostPort(p.ip, strconv.Itoa(portOf(c.spec, probe.HTTPGet.Port))) + probe.HTTPGet.Path
	period, again := time.Duration(cmp.Or(probe.PeriodSeconds, 10))*time.Second, p.again(p.object)
	go func() {
		for delay := firstAttempt; ; delay = period {
			select {
			case <-ctx.Done():
				return
			case <-time.After(delay):
			}
			if now := succeeds(ctx, url); now != passes.Swap(now) {
				again()
			}
		}
	}()
}

// portOf is the number of a port of a container.
func portOf(spec *corev1.Container, port intstr.IntOrString) int {
	for _, named := range spec.Ports {
		if port.Type == intstr.String && named.Name == port.StrVal {
			return int(named.ContainerPort)
		}
	}
	return port.IntValue()
}

// succeeds reports whether a GET is answered with success; it does not follow redirects,
// which count as answers.
func succeeds(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode >= 200 && response.StatusCode < 400
}

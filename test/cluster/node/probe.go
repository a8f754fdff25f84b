// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probeResult is the result of a probe's attempts so far.
type probeResult int

const (
	probeUnknown probeResult = iota
	probeSuccess
	probeFailure
)

// firstAttempt is when a probe without an initial delay starts. A kubelet too takes a
// moment to notice that a container runs; a program that is up by then is spared a
// failure.
const firstAttempt = 100 * time.Millisecond

// tally turns a probe's attempts into its result.
type tally struct {
	successThreshold, failureThreshold int32
	lastOK                             bool
	run                                int32 // attempts in a row that ended like the last
}

// add counts an attempt; unknown leaves the result unchanged.
func (t *tally) add(ok bool) probeResult {
	if ok != t.lastOK {
		t.lastOK, t.run = ok, 0
	}
	t.run++
	switch {
	case ok && t.run >= max(t.successThreshold, 1):
		return probeSuccess
	case !ok && t.run >= max(t.failureThreshold, 1):
		return probeFailure
	}
	return probeUnknown
}

// prober runs one probe of one instance.
type prober struct {
	pod    *pod
	c      *container
	name   string
	probe  *corev1.Probe
	check  func(context.Context) error
	result *probeResult // in c; under the Pod's lock
	due    func() bool  // under the Pod's lock
	once   bool         // it ends with its first result
}

// startProbes starts the probes of the running instance; they end with it. The startup
// probe comes first, and a terminating Pod is not killed for terminating slowly.
func (p *pod) startProbes(c *container) {
	ctx, cancel := context.WithCancel(p.base)
	c.stopProbes = cancel
	run := func(name string, probe *corev1.Probe, result *probeResult, begin probeResult, once bool, due func() bool) {
		if probe != nil {
			*result = begin
			go prober{p, c, name, probe, p.action(c, probe.ProbeHandler), result, due, once}.run(ctx)
		}
	}
	run("startup", c.spec.StartupProbe, &c.startup, probeUnknown, true, func() bool { return p.termination == nil })
	run("readiness", c.spec.ReadinessProbe, &c.readiness, probeFailure, false, c.started)
	run("liveness", c.spec.LivenessProbe, &c.liveness, probeSuccess, false, p.dueForLife(c))
}

// dueForLife returns the function that reports whether a container may be killed for its
// liveness probe.
func (p *pod) dueForLife(c *container) func() bool {
	return func() bool { return c.started() && p.termination == nil }
}

// run probes until the instance ends.
func (r prober) run(ctx context.Context) {
	count := tally{successThreshold: r.probe.SuccessThreshold, failureThreshold: r.probe.FailureThreshold}
	delay := seconds(r.probe.InitialDelaySeconds, firstAttempt)
	for {
		timer := r.pod.clock.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		if !r.attempt(ctx, &count) {
			return
		}
		delay = seconds(r.probe.PeriodSeconds, 10*time.Second)
	}
}

// attempt makes one attempt if that is due. It returns false if the probe is finished.
func (r prober) attempt(ctx context.Context, count *tally) bool {
	r.pod.mu.Lock()
	due := r.due()
	r.pod.mu.Unlock()
	if !due {
		return true
	}
	limited, cancel := context.WithTimeout(ctx, seconds(r.probe.TimeoutSeconds, time.Second))
	err := r.check(limited)
	cancel()
	result := count.add(err == nil)
	r.pod.mu.Lock()
	defer r.pod.mu.Unlock()
	if ctx.Err() != nil {
		return false // the instance has ended: the result no longer matters
	}
	if err != nil {
		r.pod.report(r.c, "The "+r.name+" probe failed", err)
	}
	if result != probeUnknown && result != *r.result {
		*r.result = result
		r.pod.enqueue(r.pod.uid)
	}
	return !r.once || result == probeUnknown
}

func seconds(value int32, fallback time.Duration) time.Duration {
	if value <= 0 {
		return fallback
	}
	return time.Duration(value) * time.Second
}

// action returns the function that carries out a probe or a hook of the running
// instance. Its error is why that failed.
func (p *pod) action(c *container, handler corev1.ProbeHandler) func(context.Context) error {
	instance, spec, ip := c.instance, c.spec, p.ip
	switch {
	case handler.HTTPGet != nil:
		return func(ctx context.Context) error { return httpGet(ctx, handler.HTTPGet, spec, ip) }
	case handler.Exec != nil:
		return func(ctx context.Context) error { return instance.Exec(ctx, handler.Exec.Command) }
	case handler.TCPSocket != nil:
		return func(ctx context.Context) error {
			target, err := address(handler.TCPSocket.Host, handler.TCPSocket.Port, spec, ip)
			if err != nil {
				return err
			}
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
			if err != nil {
				return err
			}
			return connection.Close()
		}
	}
	return func(context.Context) error { return nil }
}

// address is the host and port of an action.
func address(host string, port intstr.IntOrString, spec *corev1.Container, ip string) (string, error) {
	if host == "" {
		host = ip
	}
	number := port.IntValue()
	for _, named := range spec.Ports {
		if port.Type == intstr.String && named.Name == port.StrVal {
			number = int(named.ContainerPort)
		}
	}
	if number < 1 || number > 65535 {
		return "", fmt.Errorf("container %s has no port %q", spec.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

// statusError is an HTTP status that is not a success.
type statusError int

func (e statusError) Error() string {
	return "HTTP probe failed with statuscode: " + strconv.Itoa(int(e))
}

// httpGet sends a GET and reads the answer. It does not follow redirects; they count as
// answers.
func httpGet(ctx context.Context, action *corev1.HTTPGetAction, spec *corev1.Container, ip string) error {
	target, err := address(action.Host, action.Port, spec, ip)
	if err != nil {
		return err
	}
	location, err := url.Parse(action.Path)
	if err != nil {
		return fmt.Errorf("path of httpGet: %w", err)
	}
	location.Scheme, location.Host = "http", target
	if action.Scheme == corev1.URISchemeHTTPS {
		location.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	for _, header := range action.HTTPHeaders {
		if header.Name == "Host" {
			request.Host = header.Value
		}
		request.Header.Add(header.Name, header.Value)
	}
	client := http.Client{
		// As with a kubelet, containers' certificates are not verified.
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	err = errors.Join(err, response.Body.Close())
	if err == nil && (response.StatusCode < 200 || response.StatusCode >= 400) {
		return statusError(response.StatusCode)
	}
	return err
}

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

// tally turns a probe's attempts into its result.
type tally struct {
	successThreshold, failureThreshold int
	lastOK                             bool
	run                                int // attempts in a row that ended like the last
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
	name   string // for events
	probe  *corev1.Probe
	check  func(context.Context) error
	result *probeResult // in c; under the Pod's lock
	due    func() bool  // under the Pod's lock
	once   bool         // it ends with its first result
	turn   <-chan struct{}
}

// startProbes starts the probes of the running instance; they end with it.
func (p *pod) startProbes(c *container, spec *corev1.Container) {
	ctx, cancel := context.WithCancel(p.base)
	c.stopProbes = cancel
	run := func(prober prober) {
		prober.pod, prober.c = p, c
		handler := prober.probe.ProbeHandler
		prober.check = checkOf(c.instance, spec, &handler, p.ip)
		go prober.run(ctx)
	}
	if spec.StartupProbe != nil {
		c.startup = probeUnknown
		run(prober{name: "Startup", probe: spec.StartupProbe, result: &c.startup, once: true,
			due: func() bool { return p.termination == nil }})
	}
	if spec.ReadinessProbe != nil {
		c.readiness, c.readinessTurn = probeFailure, make(chan struct{}, 1)
		run(prober{name: "Readiness", probe: spec.ReadinessProbe, result: &c.readiness, due: c.started, turn: c.readinessTurn})
	}
	if spec.LivenessProbe != nil {
		// A terminating Pod is not killed for terminating slowly.
		run(prober{name: "Liveness", probe: spec.LivenessProbe, result: &c.liveness,
			due: func() bool { return c.started() && p.termination == nil }})
	}
}

// firstAttempt is when a probe without an initial delay starts. A kubelet too takes a
// moment to notice that a container runs; a program that is up by then is spared a
// failure.
const firstAttempt = 100 * time.Millisecond

// run probes until the instance ends.
func (r prober) run(ctx context.Context) {
	count := tally{successThreshold: int(r.probe.SuccessThreshold), failureThreshold: int(r.probe.FailureThreshold)}
	if !r.wait(ctx, seconds(r.probe.InitialDelaySeconds, firstAttempt), nil) {
		return
	}
	for r.attempt(ctx, &count) && r.wait(ctx, seconds(r.probe.PeriodSeconds, 10*time.Second), r.turn) {
	}
}

// wait waits for the end of the delay or for an extra turn. It returns false if the
// instance has ended.
func (r prober) wait(ctx context.Context, delay time.Duration, turn <-chan struct{}) bool {
	timer := r.pod.clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-turn:
	case <-timer.C():
	}
	return ctx.Err() == nil
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
	if ctx.Err() != nil {
		return false // the instance has ended: the result no longer matters
	}
	result := count.add(err == nil)
	r.pod.mu.Lock()
	changed := ctx.Err() == nil && result != probeUnknown && result != *r.result
	if changed {
		*r.result = result
	}
	if err != nil {
		r.pod.event(corev1.EventTypeWarning, "Unhealthy", r.c.name, r.name+" probe failed: "+err.Error())
	}
	r.pod.mu.Unlock()
	if changed {
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

// checkOf returns the function that runs a probe. Its error is why the probe failed.
func checkOf(instance Instance, spec *corev1.Container, handler *corev1.ProbeHandler, ip string) func(context.Context) error {
	switch {
	case handler.HTTPGet != nil:
		return func(ctx context.Context) error {
			status, err := httpGet(ctx, handler.HTTPGet, spec, ip)
			if err == nil && (status < 200 || status >= 400) {
				err = fmt.Errorf("HTTP probe failed with statuscode: %d", status)
			}
			return err
		}
	case handler.Exec != nil:
		return func(ctx context.Context) error { return instance.Exec(ctx, handler.Exec.Command) }
	case handler.TCPSocket != nil:
		return func(ctx context.Context) error {
			return dial(ctx, handler.TCPSocket.Host, handler.TCPSocket.Port, spec, ip)
		}
	case handler.GRPC != nil:
		return func(ctx context.Context) error {
			return dial(ctx, "", intstr.FromInt32(handler.GRPC.Port), spec, ip)
		}
	}
	return func(context.Context) error { return nil }
}

// handlerOf returns the function that runs a lifecycle handler. As with a kubelet, any
// answer to a GET is a success, whatever its status.
func handlerOf(instance Instance, spec *corev1.Container, handler *corev1.LifecycleHandler, ip string) func(context.Context) error {
	switch {
	case handler.HTTPGet != nil:
		return func(ctx context.Context) error {
			_, err := httpGet(ctx, handler.HTTPGet, spec, ip)
			return err
		}
	case handler.Exec != nil:
		return func(ctx context.Context) error { return instance.Exec(ctx, handler.Exec.Command) }
	}
	return func(context.Context) error { return nil }
}

// address is the host and port of an action.
func address(host string, port intstr.IntOrString, spec *corev1.Container, ip string) (string, error) {
	if host == "" {
		host = ip
	}
	number := port.IntValue()
	if port.Type == intstr.String && number == 0 {
		for i := range spec.Ports {
			if spec.Ports[i].Name == port.StrVal {
				number = int(spec.Ports[i].ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return "", fmt.Errorf("container %s has no port %q: name one of its ports or give a number", spec.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func dial(ctx context.Context, host string, port intstr.IntOrString, spec *corev1.Container, ip string) error {
	target, err := address(host, port, spec, ip)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return err
	}
	return connection.Close()
}

// httpGet sends a GET and returns the status of the answer after reading it. It does
// not follow redirects; they count as answers.
func httpGet(ctx context.Context, action *corev1.HTTPGetAction, spec *corev1.Container, ip string) (int, error) {
	target, err := address(action.Host, action.Port, spec, ip)
	if err != nil {
		return 0, err
	}
	location, err := url.Parse(action.Path)
	if err != nil {
		return 0, fmt.Errorf("path of httpGet: %w", err)
	}
	location.Scheme, location.Host = "http", target
	if action.Scheme == corev1.URISchemeHTTPS {
		location.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return 0, fmt.Errorf("httpGet: %w", err)
	}
	request.Header.Set("User-Agent", "kube-probe/1.36")
	for _, header := range action.HTTPHeaders {
		if header.Name == "Host" {
			request.Host = header.Value
		}
		request.Header.Add(header.Name, header.Value)
	}
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, Proxy: nil,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // containers' certificates are not verified
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, errors.Join(err, response.Body.Close())
}

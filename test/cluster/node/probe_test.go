// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
)

func TestTally(t *testing.T) {
	for _, test := range []struct {
		name             string
		success, failure int32
		attempts         string // + and -
		want             string // result after each: ., + or -
	}{
		{"thresholds that are not set count as one", 0, 0, "+-+-", "+-+-"},
		{"three failures", 1, 3, "---+--+---", "..-+..+..-"},
		{"two successes", 2, 1, "+-++-+", ".-.+-."},
		{"the run goes on after the threshold", 2, 2, "----", ".---"},
	} {
		t.Run(test.name, func(t *testing.T) {
			count := tally{successThreshold: test.success, failureThreshold: test.failure}
			var got strings.Builder
			for _, attempt := range test.attempts {
				got.WriteByte(map[probeResult]byte{probeUnknown: '.', probeSuccess: '+', probeFailure: '-'}[count.add(attempt == '+')])
			}
			if got.String() != test.want {
				t.Errorf("results %s, want %s", got.String(), test.want)
			}
		})
	}
}

// TestActions carries out probes against a server, and against one that accepts
// connections and never answers.
func TestActions(t *testing.T) {
	mux := http.NewServeMux()
	for path, code := range map[string]int{"/ok": 200, "/moved": 302, "/missing": 404, "/broken": 503} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	mux.HandleFunc("GET shop.example/", func(http.ResponseWriter, *http.Request) {})
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	port := func(name string, listener net.Listener) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: int32(listener.Addr().(*net.TCPAddr).Port)}
	}
	p := &pod{podState: podState{ip: "127.0.0.1"}}
	c := &container{spec: &corev1.Container{Ports: []corev1.ContainerPort{
		port("http", plain.Listener), port("https", secure.Listener), port("silent", silent), {Name: "closed", ContainerPort: 1},
	}}}
	get := func(port, path string, headers ...corev1.HTTPHeader) corev1.ProbeHandler {
		scheme := corev1.URISchemeHTTP
		if port == "https" {
			scheme = corev1.URISchemeHTTPS
		}
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(port), Scheme: scheme, HTTPHeaders: headers}}
	}
	tcp := func(port string) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString(port)}}
	}
	for name, test := range map[string]struct {
		handler corev1.ProbeHandler
		wrong   string // in the error; empty: none
	}{
		"ok":                 {get("http", "/ok"), ""},
		"a redirect":         {get("http", "/moved"), ""},
		"not found":          {get("http", "/missing"), "statuscode: 404"},
		"a server error":     {get("http", "/broken"), "statuscode: 503"},
		"another host":       {get("http", "/any", corev1.HTTPHeader{Name: "Host", Value: "shop.example"}), ""},
		"any certificate":    {get("https", "/ok"), ""},
		"no answer":          {get("silent", "/ok"), "deadline"},
		"an unknown port":    {get("grpc", "/ok"), `no port "grpc"`},
		"a TCP port":         {tcp("silent"), ""},
		"a closed TCP port":  {tcp("closed"), "refused"},
		"an unknown handler": {corev1.ProbeHandler{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := p.action(c, test.handler)(ctx)
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("error %v, want %q", err, test.wrong)
			}
		})
	}
}

// execInstance is an instance whose commands end as the test says.
type execInstance struct {
	simulatedInstance
	results chan error
}

func (i *execInstance) Exec(ctx context.Context, _ []string) error {
	select {
	case err := <-i.results:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestProbes takes a container through its startup, readiness and liveness probes.
func TestProbes(t *testing.T) {
	steps := make(chan struct{}, 100)
	exec := func(failures int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}, PeriodSeconds: 1, FailureThreshold: failures}
	}
	instance := &execInstance{results: make(chan error)}
	c := &container{instance: instance, hooked: true, startup: probeSuccess, readiness: probeSuccess, liveness: probeSuccess, spec: &corev1.Container{}}
	p := &pod{object: buildPod(), kubelet: &kubelet{
		clock: clock.RealClock{}, base: t.Context(), enqueue: func(types.UID) { steps <- struct{}{} },
	}}
	bad := errors.New("bad")
	// play starts a probe, ends its attempts as told, and waits for the result.
	play := func(spec corev1.Container, attempts []error, startup, readiness, liveness probeResult) {
		t.Helper()
		p.mu.Lock()
		c.spec = &spec
		p.startProbes(c)
		stop := c.stopProbes
		p.mu.Unlock()
		for _, result := range attempts {
			instance.results <- result
		}
		select {
		case <-steps:
		case <-time.After(patience):
			t.Fatal("the Pod was not put in the queue")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		stop()
		if c.startup != startup || c.readiness != readiness || c.liveness != liveness {
			t.Errorf("startup %v, readiness %v, liveness %v; want %v, %v, %v", c.startup, c.readiness, c.liveness, startup, readiness, liveness)
		}
	}
	play(corev1.Container{StartupProbe: exec(2)}, []error{bad, nil}, probeSuccess, probeSuccess, probeSuccess)
	play(corev1.Container{ReadinessProbe: exec(1)}, []error{bad, nil}, probeSuccess, probeSuccess, probeSuccess)
	play(corev1.Container{LivenessProbe: exec(2)}, []error{bad, bad}, probeSuccess, probeSuccess, probeFailure)
	play(corev1.Container{StartupProbe: exec(2), ReadinessProbe: exec(1)}, []error{bad, bad}, probeFailure, probeFailure, probeFailure)
}

// TestAttemptsThatAreNotDue probes for liveness: not before the start, and not a Pod that
// terminates.
func TestAttemptsThatAreNotDue(t *testing.T) {
	p := &pod{object: buildPod(), kubelet: &kubelet{clock: clock.RealClock{}, base: t.Context(), enqueue: func(types.UID) {}}}
	for name, test := range map[string]struct {
		startup     probeResult
		termination *termination
		tried       bool
	}{
		"running":     {probeSuccess, nil, true},
		"starting":    {probeUnknown, nil, false},
		"terminating": {probeSuccess, &termination{}, false},
	} {
		tried := make(chan struct{}, 1)
		spec := build("main", func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} })
		c := &container{spec: &spec, instance: &execInstance{}, hooked: true, startup: test.startup, liveness: probeSuccess}
		p.termination = test.termination
		r := prober{pod: p, c: c, probe: &corev1.Probe{}, result: &c.liveness, due: p.dueForLife(c),
			check: func(context.Context) error { tried <- struct{}{}; return nil }}
		if !r.attempt(t.Context(), &tally{}) || len(tried) > 0 != test.tried {
			t.Errorf("%s: tried %t, want %t", name, len(tried) > 0, test.tried)
		}
	}
}

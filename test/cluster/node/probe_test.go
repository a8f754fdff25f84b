// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestTally(t *testing.T) {
	for _, test := range []struct {
		name             string
		success, failure int
		attempts         string // + and -
		want             string // result after each: ., + or -
	}{
		{"thresholds of one", 1, 1, "+-+-", "+-+-"},
		{"thresholds that are not set count as one", 0, 0, "+-", "+-"},
		{"three failures", 1, 3, "---+--+---", "..-+..+..-"},
		{"two successes", 2, 1, "+-++-+", ".-.+-."},
		{"the run goes on after the threshold", 2, 2, "----", ".---"},
		{"the first failure begins a run", 1, 2, "-+-", ".+."},
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

// serve starts a server that records its requests.
func serve(t *testing.T, start func(http.Handler) *httptest.Server) (server *httptest.Server, requests *[]string, port int) {
	t.Helper()
	requests = new([]string)
	server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests = append(*requests, r.Host+" "+r.URL.String()+" "+r.Header.Get("X-Test"))
		code, err := strconv.Atoi(r.URL.Query().Get("code"))
		if err != nil {
			code = http.StatusOK
		}
		if code/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	location, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err = strconv.Atoi(location.Port())
	if err != nil {
		t.Fatal(err)
	}
	return server, requests, port
}

func TestHTTPProbe(t *testing.T) {
	server, requests, port := serve(t, httptest.NewServer)
	spec := &corev1.Container{Name: "main", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(port)}}}
	probe := func(action corev1.HTTPGetAction) error {
		return checkOf(nil, spec, &corev1.ProbeHandler{HTTPGet: &action}, "127.0.0.1")(t.Context())
	}
	named := intstr.FromString("http")
	for path, ok := range map[string]bool{"/?code=200": true, "/?code=302": true, "/?code=404": false, "/?code=503": false, "": true} {
		if err := probe(corev1.HTTPGetAction{Path: path, Port: named}); (err == nil) != ok {
			t.Errorf("probe of %q: error %v, want success %v", path, err, ok)
		}
	}
	*requests = nil
	headers := []corev1.HTTPHeader{{Name: "Host", Value: "shop.example"}, {Name: "X-Test", Value: "yes"}}
	if err := probe(corev1.HTTPGetAction{Path: "/a?b=c", Port: intstr.FromInt(port), HTTPHeaders: headers}); err != nil {
		t.Error(err)
	}
	if want := []string{"shop.example /a?b=c yes"}; !slices.Equal(*requests, want) {
		t.Errorf("requests %q, want %q", *requests, want)
	}
	if err := probe(corev1.HTTPGetAction{Port: intstr.FromString("grpc")}); err == nil || !strings.Contains(err.Error(), `no port "grpc"`) {
		t.Errorf("probe of an unknown port: error %v", err)
	}
	hook := handlerOf(nil, spec, &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/?code=500", Port: named}}, "127.0.0.1")
	if err := hook(t.Context()); err != nil {
		t.Errorf("a hook that was answered 500 failed: %v", err)
	}

	tcp := checkOf(nil, spec, &corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: named}}, "127.0.0.1")
	if err := tcp(t.Context()); err != nil {
		t.Errorf("TCP probe of a port that listens: %v", err)
	}
	server.Close()
	if err := tcp(t.Context()); err == nil {
		t.Error("TCP probe of a port where nobody listens succeeds")
	}
	if err := probe(corev1.HTTPGetAction{Port: named}); err == nil {
		t.Error("HTTP probe of a port where nobody listens succeeds")
	}
}

func TestHTTPSProbeTakesAnyCertificate(t *testing.T) {
	_, _, port := serve(t, httptest.NewTLSServer)
	action := corev1.HTTPGetAction{Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt(port)}
	if err := checkOf(nil, &corev1.Container{}, &corev1.ProbeHandler{HTTPGet: &action}, "127.0.0.1")(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestProbeTimeout uses a server that accepts connections and never answers.
func TestProbeTimeout(t *testing.T) {
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	port := intstr.FromInt(listener.Addr().(*net.TCPAddr).Port)
	err = checkOf(nil, &corev1.Container{}, &corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}, "127.0.0.1")(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
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

func TestStartupProbeEndsWithItsResult(t *testing.T) {
	p := &pod{kubelet: &kubelet{enqueue: func(types.UID) {}}}
	for _, test := range []struct {
		once     bool
		attempts string
		want     string // whether the probe continues after each
	}{
		{true, "--+", "yyn"}, {true, "---", "yyn"}, {false, "--+", "yyy"},
	} {
		var outcome error
		result := probeUnknown
		r := prober{pod: p, c: &container{}, probe: &corev1.Probe{}, result: &result, once: test.once,
			due: func() bool { return true }, check: func(context.Context) error { return outcome }}
		count := &tally{failureThreshold: 3}
		var got strings.Builder
		for _, attempt := range test.attempts {
			outcome = nil
			if attempt == '-' {
				outcome = errors.New("not yet")
			}
			got.WriteByte(map[bool]byte{true: 'y', false: 'n'}[r.attempt(t.Context(), count)])
		}
		if got.String() != test.want {
			t.Errorf("once %v, attempts %s: goes on %s, want %s", test.once, test.attempts, got.String(), test.want)
		}
	}
}

// TestTerminatingPodIsNotProbedForLife probes a container that is being stopped for
// liveness.
func TestTerminatingPodIsNotProbedForLife(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	p := &pod{kubelet: &kubelet{clock: clock, base: t.Context(), enqueue: func(types.UID) {}}}
	instance := &execInstance{results: make(chan error)}
	c := &container{instance: instance, hooked: true, startup: probeSuccess, liveness: probeSuccess}
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	turn := func(advance time.Duration) (attempted bool) {
		t.Helper()
		clock.Step(advance)
		eventually(t, "the probe makes its attempt or leaves it", func() bool {
			select {
			case instance.results <- nil:
				attempted = true
			default:
			}
			return attempted || clock.HasWaiters()
		})
		return attempted
	}
	p.startProbes(c, &corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: exec, PeriodSeconds: 1}})
	eventually(t, "the probe waits for its turn", clock.HasWaiters)
	if !turn(firstAttempt) {
		t.Error("a Pod that runs is not probed")
	}
	p.mu.Lock()
	p.termination = &termination{}
	p.mu.Unlock()
	eventually(t, "the probe waits for its turn", clock.HasWaiters)
	if turn(time.Second) {
		t.Error("a Pod that terminates is probed")
	}
}

// TestProbesInTurn takes a container through its startup, readiness and liveness
// probes.
func TestProbesInTurn(t *testing.T) {
	steps := make(chan struct{}, 100)
	p := &pod{uid: "u", kubelet: &kubelet{clock: clock.RealClock{}, base: t.Context(), enqueue: func(types.UID) { steps <- struct{}{} }}}
	instance := &execInstance{results: make(chan error)}
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	c := &container{name: "main", instance: instance, hooked: true}
	p.containers = []*container{c}
	bad := errors.New("bad")
	expect := func(what string, startup, readiness, liveness probeResult) {
		t.Helper()
		select {
		case <-steps:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the Pod was not put in the queue", what)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.startup != startup || c.readiness != readiness || c.liveness != liveness {
			t.Errorf("%s: startup %v, readiness %v, liveness %v; want %v, %v, %v", what, c.startup, c.readiness, c.liveness, startup, readiness, liveness)
		}
	}

	p.mu.Lock()
	c.liveness = probeSuccess
	p.startProbes(c, &corev1.Container{
		StartupProbe:   &corev1.Probe{ProbeHandler: exec, PeriodSeconds: 1, FailureThreshold: 2},
		ReadinessProbe: &corev1.Probe{ProbeHandler: exec, PeriodSeconds: 100},
	})
	p.mu.Unlock()
	instance.results <- bad
	instance.results <- nil // a second later; below the threshold, so the result still holds
	expect("startup", probeSuccess, probeFailure, probeSuccess)
	c.readinessTurn <- struct{}{} // as a step does that finds the container started
	instance.results <- nil
	expect("readiness", probeSuccess, probeSuccess, probeSuccess)
	c.readinessTurn <- struct{}{}
	instance.results <- bad
	expect("readiness lost", probeSuccess, probeFailure, probeSuccess)

	p.mu.Lock()
	p.startProbes(c, &corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: exec, PeriodSeconds: 1}})
	c.startup = probeSuccess
	p.mu.Unlock()
	instance.results <- bad
	expect("liveness", probeSuccess, probeFailure, probeFailure)
}

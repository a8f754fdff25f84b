// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/servers/run"
)

const (
	// forged requests are sent at forgedASecond, idle connections are opened meanwhile.
	forged, forgedASecond, idle = 2_000, 500, 600
	// known requests are sent by somebody who has learned the path.
	known = 1_500
	// keeps is how many connections the guard has open at most.
	keeps = 256
)

// target is a guard that is a process of its own, with the rights and the memory of the chart's.
type target struct {
	*scene.Scene
	process                *process.Process
	address, metrics, path string
	memory                 int64
}

// TestFlood is an attack on a guard that API servers call meanwhile: 500 forged requests a second, long
// ones among them, at other paths than its own; connections that say nothing or never end their header;
// then requests of somebody who has learned the path. The guard stays within the chart's memory, asks the
// API server nothing for strangers, and Pods that are deleted meanwhile are drained as before.
func TestFlood(t *testing.T) {
	g := attacked(t)
	g.Make(g.Prop("Registration"))
	g.comes("before")
	g.drains()
	before := g.requests()
	flood, end := context.WithCancel(t.Context())
	defer end()
	silent := g.silence(flood)
	g.forge(flood, forged, func(i int) (path string, body []byte) {
		return []string{"/", "/guard", "/guard/" + strings.Repeat("0", 64), "/x/.." + g.path}[i%4], bodies[i/4%len(bodies)]
	}, nil)
	g.Same("requests to the API server for strangers", g.requests()-before, 0)
	if open := silent(); open > keeps {
		t.Errorf("the guard keeps %d idle connections open, more than %d", open, keeps)
	}
	for _, phase := range []struct {
		pods   string
		count  int
		forged func(i int) (path string, body []byte)
	}{
		{"strangers", forged, func(i int) (string, []byte) { return "/guard", bodies[i%len(bodies)] }},
		{"known", known, func(i int) (string, []byte) {
			// A Pod of the same name that is not there: the guard looks for it.
			return g.path + "?timeout=3s", fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u%d",`+
				`"operation":"DELETE","oldObject":{"metadata":{"namespace":%q,"name":"nobody","uid":"n","annotations":{"x":%q}}}}}`,
				i, g.Namespace, strings.Repeat("x", i%10*100_000))
		}},
	} {
		g.comes(phase.pods)
		flood, end := context.WithCancel(flood)
		var sent sync.WaitGroup
		begun := make(chan struct{})
		sent.Go(func() { g.forge(flood, phase.count, phase.forged, begun) })
		<-begun
		g.drains()
		end()
		sent.Wait()
	}
	peak := checktest.Must(process.Table{}.PeakRSS(g.process.PID()))(t)
	t.Logf("the guard had %s at most, of %s", mebibytes(peak), mebibytes(g.memory))
	if peak > g.memory {
		t.Error("that is too much")
	}
	if exit := g.process.ExitError(); exit != nil {
		t.Error(exit)
	}
}

func mebibytes(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes>>20<<20, resource.BinarySI)
}

// bodies are what strangers send: short and long ones.
var bodies = [][]byte{[]byte("{}"), bytes.Repeat([]byte("["), 100_000), bytes.Repeat([]byte(" "), 6_000_000)}

// attacked starts a guard, and has API servers call it until the test ends.
func attacked(t *testing.T) *target {
	t.Helper()
	g := &target{Scene: begin(t)}
	root := checktest.Must(filepath.Abs(scene.Root))(t)
	var values struct{ Resources corev1.ResourceRequirements }
	g.Must(yaml.Unmarshal(checktest.Must(os.ReadFile(filepath.Join(root, "charts", "usher", "values.yaml")))(t), &values))
	g.memory = values.Resources.Limits.Memory().Value()
	program := checkout.Program{Name: "build usher", Module: root, Pkg: "./cmd/usher", Out: filepath.Join(t.TempDir(), "usher")}
	g.Must(program.Compile(t.Context(), nil))
	ports := checktest.Must(run.FreePorts(t.Context(), 2))(t)
	g.address, g.metrics = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	var err error
	g.process, err = process.Start(process.Spec{
		Name: "guard", Path: program.Out, Log: filepath.Join(t.TempDir(), "guard.log"), Env: []string{fmt.Sprintf("GOMEMLIMIT=%d", g.memory)},
		Args: []string{
			"--kubeconfig", checktest.Must(plane.UserKubeconfig("usher"))(t), "--controllers=guard", "--guard-service=" + service.Secret().String(),
			fmt.Sprintf("--guard-port=%d", ports[0]), "--metrics-bind-address=" + g.metrics, "--metrics-insecure",
			// It asks a few times a lease whether etcd was restored: what the flood adds is counted alone.
			"--lease-duration=1h",
		},
	})
	g.Must(err)
	t.Cleanup(func() { checktest.NoError(t, g.process.Stop(context.Background(), 10*time.Second)) })
	g.Must(g.process.WaitReady(t.Context(), func(ctx context.Context) error {
		conn, err := g.connect(ctx, "127.0.0.1")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // it was only tried
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	}))
	was, err := g.calledAt(t.Context(), int32(ports[0]))
	g.Must(err)
	t.Cleanup(func() {
		_, err := g.calledAt(context.Background(), was) // that of the test has ended
		checktest.NoError(t, err)
	})
	return g
}

// calledAt has API servers call the guard at a port, and returns the one before.
func (g *target) calledAt(ctx context.Context, port int32) (was int32, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		if err := plane.Get(ctx, client.ObjectKey{Name: service.Name}, &configuration); err != nil {
			return err
		}
		for i := range configuration.Webhooks {
			called := configuration.Webhooks[i].ClientConfig.Service
			was, g.path, called.Port = *called.Port, *called.Path, &port
		}
		return plane.Update(ctx, &configuration)
	})
	return was, err
}

// comes brings two Pods into service.
func (g *target) comes(prefix string) {
	g.Helper()
	for i := range 2 {
		g.Make(g.Prop("Pod", fmt.Sprintf("metadata: {name: %s-%d}", prefix, i)))
	}
	s := &story{Scene: g.Scene}
	s.listed("2", s.registered)
}

// drains deletes the Pods. That they are drained by then, and that nobody uses them when they go, the
// witness sees; that the guard has asked for it, the event says.
func (g *target) drains() {
	g.Helper()
	pods := g.Pods()
	var deleted errgroup.Group
	for _, pod := range pods {
		deleted.Go(func() error { return g.Delete(g.Context(), &pod) })
	}
	g.Must(deleted.Wait())
	for _, pod := range pods {
		g.Event(&pod, "DeletionRequested", "asks to delete the Pod")
		g.Gone(&pod)
	}
}

// connect opens a connection from an address of this machine.
func (g *target) connect(ctx context.Context, from string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return dialer.DialContext(ctx, "tcp", g.address)
}

// stranger is the address of attackers: API servers have another one, if not, more than one
// connection of theirs would go.
const stranger = "127.0.0.2"

// silence opens connections that say nothing, or begin a header and do not end it, or say nothing after
// TLS. The function returns how many of them the guard keeps open.
func (g *target) silence(ctx context.Context) (open func() int) {
	g.Helper()
	var closed atomic.Int64
	for i := range idle {
		conn := checktest.Must(g.connect(ctx, stranger))(g)
		g.Cleanup(func() { _ = conn.Close() })
		go func() {
			defer closed.Add(1)
			if i%3 > 0 {
				secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				if i%3 == 1 {
					_, _ = io.WriteString(secured, "POST / HTTP/1.1\r\nHost: guard\r\nX: ")
				} else if secured.HandshakeContext(ctx) != nil {
					return
				}
			}
			_, _ = io.Copy(io.Discard, conn) // until the guard hangs up
		}()
	}
	return func() int {
		// The guard has seen all of them: others were answered after they came.
		_ = wait.PollUntilContextTimeout(ctx, scene.Poll, 30*time.Second, true, func(context.Context) (bool, error) {
			return closed.Load() >= idle-keeps, nil
		})
		return idle - int(closed.Load())
	}
}

// forge sends forged requests, so many a second. begun is closed when a tenth of them has been sent.
func (g *target) forge(ctx context.Context, count int, next func(i int) (path string, body []byte), begun chan<- struct{}) {
	forger := &http.Client{Transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return g.connect(ctx, stranger) },
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxConnsPerHost: 64,
	}}
	defer forger.CloseIdleConnections()
	pace, sent := rate.NewLimiter(forgedASecond, 50), sync.WaitGroup{}
	for i := range count {
		if pace.Wait(ctx) != nil {
			break
		}
		if i == count/10 && begun != nil {
			close(begun)
		}
		path, body := next(i)
		sent.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+g.address+path, bytes.NewReader(body))
			if err != nil {
				return
			}
			request.Header.Set("Content-Type", "application/json")
			answer, err := forger.Do(request)
			if err != nil {
				return // The guard may hang up on a stranger.
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		})
	}
	sent.Wait()
}

// requests is how many requests the guard has sent to the API server.
func (g *target) requests() (sum int) {
	g.Helper()
	request := checktest.Must(http.NewRequestWithContext(g.Context(), http.MethodGet, "http://"+g.metrics+"/metrics", nil))(g)
	answer, err := http.DefaultClient.Do(request)
	g.Must(err)
	defer func() { g.Must(answer.Body.Close()) }()
	for line := range strings.Lines(string(checktest.Must(io.ReadAll(answer.Body))(g))) {
		var count int
		if name, value, _ := strings.Cut(line, "} "); strings.HasPrefix(name, "rest_client_requests_total{") {
			_ = checktest.Must(fmt.Sscan(value, &count))(g)
			sum += count
		}
	}
	if sum == 0 {
		g.Error("the guard does not say how many requests it has sent")
	}
	return sum
}

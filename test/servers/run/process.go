// SPDX-License-Identifier: Apache-2.0

// Package run starts the real servers that connectors are tested and measured with.
package run

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/usher-dev/usher/test/cluster/process"
)

// startTimeout bounds the time until a server is ready: a Java server takes seconds when
// many tests share a processor.
const startTimeout = 2 * time.Minute

// Spec describes how to run a server, which must have Ready.
type Spec = process.Spec

// Process is a server that can be restarted. It is not safe for concurrent use.
type Process struct {
	*process.Process

	spec Spec
}

// Start starts a server and waits until it is ready. Close it at the end.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	p := &Process{spec: spec}
	if err := p.Restart(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Restart kills the server if it runs, starts it, and waits until it is ready.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	var err error
	if p.Process, err = process.Start(p.spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the start took longer than %s", startTimeout))
	defer cancel()
	return p.WaitReady(ctx, p.spec.Ready)
}

// Kill ends the process, and the processes that it started, with SIGKILL, and returns when it is gone.
// It is not an error if the process has ended or never started.
func (p *Process) Kill() error {
	if p.Process == nil {
		return nil
	}
	return p.Process.Kill()
}

// Close kills the process for good.
func (p *Process) Close() error { return p.Kill() }

// Hang suspends the process until Resume, and returns when all its threads have stopped:
// the signal itself is only a request, and a server might still answer a call made right
// after it.
func (p *Process) Hang() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Resume continues a process that hangs.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Ports are below the range for outgoing connections (Linux: 32768 and up), so that no
// connection can take one between its choice and its use.
const firstPort, lastPort = 20000, 32000

// FreePorts picks n ports of 127.0.0.1 at random that are free for both TCP and UDP. They
// are held until all are known, so that no two are the same.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range 200 * n {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			continue // Taken: try another one.
		}
		defer func() { _ = tcp.Close() }()
		udp, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", address)
		if err != nil {
			continue
		}
		defer func() { _ = udp.Close() }()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("found no %d free ports from %d to %d on 127.0.0.1: end programs that listen there", n, firstPort, lastPort)
}

// HTTP is a server with an HTTP API, for a test's own requests, which bypass the
// connector.
type HTTP struct {
	// Address is the URL that paths are appended to.
	Address string
	// Header is sent with each request.
	Header http.Header
	// Client sends the requests; nil for http.DefaultClient.
	Client *http.Client
}

// Do sends a request, with question as JSON in its body unless it is nil, and decodes the answer into
// into: if that is nil, it drops the answer, and if it points to a string, that gets the text.
func (h HTTP) Do(ctx context.Context, method, path string, question, into any) (http.Header, error) {
	body := io.Reader(http.NoBody)
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, h.Address+path, body)
	if err != nil {
		return nil, err
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	for key, values := range h.Header {
		request.Header[key] = values
	}
	response, err := cmp.Or(h.Client, http.DefaultClient).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it has been read
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s answered %s: %s", path, response.Status, data)
	}
	switch into := into.(type) {
	case nil:
		return response.Header, nil
	case *string:
		*into = string(data)
		return response.Header, nil
	}
	return response.Header, json.Unmarshal(data, into)
}

// Metrics reads metrics in Prometheus' format, by name.
func (h HTTP) Metrics(ctx context.Context, path string) (map[string]*dto.MetricFamily, error) {
	var text string
	if _, err := h.Do(ctx, http.MethodGet, path, nil, &text); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(strings.NewReader(text))
}

// askTimeout bounds one Ask.
const askTimeout = 20 * time.Second

// Ask sends a server a command and returns what it answers before it closes the
// connection.
func Ask(ctx context.Context, network, address, command string) (string, error) {
	conn, err := (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return strings.TrimSpace(string(answer)), err
}

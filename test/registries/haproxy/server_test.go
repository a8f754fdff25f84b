// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/haproxy"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// proxy is a real HAProxy, master and worker.
type proxy struct {
	*run.Process
	root, folder string
	// front is the port of the frontend for service web, api that of the runtime API;
	// socket is the same API as a file, and observer another API without the level
	// admin.
	front, api, observer int
	socket               string
	// more is added to the configuration.
	more string
}

// newProxy prepares one without starting it.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	root := servers.DebianProgram(t, "haproxy")
	// HAProxy ends a socket's name at a comma, and t.TempDir includes commas from the
	// test's name.
	folder := checktest.Must(os.MkdirTemp("", "usher-haproxy-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	p := &proxy{root: root, folder: folder}
	ports := servers.FreePorts(t, 3)
	p.front, p.api, p.observer = ports[0], ports[1], ports[2]
	p.socket = filepath.Join(p.folder, "api.sock")
	return p
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	p := newProxy(t)
	p.start(t)
	return p
}

func (p *proxy) start(t *testing.T) {
	t.Helper()
	file := filepath.Join(p.folder, "haproxy.cfg")
	config, err := os.ReadFile(filepath.Join("testdata", "haproxy.cfg"))
	checktest.NoError(t, err)
	text := fmt.Sprintf(string(config), p.socket, p.api, p.observer, p.front, p.more)
	checktest.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	p.Process = servers.Start(t, run.Spec{
		Name: "haproxy", Path: filepath.Join(p.root, "usr/sbin/haproxy"), Args: []string{"-W", "-db", "-f", file},
		Env: append(os.Environ(), fetch.LibraryPath(p.root)),
		Ready: func(ctx context.Context) error {
			_, err := run.Ask(ctx, "unix", p.socket, "show info\n")
			return err
		},
	})
}

// reload makes a new worker take over, as systemctl reload does.
func (p *proxy) reload(t *testing.T) {
	t.Helper()
	before := pidOf(p.ask(t, "show info"))
	var sent time.Time
	registrytest.Eventually(t, "the new worker", func() string {
		// A master that has only just started its worker may miss the signal.
		if time.Since(sent) > 5*time.Second {
			checktest.NoError(t, p.Signal(syscall.SIGUSR2))
			sent = time.Now()
		}
		now, err := run.Ask(t.Context(), "unix", p.socket, "show info\n")
		return registrytest.Unless(err == nil && pidOf(now) != before, fmt.Sprintf("the old one still answers, %v", err))
	})
}

func pidOf(info string) string {
	for line := range strings.Lines(info) {
		if pid, ok := strings.CutPrefix(line, "Pid: "); ok {
			return strings.TrimSpace(pid)
		}
	}
	return ""
}

// ask sends a command, bypassing the connector.
func (p *proxy) ask(t *testing.T, command string) string {
	t.Helper()
	answer, err := run.Ask(t.Context(), "unix", p.socket, command+"\n")
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return answer
}

func (p *proxy) tcp() string  { return fmt.Sprintf("tcp://127.0.0.1:%d", p.api) }
func (p *proxy) unix() string { return "unix://" + p.socket }

// connect returns a connector to these addresses.
func connect(t *testing.T, addresses ...string) registry.Connector {
	t.Helper()
	return registrytest.Connect(haproxy.New(&usherv1alpha1.HAProxyRegistry{Addresses: addresses}, nil))(t)
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/conformance/fetch"
	"github.com/usher-dev/usher/devcluster/internal/cluster/process"
	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
	"github.com/usher-dev/usher/devcluster/internal/realnode"
	"github.com/usher-dev/usher/devcluster/internal/traffic"
)

// The ports of the registries beside etcd, on the address of the node.
const (
	consulPort  = 8500
	haproxyPort = 9999
	// frontPort is that of the first story's frontend; the others' follow.
	frontPort = 10000
)

const (
	// registryStart bounds the start of a registry.
	registryStart = time.Minute
	askRegistry   = 2 * time.Second
	maxAnswer     = 64 << 10
)

// registry is a server that can fail.
type registry interface {
	// Kill ends it as a crash does.
	Kill() error
	// Restart brings it back with its port and data.
	Restart(ctx context.Context) error
}

// programs are those of the registries, beside etcd's.
type programs struct {
	// Consul is a file, HAProxy the folder of a Debian package; empty if no story
	// wants it.
	Consul, HAProxy string
}

// getPrograms fetches or builds the registries of the stories.
func getPrograms(ctx context.Context, root string, stories []Story, tell progress.Sink) (p programs, err error) {
	if uses(stories, Consul) {
		tell.Tell(progress.Event{Task: "Consul", State: progress.Checking})
		p.Consul, err = fetch.GoProgram(ctx, "consul", filepath.Join(root, "conformance/consul/server"),
			"github.com/hashicorp/consul", "about ten minutes on two cores")
		if err != nil {
			return p, err
		}
		tell.Tell(progress.Event{Task: "Consul", State: progress.Done, Detail: "built"})
	}
	if uses(stories, HAProxy) {
		tell.Tell(progress.Event{Task: "HAProxy", State: progress.Checking})
		if p.HAProxy, err = fetch.DebianProgram(ctx, "haproxy"); err != nil {
			return p, err
		}
		tell.Tell(progress.Event{Task: "HAProxy", State: progress.Done, Detail: "unpacked"})
	}
	return p, nil
}

func uses(stories []Story, kind Registry) bool {
	return slices.ContainsFunc(stories, func(s Story) bool { return s.Registry == kind })
}

// startRegistries starts those that stories use.
func (s *stage) startRegistries(ctx context.Context, tell progress.Sink) error {
	s.registries = map[Registry]registry{Etcd: s.etcd}
	if s.kit.Programs.Consul != "" {
		s.others = append(s.others, s.consul())
	}
	if s.kit.Programs.HAProxy != "" {
		proxy, err := s.haproxy()
		if err != nil {
			return err
		}
		s.others = append(s.others, proxy)
	}
	for _, r := range s.others {
		task := "registry " + r.spec.Name
		tell.Tell(progress.Event{Task: task, State: progress.Starting})
		if err := r.Restart(ctx); err != nil {
			return fmt.Errorf("the registry %s: %w", r.spec.Name, err)
		}
		kind := Registry(r.spec.Name)
		s.registries[kind] = r
		tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "ready at " + s.address(kind)})
	}
	return nil
}

// server is a registry that is a process.
type server struct {
	spawner *process.Spawner
	spec    process.Spec
	ready   func(ctx context.Context) error
	process *process.Process
}

// Kill implements registry.
func (r *server) Kill() error {
	if r.process == nil {
		return nil
	}
	return r.process.Kill()
}

// Restart implements registry.
func (r *server) Restart(ctx context.Context) error {
	if err := r.Kill(); err != nil {
		return err
	}
	var err error
	if r.process, err = r.spawner.Start(r.spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, registryStart)
	defer cancel()
	for {
		err := r.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-r.process.Done():
			return r.process.ExitError()
		case <-ctx.Done():
			return fmt.Errorf("it is not ready after %s: %w; its log is %s", registryStart, err, r.process.Log())
		case <-time.After(lookAgain):
		}
	}
}

func (r *server) close() error {
	err := r.Kill()
	r.spawner.Close()
	return err
}

const consulConfig = `{"disable_update_check": true, "disable_host_node_id": true, "performance": {"raft_multiplier": 1},
"ports": {"http": %d, "https": -1, "dns": -1, "grpc": -1}}`

// consul is an agent that is a server with one member.
func (s *stage) consul() *server {
	return &server{
		spawner: process.NewSpawner(),
		spec: process.Spec{
			Name: string(Consul), Path: s.kit.Programs.Consul, Log: s.path("logs", "consul.log"),
			Args: []string{"agent", "-server", "-bootstrap-expect=1", "-node=server", "-bind=127.0.0.1", "-client=0.0.0.0",
				"-data-dir=" + s.path("consul"), "-hcl=" + fmt.Sprintf(consulConfig, consulPort)},
		},
		// It leads, and has registered itself.
		ready: func(ctx context.Context) error {
			body, err := get(ctx, s.address(Consul)+"/v1/catalog/nodes?consistent")
			if err == nil && !strings.Contains(body, `"Node"`) {
				err = errors.New("it has no node yet")
			}
			return err
		},
	}
}

func get(ctx context.Context, url string) (body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askRegistry)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s: %s", url, response.Status, text)
	}
	return string(text), err
}

// haproxyConfig lets HAProxy try nothing again, so that it hides no loss.
const haproxyConfig = `global
  stats socket ipv4@0.0.0.0:%d level admin
defaults
  mode http
  retries 0
  timeout connect 2s
  timeout queue 2s
  timeout client 5m
  timeout server 1m
`

// haproxy has a frontend for each story.
func (s *stage) haproxy() (*server, error) {
	text := fmt.Sprintf(haproxyConfig, haproxyPort)
	for _, name := range s.balanced {
		text += fmt.Sprintf("frontend %[1]s\n  bind %[2]s\n  default_backend %[1]s\nbackend %[1]s\n", name, s.front(name))
	}
	file := s.path("haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("configure HAProxy: %w", err)
	}
	return &server{
		spawner: process.NewSpawner(),
		spec: process.Spec{
			Name: string(HAProxy), Path: filepath.Join(s.kit.Programs.HAProxy, "usr/sbin/haproxy"), Args: []string{"-db", "-f", file},
			Env: append([]string{fetch.LibraryPath(s.kit.Programs.HAProxy)}, os.Environ()...), Log: s.path("logs", "haproxy.log"),
		},
		ready: func(ctx context.Context) error {
			conn, err := (&net.Dialer{Timeout: askRegistry}).DialContext(ctx, "tcp", net.JoinHostPort(realnode.NodeAddress, fmt.Sprint(haproxyPort)))
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}, nil
}

// front is where callers of a story find HAProxy.
func (s *stage) front(story string) string {
	return net.JoinHostPort(realnode.NodeAddress, fmt.Sprint(frontPort+slices.Index(s.balanced, story)))
}

// balanced are the names of the stories behind HAProxy.
func balanced(stories []Story) []string {
	var names []string
	for _, story := range stories {
		if story.Registry == HAProxy {
			names = append(names, story.Name)
		}
	}
	return names
}

// address is where Usher finds a registry.
func (s *stage) address(kind Registry) string {
	switch kind {
	case Consul:
		return fmt.Sprintf("http://%s:%d", realnode.NodeAddress, consulPort)
	case HAProxy:
		return fmt.Sprintf("tcp://%s:%d", realnode.NodeAddress, haproxyPort)
	default:
		return fmt.Sprintf("http://%s:%d", realnode.NodeAddress, etcdPort)
	}
}

// source is where the callers of a story find its Pods.
func (s *stage) source(story Story) (traffic.Source, error) {
	switch story.Registry {
	case Etcd:
		return traffic.Etcd{Client: s.etcdClient, Prefix: etcdPrefix, Service: story.Name}, nil
	case Consul:
		return traffic.Consul{Address: s.address(Consul), Service: story.Name}, nil
	case HAProxy:
		return traffic.Balancer{Addr: s.front(story.Name)}, nil
	default:
		return nil, fmt.Errorf("the stage has no registry %q", story.Registry)
	}
}

// KillRegistry kills the registry of the story with SIGKILL. It stays away until
// StartRegistry.
func (s *Scene) KillRegistry() {
	s.Step("kill the registry")
	s.Check(s.stage.registries[s.story.Registry].Kill())
}

// StartRegistry starts it again, with its data.
func (s *Scene) StartRegistry() {
	s.Step("the registry is back")
	s.Check(s.stage.registries[s.story.Registry].Restart(s.ctx))
}

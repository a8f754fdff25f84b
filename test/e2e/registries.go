// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/registries/fetch"
	"github.com/usher-dev/usher/test/traffic"
)

// The ports of the registries on the node. HAProxy's frontends, one per story, start at
// frontPort.
const (
	etcdPort    = 2379
	ownEtcdPort = 2479
	consulPort  = 8500
	proxyPort   = 9999
	frontPort   = 9000

	// registryTime bounds the start of a registry.
	registryTime = time.Minute
)

// uses reports whether a registry is needed.
func uses(stories []Story, kind Registry) bool {
	return slices.ContainsFunc(stories, func(s Story) bool { return s.Registry == kind })
}

// fetchRegistries gets the registry servers that the stories need.
func (k *kit) fetchRegistries(ctx context.Context, stories []Story, tell progress.Sink) (err error) {
	if uses(stories, Consul) {
		tell.Tell(progress.Event{Task: "consul", State: progress.Checking})
		k.Consul, err = fetch.GoProgram(ctx, "consul", filepath.Join(k.Root, "test", "registries", "consul", "server"),
			"github.com/hashicorp/consul", "about ten minutes on two cores")
		if err != nil {
			return err
		}
		tell.Tell(progress.Event{Task: "consul", State: progress.Done, Detail: "built"})
	}
	if uses(stories, HAProxy) {
		tell.Tell(progress.Event{Task: "haproxy", State: progress.Checking})
		if k.HAProxy, err = fetch.DebianProgram(ctx, "haproxy"); err != nil {
			return err
		}
		tell.Tell(progress.Event{Task: "haproxy", State: progress.Done, Detail: "unpacked"})
	}
	return nil
}

// address is where Usher finds a registry.
func address(kind Registry) string {
	scheme := "http"
	if kind == HAProxy {
		scheme = "tcp"
	}
	return scheme + "://" + net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(portOf(kind)))
}

func portOf(kind Registry) int {
	return map[Registry]int{Etcd: etcdPort, OwnEtcd: ownEtcdPort, Consul: consulPort, HAProxy: proxyPort}[kind]
}

// source is where a story's callers find its Pods.
func (s *session) source(story Story) traffic.Source {
	switch story.Registry {
	case Consul:
		return traffic.Consul{Address: address(Consul), Service: story.Name}
	case HAProxy:
		return traffic.Fixed(net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(s.front(story))))
	default:
		return traffic.Etcd{Client: s.etcds[story.Registry].client, Prefix: etcdPrefix, Service: story.Name}
	}
}

// front is the port of a story's frontend.
func (s *session) front(story Story) int {
	return frontPort + slices.IndexFunc(s.stories, func(other Story) bool { return other.Name == story.Name })
}

// startRegistries starts those that the stories need. They listen on the node's
// address, where Pods and callers reach them.
func (s *session) startRegistries(ctx context.Context, tell progress.Sink) error {
	for _, r := range []struct {
		kind  Registry
		start func(context.Context) error
	}{{Etcd, s.startEtcd(Etcd)}, {OwnEtcd, s.startEtcd(OwnEtcd)}, {Consul, s.startConsul}, {HAProxy, s.startHAProxy}} {
		if r.kind != Etcd && !uses(s.stories, r.kind) {
			continue
		}
		task := "registry " + string(r.kind)
		tell.Tell(progress.Event{Task: task, State: progress.Starting})
		if err := r.start(ctx); err != nil {
			tell.Tell(progress.Event{Task: task, State: progress.Failed})
			return fmt.Errorf("the registry %s: %w", r.kind, err)
		}
		tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "ready at " + address(r.kind)})
	}
	return nil
}

func (s *session) startConsul(ctx context.Context) error {
	config, err := json.Marshal(map[string]any{
		"disable_update_check": true,
		"performance":          map[string]any{"raft_multiplier": 1},
		"ports":                map[string]any{"http": consulPort, "dns": -1, "grpc": -1},
	})
	if err != nil {
		return err
	}
	return s.spawn(ctx, process.Spec{
		Name: string(Consul), Path: s.kit.Consul,
		Args: []string{"agent", "-server", "-bootstrap-expect=1", "-node=server", "-bind=" + realnode.NodeAddress,
			"-client=0.0.0.0", "-data-dir=" + s.path("consul"), "-hcl=" + string(config)},
	}, func(ctx context.Context) error {
		return ask(ctx, address(Consul)+"/v1/catalog/nodes?consistent", realnode.NodeAddress)
	})
}

// ask returns nil if a URL's answer contains a text.
func ask(ctx context.Context, url, want string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	text := &strings.Builder{}
	err = errors.Join(response.Write(text), response.Body.Close())
	if err == nil && !strings.Contains(text.String(), want) {
		err = fmt.Errorf("%s answers without %q", url, want)
	}
	return err
}

// haproxyConfig disables HAProxy's retries, which would hide losses, and keeps open the
// connections of callers between requests.
const haproxyConfig = `
global
  stats socket ipv4@0.0.0.0:%d level admin
defaults
  mode http
  retries 0
  timeout connect 2s
  timeout client 10m
  timeout server 30s
  timeout queue 2s
`

func (s *session) startHAProxy(ctx context.Context) error {
	config := fmt.Sprintf(haproxyConfig, proxyPort)
	for _, story := range s.stories {
		if story.Registry == HAProxy {
			config += fmt.Sprintf("frontend %[1]s-callers\n  bind 0.0.0.0:%[2]d\n  default_backend %[1]s\nbackend %[1]s\n", story.Name, s.front(story))
		}
	}
	file := s.path("haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	_, libraries, _ := strings.Cut(fetch.LibraryPath(s.kit.HAProxy), "=")
	return s.spawn(ctx, process.Spec{
		Name: string(HAProxy), Path: filepath.Join(s.kit.HAProxy, "usr/sbin/haproxy"), Args: []string{"-W", "-db", "-f", file},
		Env: append([]string{"LD_LIBRARY_PATH=" + libraries}, os.Environ()...),
	}, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(proxyPort)))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// spawn starts a server that lives as long as the stage.
func (s *session) spawn(ctx context.Context, spec process.Spec, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	spec.Log = s.path("logs", spec.Name+".log")
	p, err := s.spawner.Start(spec)
	if err != nil {
		return err
	}
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return p.ExitError()
		case <-ctx.Done():
			return fmt.Errorf("it is not ready after %s: %w; its log is %s", registryTime, err, spec.Log)
		case <-time.After(lookAgain):
		}
	}
}

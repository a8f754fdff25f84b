// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/template"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// frontPort is the first port of HAProxy's frontends, one per story.
const frontPort = 9000

// ports are the ports of the registries on the node.
var ports = map[Registry]int{Etcd: 2379, OwnEtcd: 2479, Consul: 8500, HAProxy: 9999}

// uses reports whether a registry is needed.
func uses(stories []Story, kind Registry) bool {
	return slices.ContainsFunc(stories, func(s Story) bool { return s.uses(kind) })
}

// address returns the address at which Usher finds a registry.
func address(kind Registry) string {
	scheme := "http"
	if kind == HAProxy {
		scheme = "tcp"
	}
	return scheme + "://" + net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(ports[kind]))
}

// source returns the source from which a story's callers of a registry get its Pods.
func (s *session) source(story Story, kind Registry) traffic.Source {
	switch kind {
	case Consul:
		return traffic.Consul{Address: address(Consul), Service: story.Name}
	case Service, LabelledService:
		return traffic.Service{Client: s.clients, Namespace: story.Name, Name: story.Name}
	case KubeProxy:
		return traffic.Fixed(serviceAddress)
	case HAProxy:
		return traffic.Fixed(net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(s.front(story))))
	default:
		return traffic.Etcd{Client: s.etcds[kind].Client, Prefix: stage.EtcdPrefix, Service: story.Name}
	}
}

// front returns the port of a story's frontend.
func (s *session) front(story Story) int {
	return frontPort + slices.IndexFunc(s.services(), func(other Story) bool { return other.Name == story.Name })
}

// services returns the stories, and those of their other workloads: each has a namespace and a service of its own.
func (s *session) services() (all []Story) {
	all = slices.Clone(s.stories)
	for _, story := range s.stories {
		for _, step := range story.steps {
			if step.verb.Name == "another" {
				all = append(all, story.another(step.about))
			}
		}
	}
	return all
}

// registries returns the registries that the stories need, and etcd.
func (s *session) registries() []Registry {
	others := list.Only([]Registry{OwnEtcd, Consul, HAProxy}, func(kind Registry) bool { return uses(s.stories, kind) })
	return append([]Registry{Etcd}, others...)
}

// startRegistries starts the registries. They listen on the node's address, where Pods
// and callers reach them.
func (s *session) startRegistries(ctx context.Context, _ *stage.Stage) error {
	for _, kind := range s.registries() {
		err := s.Progress.Task("registry "+string(kind), func() (_ string, err error) {
			switch kind {
			case Consul:
				err = s.startConsul(ctx)
			case HAProxy:
				err = s.startHAProxy(ctx)
			default:
				port := ports[kind]
				s.etcds[kind], err = s.StartEtcd(ctx, string(kind), cluster.EtcdOptions{
					Port: port, ExtraArgs: []string{fmt.Sprintf("--listen-client-urls=http://0.0.0.0:%d", port)},
				})
			}
			return "ready at " + address(kind), err
		})
		if err != nil {
			return fmt.Errorf("the registry %s: %w", kind, err)
		}
	}
	return nil
}

func (s *session) startConsul(ctx context.Context) error {
	config, err := json.Marshal(map[string]any{
		"disable_update_check": true,
		"performance":          map[string]any{"raft_multiplier": 1},
		"ports":                map[string]any{"http": ports[Consul], "dns": -1, "grpc": -1},
	})
	if err != nil {
		return err
	}
	return s.serve(ctx, run.Spec{
		Name: string(Consul), Path: s.kit.Consul,
		Ready: func(ctx context.Context) error { return run.ConsulReady(ctx, run.HTTP{Address: address(Consul)}) },
		Args: []string{"agent", "-server", "-bootstrap-expect=1", "-node=server", "-bind=" + realnode.NodeAddress,
			"-client=0.0.0.0", "-data-dir=" + s.Path("consul"), "-hcl=" + string(config)},
	})
}

//go:embed manifests/haproxy.cfg
var haproxyConfig string

func (s *session) startHAProxy(ctx context.Context) error {
	type front struct {
		Story
		Port int
	}
	behind := list.Only(s.services(), func(story Story) bool { return story.uses(HAProxy) })
	fronts := list.Map(behind, func(story Story) front { return front{story, s.front(story)} })
	var config bytes.Buffer
	err := template.Must(template.New("").Parse(haproxyConfig)).Execute(&config, map[string]any{"Port": ports[HAProxy], "Fronts": fronts})
	if err != nil {
		return err
	}
	file := s.Path("haproxy.cfg")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		return err
	}
	return s.serve(ctx, run.Spec{
		Name: string(HAProxy), Path: filepath.Join(s.kit.HAProxy, "usr/sbin/haproxy"), Args: []string{"-W", "-db", "-f", file},
		Env: append(os.Environ(), fetch.LibraryPath(s.kit.HAProxy)),
		Ready: func(ctx context.Context) error {
			return dial(ctx, net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(ports[HAProxy])))
		},
	})
}

// dial returns nil if a server accepts a connection.
func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// serve starts a server that lives as long as the stage.
func (s *session) serve(ctx context.Context, spec run.Spec) error {
	spec.Log = s.Path("logs", spec.Name+".log")
	server, err := run.Start(ctx, spec)
	if err == nil {
		s.AtEnd(func(context.Context) error { return server.Close() })
	}
	return err
}

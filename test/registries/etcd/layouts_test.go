// SPDX-License-Identifier: Apache-2.0

// Package etcd_test runs the kind etcd under callers with the libraries of Kratos, go-zero and Kitex. The suite, and
// gRPC's own resolver, are in test/integration/registries.
package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
)

// framework is a layout, and what its callers see.
type framework struct {
	layout usherv1alpha1.EtcdLayout
	// propagation is how long its callers may take to learn of a change.
	propagation time.Duration
	// shown is what a caller shows of an entry of a weight and of the version v1, and own of one that an application
	// has registered.
	shown func(weight int) string
	own   registry.Entry
}

// kitexInterval is how often Kitex's balancer reads a list.
const kitexInterval = 5 * time.Second

var frameworks = []framework{
	{
		layout: usherv1alpha1.LayoutKratos, propagation: time.Second, own: registry.Entry{Weight: 100},
		shown: func(weight int) string { return fmt.Sprintf("%dv1", weight) },
	},
	{
		layout: usherv1alpha1.LayoutGoZero, propagation: time.Second, own: registry.Entry{Weight: 1},
		shown: func(int) string { return "" },
	},
	{
		layout: usherv1alpha1.LayoutKitex, propagation: kitexInterval + time.Second, own: registry.Entry{Weight: 7},
		shown: func(weight int) string { return strconv.Itoa(weight) },
	},
}

// TestTraffic rolls instances under a caller with each framework's own library. Requests are HTTP: the test is about
// which instances get them.
func TestTraffic(t *testing.T) {
	server := clustertest.StartEtcd(t)
	for _, f := range frameworks {
		t.Run(string(f.layout), func(t *testing.T) {
			rollout := registrytest.Rollout{
				Connector: connect(t, server, f.layout), Service: "shop.rpc", Propagation: f.propagation,
			}
			rollout.Run(t, func(t *testing.T) func() []string {
				c := start(t, server, f.layout, "shop.rpc", "")
				return func() []string {
					return list.Map(c.knows(), func(i string) string {
						address, _, _ := strings.Cut(i, "|")
						return address
					})
				}
			})
		})
	}
}

// TestChanges changes an entry's weight, which is part of its key in go-zero's layout: a caller sees one entry all the
// time.
func TestChanges(t *testing.T) {
	server := clustertest.StartEtcd(t)
	for _, f := range frameworks {
		t.Run(string(f.layout), func(t *testing.T) {
			r := connect(t, server, f.layout)
			e := registrytest.Entry("a")
			e.Metadata = map[string]string{"version": "v1"}
			registrytest.Put(t, r, e)
			c := start(t, server, f.layout, "web", "")
			c.await(t, "10.0.0.1:8080|"+f.shown(10))
			e.Weight = 20
			registrytest.Put(t, r, e)
			c.await(t, "10.0.0.1:8080|"+f.shown(20))
			// Another entry comes after all that the caller learns of the change.
			other := registrytest.Entry("b")
			other.Address = "10.0.0.2"
			registrytest.Put(t, r, other)
			registrytest.Until(t, "the caller knows two", func() bool { return len(c.knows()) == 2 })
			if c.gaps.Load() > 0 {
				t.Errorf("%d times the caller knew no instance in between", c.gaps.Load())
			}
		})
	}
}

// TestRegisteredByApplication lists what each framework's own library has registered, and leaves it alone.
func TestRegisteredByApplication(t *testing.T) {
	server := clustertest.StartEtcd(t)
	for _, f := range frameworks {
		t.Run(string(f.layout), func(t *testing.T) {
			r := connect(t, server, f.layout)
			c := start(t, server, f.layout, "web", "192.0.2.1:9000")
			registrytest.Until(t, "the caller knows it", func() bool { return len(c.knows()) == 1 })
			e := registrytest.Only(t, r)
			want := f.own
			want.ID, want.Address, want.Port = e.ID, "192.0.2.1", 9000
			if !e.Same(want) {
				t.Errorf("the entry is %+v, want %+v", e, want)
			}
			mine := registrytest.Entry(e.ID)
			registrytest.CheckRefused(t, "another's entry", registrytest.TryPut(t, r, mine), e.ID, registry.ErrForeign)
		})
	}
}

// connect connects to where callers look by default.
func connect(t *testing.T, server *cluster.Etcd, layout usherv1alpha1.EtcdLayout) registry.Connector {
	t.Helper()
	settings := etcd.FromSpec(nil)(&usherv1alpha1.EtcdRegistry{Endpoints: []string{server.Endpoint()}, Layout: layout})
	return registrytest.Connect(settings.Connect(settings.Root, nil))(t)
}

// program builds the caller once.
var program = sync.OnceValues(func() (string, error) {
	folder, err := fetch.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "etcd-caller")
	_, err = fetch.Run(context.Background(), "caller", "go", "build", "-mod=readonly", "-buildvcs=false", "-o", path, ".")
	return path, err
})

// caller is a process of that program.
type caller struct {
	known atomic.Pointer[[]string]
	// gaps counts how often it knew no instance after it had known one.
	gaps atomic.Int64
}

// knows returns what it knows: the address of each instance, and more after a bar.
func (c *caller) knows() []string { return *c.known.Load() }

// await waits until it knows exactly that instance.
func (c *caller) await(t *testing.T, want string) {
	t.Helper()
	registrytest.Eventually(t, "a caller's instances", func() string {
		have := c.knows()
		return registrytest.Unless(slices.Equal(have, []string{want}), fmt.Sprintf("they are %v, want %s", have, want))
	})
}

// read reads its lines.
func (c *caller) read(from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "instances"); ok {
			instances := strings.Fields(text)
			if len(instances) == 0 && len(c.knows()) > 0 {
				c.gaps.Add(1)
			}
			c.known.Store(&instances)
		}
	}
}

// start starts the program of the directory caller. With an address it registers that first.
func start(t *testing.T, server *cluster.Etcd, layout usherv1alpha1.EtcdLayout, service, address string) *caller {
	t.Helper()
	path := servers.Fetch(t, func(context.Context) (string, error) { return program() })
	endpoint := strings.TrimPrefix(server.Endpoint(), "http://")
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, string(layout), endpoint, service, address)
	stdin := checktest.Must(cmd.StdinPipe())(t)
	stdout := checktest.Must(cmd.StdoutPipe())(t)
	complaints := &strings.Builder{}
	cmd.Stderr = complaints
	checktest.NoError(t, cmd.Start())
	c := &caller{}
	c.known.Store(&[]string{})
	var reader sync.WaitGroup
	reader.Go(func() { c.read(stdout) })
	t.Cleanup(func() {
		_ = stdin.Close()
		reader.Wait()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the caller ended: %v\n%s", err, complaints)
		}
	})
	return c
}

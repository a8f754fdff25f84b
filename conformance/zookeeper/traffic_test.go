// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"bufio"
	"context"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/conformance/internal/servers"
	"github.com/usher-dev/usher/conformance/internal/traffic"
	"github.com/usher-dev/usher/internal/registry"
	"github.com/usher-dev/usher/internal/registry/zookeeper"
)

// curator runs a caller with Curator's own library, and returns the instances
// that it knows, each as address|payload.
func (s *server) curator(t *testing.T, service, payload string) func() []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTime)
	t.Cleanup(cancel)
	jars, err := servers.Maven(ctx, "curator", "curator")
	if err != nil {
		t.Fatal(err)
	}
	// It outlives the test's context, in order to end by itself.
	running, kill := context.WithTimeout(context.WithoutCancel(t.Context()), fetchTime)
	t.Cleanup(kill)
	cmd := exec.CommandContext(running, java(t), "-Xmx128m", "-cp", jars+"/*",
		"curator/Consumer.java", s.address, "/services", service, payload)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	complaints := &strings.Builder{}
	cmd.Stderr = complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var known atomic.Pointer[[]string]
	known.Store(&[]string{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "instances"); ok {
				instances := strings.Fields(text)
				known.Store(&instances)
			}
		}
	})
	t.Cleanup(func() {
		_ = stdin.Close()
		reader.Wait()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the caller ended: %v\n%s", err, complaints)
		}
	})
	return func() []string { return *known.Load() }
}

// addresses leaves the payloads out.
func addresses(instances func() []string) func() []string {
	return func() []string {
		var all []string
		for _, i := range instances() {
			address, _, _ := strings.Cut(i, "|")
			all = append(all, address)
		}
		return all
	}
}

// TestCuratorTraffic rolls instances under a caller that uses Curator's
// ServiceCache.
func TestCuratorTraffic(t *testing.T) {
	s := start(t)
	service := traffic.Service{
		Connector: s.connect(t, zookeeper.Options{Layout: zookeeper.Curator}), Name: "web", Propagation: time.Second,
	}
	traffic.Roll(t, service, func(t *testing.T) func() []string {
		return addresses(s.curator(t, "web", "java.lang.Void"))
	})
}

// TestCuratorPayload reads metadata as the payload.
func TestCuratorPayload(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator})
	for class, want := range map[string]struct {
		metadata map[string]string
		says     string
	}{
		"java.lang.Void": {nil, "10.0.0.1:8080|null"},
		"java.util.Map":  {map[string]string{"zone": "a"}, "10.0.0.1:8080|{zone=a}"},
	} {
		e := instance("a")
		e.Metadata = want.metadata
		if have := list(t, r); len(have) == 1 {
			e.Version = have[0].Version
		}
		apply(t, r, registry.Put, e)
		instances := s.curator(t, "web", class)
		end := time.Now().Add(patience)
		for len(instances()) == 0 && time.Now().Before(end) {
			<-time.After(20 * time.Millisecond)
		}
		if have := instances(); len(have) != 1 || have[0] != want.says {
			t.Errorf("a caller with payloads of %s knows %v, want %s", class, have, want.says)
		}
	}
}

// TestDubboTraffic rolls instances under a reader that follows Dubbo's layout
// with a watch: Dubbo's own consumer is not run.
func TestDubboTraffic(t *testing.T) {
	s := start(t)
	service := traffic.Service{
		Connector: s.connect(t, zookeeper.Options{Layout: zookeeper.Dubbo}), Name: "org.example.Web",
		Propagation: time.Second, Metadata: map[string]string{"version": "1.0.0"},
	}
	traffic.Roll(t, service, func(t *testing.T) func() []string {
		var known atomic.Pointer[[]string]
		known.Store(&[]string{})
		conn := s.raw(t)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				names, _, changed, err := conn.ChildrenW("/dubbo/org.example.Web/providers")
				if err != nil {
					return // The test closes the connection.
				}
				found := providers(names)
				known.Store(&found)
				if e := <-changed; e.Err != nil {
					return
				}
			}
		}()
		t.Cleanup(func() { conn.Close(); <-ended })
		return func() []string { return *known.Load() }
	})
}

// providers are the addresses in the names of nodes.
func providers(names []string) []string {
	var all []string
	for _, name := range names {
		if plain, err := url.QueryUnescape(name); err == nil {
			if provider, err := url.Parse(plain); err == nil {
				all = append(all, provider.Host)
			}
		}
	}
	return all
}

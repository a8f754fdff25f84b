// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/zookeeper"
	"github.com/usher-dev/usher/test/registries/fetch"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

// dubboDelay is how long Dubbo's client may hold back news once several changes have
// arrived.
const dubboDelay = 5 * time.Second

// caller runs the directory's Consumer.java, which finds instances with the library in
// the directory's pom.xml, and returns what it knows: the address of each instance, and
// more after a bar.
func caller(t *testing.T, folder string, args ...string) func() []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTime)
	defer cancel()
	jars, err := fetch.Maven(ctx, folder, folder)
	if err != nil {
		t.Fatal(err)
	}
	// It outlives the test's context, in order to end by itself.
	running, kill := context.WithTimeout(context.WithoutCancel(t.Context()), fetchTime)
	t.Cleanup(kill)
	command := append([]string{"-Xmx128m", "-cp", jars + "/*", folder + "/Consumer.java"}, args...)
	cmd := exec.CommandContext(running, java(t), command...)
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

// addresses drops what follows the bar.
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
		return addresses(caller(t, "curator", s.address, "/services", "web", "java.lang.Void"))
	})
}

// TestDubboTraffic rolls instances under a caller that uses Dubbo's own ZooKeeper
// client. Requests are HTTP: the test is about which instances are asked.
func TestDubboTraffic(t *testing.T) {
	s := start(t)
	service := traffic.Service{
		Connector: s.connect(t, zookeeper.Options{Layout: zookeeper.Dubbo}), Name: "org.example.Web",
		Propagation: dubboDelay + time.Second, Metadata: map[string]string{"version": "1.0.0"},
	}
	traffic.Roll(t, service, func(t *testing.T) func() []string {
		return addresses(caller(t, "dubbo", s.address, "org.example.Web", "1.0.0"))
	})
}

// TestPayload reads metadata as Curator's payload.
func TestPayload(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator})
	for class, want := range map[string]struct {
		metadata map[string]string
		says     string
	}{
		"java.lang.Void": {nil, "10.0.0.1:8080|null"},
		"java.util.Map":  {map[string]string{"zone": "a"}, "10.0.0.1:8080|{zone=a}"},
		// The key @class chooses the class, as in Curator's own payloads.
		"java.util.TreeMap": {map[string]string{"@class": "java.util.TreeMap", "zone": "a"}, "10.0.0.1:8080|{zone=a}"},
	} {
		e := try.Instance("a")
		e.Metadata = want.metadata
		if have := try.List(t, r); len(have) == 1 {
			e.Version = have[0].Version
		}
		try.Apply(t, r, registry.Put, e)
		knows(t, caller(t, "curator", s.address, "/services", "web", class), want.says)
	}
}

// TestDubboWeight changes the weight of a provider: a caller always sees exactly one
// version of it.
func TestDubboWeight(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Dubbo})
	e := try.Instance("a")
	e.Metadata = map[string]string{"version": "1.0.0"}
	try.Apply(t, r, registry.Put, e)
	instances := caller(t, "dubbo", s.address, "web", "1.0.0")
	knows(t, instances, "10.0.0.1:8080|10")
	e.Version, e.Weight = try.List(t, r)[0].Version, 20
	try.Apply(t, r, registry.Put, e)
	knows(t, instances, "10.0.0.1:8080|20")
}

// knows waits until the caller knows exactly that instance.
func knows(t *testing.T, instances func() []string, want string) {
	t.Helper()
	for ctx := try.Bounded(t); ; {
		have := instances()
		if len(have) == 1 && have[0] == want {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("a caller knows %v, want %s", have, want)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

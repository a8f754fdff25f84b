// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Service is how the instances of Roll are registered.
type Service struct {
	Connector registry.Connector
	Name      string
	// Propagation is how long callers may take to learn of a change.
	Propagation time.Duration
	// Metadata is what every entry has.
	Metadata map[string]string
}

// Roll replaces each of three instances under traffic, as a rollout does: it is removed
// from the registry, the propagation time passes, it ends, and another one joins. No
// request may be lost. Then an instance ends that is still listed: requests must be
// lost, or the traffic would prove nothing.
//
// consumer is called when three instances are listed; it returns what a caller sees at
// the moment of each request.
func Roll(t *testing.T, s Service, consumer func(t *testing.T) func() []string) {
	t.Helper()
	var instances []*Instance
	for n := range 3 {
		instances = append(instances, s.join(t, fmt.Sprintf("first-%d", n)))
	}
	addresses := consumer(t)
	AwaitCount(t, "three instances", 3, func() int64 { return int64(len(addresses())) })
	// With a new connection each, a client retries nothing, which would hide a lost
	// request.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	callers := Call(t, Load{Callers: 4, Pause: 5 * time.Millisecond, Client: client, Where: inTurn(addresses)})
	for n, old := range instances {
		AwaitCount(t, "requests to "+old.Entry.ID, 1, old.Served)
		instances[n] = s.join(t, fmt.Sprintf("second-%d", n))
		AwaitCount(t, "requests to "+instances[n].Entry.ID, 1, instances[n].Served)
		s.leave(t, old)
	}
	if losses := callers.Losses(); len(losses) > 0 {
		t.Errorf("%d requests were lost beside %d answers: %.5s", len(losses), callers.Answers(), losses)
	}
	t.Logf("%d answers while each of three instances was replaced", callers.Answers())
	instances[0].Kill()
	AwaitCount(t, "a lost request", 1, func() int64 { return int64(len(callers.Losses())) })
}

func (s Service) join(t *testing.T, name string) *Instance {
	t.Helper()
	i := Start(t, name)
	i.Entry.Metadata = s.Metadata
	if Find(Change(t, s.Connector, s.Name, registry.Put, i.Entry), i.Entry.ID) == nil {
		t.Fatalf("%s is not listed", i.Entry.ID)
	}
	return i
}

func (s Service) leave(t *testing.T, i *Instance) {
	t.Helper()
	if Find(Change(t, s.Connector, s.Name, registry.Remove, i.Entry), i.Entry.ID) != nil {
		t.Fatalf("%s is still listed", i.Entry.ID)
	}
	// This delay is under test; it does not wait for a condition.
	<-time.After(s.Propagation)
	i.Kill()
}

// inTurn sends requests to the addresses, each a host and port, one after another.
func inTurn(addresses func() []string) func(context.Context) (string, error) {
	var turn atomic.Int64
	return func(context.Context) (string, error) {
		known := addresses()
		if len(known) == 0 {
			return "", errors.New("the registry lists no instance")
		}
		return "http://" + known[int(turn.Add(1))%len(known)] + "/", nil
	}
}

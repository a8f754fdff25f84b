// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/conformance"
)

// Followed is a connector that only lists, with its server and whoever writes there.
type Followed struct {
	Connector registry.Connector
	// Write has the writer register an address in the service, Serve has it get requests, Leave has it leave, and
	// End ends that. Serve and End are nil if the server knows no such steps.
	Write, Serve, Leave, End func(t *testing.T, service, address string, port int32)
	// Break stops the server. Mend restores it with its entries.
	Break func() error
	Mend  func(ctx context.Context) error
	// Throttle has the server refuse calls that come too fast, or not any more; nil if it never does.
	Throttle func(on bool)
}

// RunFollower runs the part of the suite for connectors that only list. For each test, connect returns a connector to a
// server of its own where the service "web" exists and is empty.
func RunFollower(t *testing.T, connect func(t *testing.T) Followed) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Followed)
	}{
		{"an empty service is an empty list", followsNothing},
		{"an address comes, serves and goes", followsAnAddress},
		{"addresses do not hide each other", followsMany},
		{"it writes nothing", followerWritesNothing},
		{"down is transient, and it recovers by itself", followsWhatIsDown},
		{"many calls are answered, or refused for now", followsInTurn},
		{"a cancelled context ends a call", followsNobody},
		{"ping", func(t *testing.T, f Followed) { checktest.NoError(t, f.Connector.Ping(Bounded(t))) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := connect(t)
			t.Cleanup(func() { checktest.NoError(t, f.Connector.Close()) })
			f.Connector = conformance.Timely(f.Connector, callTimeout)
			test.run(t, f)
		})
	}
}

// use is what callers have of an address: they get it, they may, or they do not.
func use(entries []registry.Entry, address string) string {
	found := "absent"
	for _, e := range entries {
		switch {
		case e.Address != address:
		case e.Weight > 0 && e.Unsettled == "":
			return "serves"
		case e.Unsettled != "":
			found = "between"
		case e.Hidden != "":
			found = "unused"
		}
	}
	return found
}

// becomes lists until callers have followedAddress in one of the ways.
func becomes(t *testing.T, f Followed, want ...string) {
	t.Helper()
	ctx := Bounded(t)
	for {
		have := use(checktest.Must(f.Connector.List(ctx, service))(t), followedAddress)
		for _, one := range want {
			if have == one {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is %s, want %v", followedAddress, have, want)
		case <-time.After(20 * time.Millisecond): // the server may need a moment
		}
	}
}

// followedAddress and followedPort are those of the target that the tests look at.
const (
	followedAddress = "10.0.0.1"
	followedPort    = 8080
)

func followsNothing(t *testing.T, f Followed) {
	listed := List(t, f.Connector)
	if listed == nil {
		t.Error("the list is nil: an empty one is an answer, too")
	}
	CheckNone(t, "an empty service", listed)
}

func followsAnAddress(t *testing.T, f Followed) {
	const address = followedAddress
	f.Write(t, service, address, followedPort)
	if f.Serve != nil {
		becomes(t, f, "between")
		f.Serve(t, service, address, followedPort)
	}
	becomes(t, f, "serves")
	e := Only(t, f.Connector)
	if e.Port != followedPort || e.Owner != (registry.Owner{}) || !e.NoMetadata || e.Version == "" {
		t.Errorf("the entry is %+v: want the port %d, no owner, no metadata, and a version", e, followedPort)
	}
	f.Leave(t, service, address, followedPort)
	if f.End != nil {
		becomes(t, f, "between")
		if left := Only(t, f.Connector); left.Version == e.Version {
			t.Errorf("the entry has changed, and its version %s has not", e.Version)
		}
		f.End(t, service, address, followedPort)
	}
	becomes(t, f, "absent", "unused")
}

func followsMany(t *testing.T, f Followed) {
	for n := range 60 {
		f.Write(t, service, fmt.Sprint("10.0.1.", n+1), followedPort)
	}
	f.Leave(t, service, "10.0.1.7", followedPort)
	if listed := List(t, f.Connector); len(listed) < 59 {
		t.Errorf("%d addresses are listed, want 59 at least", len(listed))
	}
	for i, all := 1, List(t, f.Connector); i < len(all); i++ {
		if all[i-1].ID >= all[i].ID {
			t.Errorf("%s comes before %s", all[i-1].ID, all[i].ID)
		}
	}
}

func followerWritesNothing(t *testing.T, f Followed) {
	f.Write(t, service, followedAddress, followedPort)
	before := List(t, f.Connector)
	checktest.NoError(t, f.Connector.Apply(Bounded(t), service, nil))
	err := f.Connector.Apply(Bounded(t), service, []registry.Change{{Op: registry.Remove, Entry: before[0]}})
	Check(t, "a change", err, registry.ErrPermanent, "reads")
	checktest.Same(t, "the list after a change that was refused", len(before), len(List(t, f.Connector)))
}

func followsWhatIsDown(t *testing.T, f Followed) {
	f.Write(t, service, followedAddress, followedPort)
	checktest.NoError(t, f.Break())
	_, err := f.Connector.List(Bounded(t), service)
	Check(t, "a list while it is down", err, registry.ErrTransient)
	Check(t, "a ping while it is down", f.Connector.Ping(Bounded(t)), registry.ErrTransient)
	checktest.NoError(t, f.Mend(Bounded(t)))
	becomes(t, f, "serves", "between")
}

func followsInTurn(t *testing.T, f Followed) {
	if f.Throttle == nil {
		for range 20 {
			checktest.Must(f.Connector.List(Bounded(t), service))(t)
		}
		return
	}
	f.Throttle(true)
	_, err := f.Connector.List(Bounded(t), service)
	Check(t, "a list in a crowd", err, registry.ErrTransient)
	f.Throttle(false)
	checktest.Must(f.Connector.List(Bounded(t), service))(t)
}

func followsNobody(t *testing.T, f Followed) {
	ctx, cancel := context.WithCancel(Bounded(t))
	cancel()
	_, err := f.Connector.List(ctx, service)
	Check(t, "a list that nobody waits for", err, registry.ErrTransient)
	Check(t, "its cause", err, context.Canceled)
}

// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/zookeeper"
	"github.com/usher-dev/usher/test/registries/internal/hung"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

func TestConformance(t *testing.T) {
	s := start(t)
	admin := s.raw(t)
	seeds := map[zookeeper.Layout]func(t *testing.T, service, id string){
		zookeeper.Curator: func(t *testing.T, service, id string) {
			create(t, admin, "/services/"+service+"/"+id, `{"name":"web","id":"theirs","address":"192.0.2.1","port":1}`, open())
		},
		zookeeper.Dubbo: func(t *testing.T, service, id string) {
			create(t, admin, "/dubbo/"+service+"/providers/"+id, "192.0.2.1", open())
		},
	}
	for layout, seed := range seeds {
		t.Run(string(layout), func(t *testing.T) {
			registrytest.Run(t, func(t *testing.T) registrytest.Subject {
				empty(t, admin, "/"+zookeeper.DefaultPath(layout))
				return registrytest.Subject{
					Connector: s.connect(t, zookeeper.Options{Layout: layout}),
					Seed:      seed,
					Break:     s.Break,
					Mend:      s.Mend,
				}
			})
		})
	}
}

// TestEntriesOutliveTheirWriter closes the session that wrote an entry.
func TestEntriesOutliveTheirWriter(t *testing.T) {
	s := start(t)
	writer := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator})
	try.Apply(t, writer, registry.Put, try.Instance("a"))
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	_, stat, err := s.raw(t).Get("/services/web/a")
	if err != nil || stat.EphemeralOwner != 0 {
		t.Errorf("the node is %+v, %v; want a persistent one", stat, err)
	}
	if err := writer.Ping(try.Bounded(t)); !errors.Is(err, registry.ErrTransient) {
		t.Errorf("a closed connector: %v", err)
	}
}

// TestDisabledByCurator reports an instance that Curator's callers skip.
func TestDisabledByCurator(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator})
	want := try.Instance("a")
	try.Apply(t, r, registry.Put, want)
	admin := s.raw(t)
	data, stat, err := admin.Get("/services/web/a")
	if err != nil {
		t.Fatal(err)
	}
	off := strings.Replace(string(data), `"enabled":true`, `"enabled":false`, 1)
	if _, err := admin.Set("/services/web/a", []byte(off), stat.Version); err != nil {
		t.Fatal(err)
	}
	have := try.List(t, r)[0]
	if have.Weight != 0 {
		t.Errorf("a disabled instance is listed as %+v", have)
	}
	want.Version = have.Version
	try.Apply(t, r, registry.Put, want)
	if have := try.List(t, r)[0]; !have.Same(want) {
		t.Errorf("it was not repaired: %+v", have)
	}
}

// TestDubboNames reads the names as Dubbo does, and keeps one of them when the weight
// changes.
func TestDubboNames(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Dubbo})
	e := try.Instance("a")
	e.Metadata = map[string]string{"version": "1.0.0", "protocol": "tri"}
	names := func() []string {
		t.Helper()
		escaped, _, err := s.raw(t).Children("/dubbo/web/providers")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, name := range escaped {
			plain, err := url.QueryUnescape(name)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, plain)
		}
		return names
	}
	try.Apply(t, r, registry.Put, e)
	want := "tri://10.0.0.1:8080/web?interface=web&protocol=tri&side=provider&usher=a&version=1.0.0&weight=10"
	if have := names(); !slices.Equal(have, []string{want}) {
		t.Errorf("the providers are %v, want %s", have, want)
	}
	e.Version, e.Weight = try.List(t, r)[0].Version, 20
	try.Apply(t, r, registry.Put, e)
	if have := names(); !slices.Equal(have, []string{strings.Replace(want, "=10", "=20", 1)}) {
		t.Errorf("after the change of weight the providers are %v", have)
	}
	// A provider that registered itself under the same URL is not ours to take over.
	self := try.Instance("b")
	self.Address = "10.0.0.2"
	create(t, s.raw(t), "/dubbo/web/providers/"+url.QueryEscape(
		"dubbo://10.0.0.2:8080/web?interface=web&side=provider&usher=b&weight=10&zone=a"), "10.0.0.2", open())
	err := r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: self}})
	if byID, rest := registry.ChangeErrors(err); rest != nil || !errors.Is(byID["b"], registry.ErrForeign) {
		t.Errorf("a node of others: %v, want a foreign entry", err)
	}
}

// TestDigest uses a root that only usher may write.
func TestDigest(t *testing.T) {
	s := start(t)
	acl := append(zk.DigestACL(zk.PermAll, "usher", "right"), zk.WorldACL(zk.PermRead)...)
	create(t, s.raw(t), "/services", "", acl)
	secret := func(user, password string) map[string][]byte {
		return map[string][]byte{zookeeper.KeyUsername: []byte(user), zookeeper.KeyPassword: []byte(password)}
	}
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   error
	}{
		"right": {secret("usher", "right"), nil}, "wrong": {secret("usher", "wr0ng"), registry.ErrPermanent},
		"none": {nil, registry.ErrPermanent},
	} {
		r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator, Secret: test.secret})
		err := r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: try.Instance(name)}})
		if !errors.Is(err, test.want) || err != nil && strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("%s: apply: %v, want %v", name, err, test.want)
		}
		if _, err := r.List(try.Bounded(t), "web"); err != nil {
			t.Errorf("%s: everybody may read: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
	admin := s.raw(t)
	if err := admin.AddAuth("digest", []byte("usher:right")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/services/web", "/services/web/right"} {
		if have, _, err := admin.GetACL(path); err != nil || !slices.Equal(have, acl) {
			t.Errorf("the ACL of %s is %v, %v; want that of the root, %v", path, have, err, acl)
		}
	}
}

// TestMaskedACL writes where we may not read who owns the folder.
func TestMaskedACL(t *testing.T) {
	s := start(t)
	const permissions = zk.PermRead | zk.PermWrite | zk.PermCreate | zk.PermDelete
	create(t, s.raw(t), "/services", "", slices.Concat(zk.DigestACL(zk.PermAll, "boss", "secret"),
		zk.DigestACL(permissions, "usher", "right"), zk.WorldACL(zk.PermRead)))
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator, Secret: map[string][]byte{
		zookeeper.KeyUsername: []byte("usher"), zookeeper.KeyPassword: []byte("right")}})
	want := try.Instance("a")
	try.Apply(t, r, registry.Put, want)
	want.Version, want.Weight = try.List(t, r)[0].Version, 20
	try.Apply(t, r, registry.Put, want)
	want.Version = try.List(t, r)[0].Version
	try.Apply(t, r, registry.Remove, want)
	if have := try.List(t, r); len(have) != 0 {
		t.Errorf("listed: %+v", have)
	}
}

// TestUnreadable never treats an unreadable list as an empty one.
func TestUnreadable(t *testing.T) {
	s := start(t)
	create(t, s.raw(t), "/services", "", zk.DigestACL(zk.PermAll, "other", "secret"))
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator})
	if err := r.Ping(try.Bounded(t)); !errors.Is(err, registry.ErrPermanent) {
		t.Errorf("ping: %v, want a permanent error", err)
	}
	if _, err := r.List(try.Bounded(t), "web"); err != nil {
		t.Errorf("a service that is not there: %v", err)
	}
}

// TestFolderThatVanishes writes where Curator's container was deleted with its last
// instance, before the write or between list and write.
func TestFolderThatVanishes(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Curator})
	admin := s.raw(t)
	for _, id := range []string{"a", "b"} {
		try.Apply(t, r, registry.Put, try.Instance(id))
		if have := try.List(t, r); len(have) != 1 || have[0].ID != id {
			t.Errorf("listed: %+v", have)
		}
		empty(t, admin, "/services")
	}
	if have := try.List(t, r); len(have) != 0 {
		t.Errorf("listed without a folder: %+v", have)
	}
}

// TestHung suspends the server's process for a while.
func TestHung(t *testing.T) {
	s := start(t)
	hung.Test(t, s.Process, s.connect(t, zookeeper.Options{Layout: zookeeper.Curator}),
		registry.Change{Op: registry.Put, Entry: try.Instance("a")})
}

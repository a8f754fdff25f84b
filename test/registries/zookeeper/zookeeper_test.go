// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/zookeeper"
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
			registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
				empty(t, admin, "/"+zookeeper.DefaultPath(layout))
				return registrytest.Fixture{
					Connector: s.connect(t, zookeeper.Options{Layout: layout}),
					Seed:      seed,
					Break:     s.Kill, Mend: s.Restart, Hang: s.Hang, Resume: s.Resume,
				}
			})
		})
	}
}

// TestEntriesOutliveTheirWriter closes the session that wrote an entry.
func TestEntriesOutliveTheirWriter(t *testing.T) {
	s := start(t)
	writer := s.curator(t)
	registrytest.Put(t, writer, registrytest.Entry("a"))
	registrytest.NoError(t, writer.Close())
	_, stat, err := s.raw(t).Get("/services/web/a")
	if err != nil || stat.EphemeralOwner != 0 {
		t.Errorf("the node is %+v, %v; want a persistent one", stat, err)
	}
	registrytest.Check(t, "a closed connector", writer.Ping(registrytest.Bounded(t)), registry.ErrTransient)
}

// TestDisabledByCurator reports an instance that Curator's callers skip.
func TestDisabledByCurator(t *testing.T) {
	s := start(t)
	r := s.curator(t)
	want := registrytest.Entry("a")
	registrytest.Put(t, r, want)
	admin := s.raw(t)
	data, stat, err := admin.Get("/services/web/a")
	registrytest.NoError(t, err)
	off := strings.Replace(string(data), `"enabled":true`, `"enabled":false`, 1)
	if _, err := admin.Set("/services/web/a", []byte(off), stat.Version); err != nil {
		t.Fatal(err)
	}
	if have := registrytest.Only(t, r); have.Weight != 0 {
		t.Errorf("a disabled instance is listed as %+v", have)
	}
	if have := registrytest.Put(t, r, want)[0]; !have.Same(want) {
		t.Errorf("it was not repaired: %+v", have)
	}
}

// TestDubboNames reads the names as Dubbo does, and keeps one of them when the weight
// changes.
func TestDubboNames(t *testing.T) {
	s := start(t)
	r := s.connect(t, zookeeper.Options{Layout: zookeeper.Dubbo})
	e := registrytest.Entry("a")
	e.Metadata = map[string]string{"version": "1.0.0", "protocol": "tri"}
	provider := "tri://10.0.0.1:8080/web?interface=web&protocol=tri&side=provider&usher=a&version=1.0.0&weight=%d"
	for _, weight := range []int32{10, 20} {
		e.Weight = weight
		registrytest.Put(t, r, e)
		escaped, _, err := s.raw(t).Children("/dubbo/web/providers")
		registrytest.NoError(t, err)
		if want := url.QueryEscape(fmt.Sprintf(provider, weight)); !slices.Equal(escaped, []string{want}) {
			t.Errorf("the providers are %v, want %s", escaped, want)
		}
	}
	// A provider that registered itself under the same URL is not ours to take over.
	self := registrytest.Entry("b")
	self.Address = "10.0.0.2"
	create(t, s.raw(t), "/dubbo/web/providers/"+url.QueryEscape(
		"dubbo://10.0.0.2:8080/web?interface=web&side=provider&usher=b&weight=10&zone=a"), "10.0.0.2", open())
	registrytest.CheckRefused(t, "another's node", registrytest.TryPut(t, r, self), "b", registry.ErrForeign)
}

// TestDigest uses a root that only usher may write.
func TestDigest(t *testing.T) {
	s := start(t)
	acl := append(zk.DigestACL(zk.PermAll, "usher", "right"), zk.WorldACL(zk.PermRead)...)
	create(t, s.raw(t), "/services", "", acl)
	for name, test := range map[string]struct {
		login []string
		want  error
	}{
		"right": {[]string{"usher", "right"}, nil},
		"wrong": {[]string{"usher", registrytest.Secret}, registry.ErrPermanent},
		"none":  {nil, registry.ErrPermanent},
	} {
		r := s.curator(t, test.login...)
		registrytest.Check(t, name+": apply", registrytest.TryPut(t, r, registrytest.Entry(name)), test.want)
		registrytest.List(t, r) // Everybody may read.
	}
	admin := s.raw(t)
	registrytest.NoError(t, admin.AddAuth("digest", []byte("usher:right")))
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
	r := s.curator(t, "usher", "right")
	e := registrytest.Entry("a")
	registrytest.Put(t, r, e)
	e.Weight = 20
	registrytest.Put(t, r, e)
	if have := registrytest.Remove(t, r, e); len(have) != 0 {
		t.Errorf("listed: %+v", have)
	}
}

// TestUnreadable never treats an unreadable list as an empty one.
func TestUnreadable(t *testing.T) {
	s := start(t)
	create(t, s.raw(t), "/services", "", zk.DigestACL(zk.PermAll, "other", "secret"))
	r := s.curator(t)
	registrytest.Check(t, "ping", r.Ping(registrytest.Bounded(t)), registry.ErrPermanent)
	registrytest.List(t, r) // There is no such service.
}

// TestFolderThatVanishes writes where Curator's container was deleted with its last
// instance, before the write or between list and write.
func TestFolderThatVanishes(t *testing.T) {
	s := start(t)
	r := s.curator(t)
	admin := s.raw(t)
	for _, id := range []string{"a", "b"} {
		registrytest.NoError(t, registrytest.TryPut(t, r, registrytest.Entry(id)))
		if have := registrytest.Only(t, r); have.ID != id {
			t.Errorf("listed: %+v", have)
		}
		empty(t, admin, "/services")
	}
	if have := registrytest.List(t, r); len(have) != 0 {
		t.Errorf("listed without a folder: %+v", have)
	}
}

// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func entry() registry.Entry { return registrytest.Entry("demo.web-1.0a") }

func TestRoundTrip(t *testing.T) {
	plain, six, odd := entry(), entry(), entry()
	plain.Metadata = nil
	six.Address = "fd00::1"
	odd.Metadata = map[string]string{"protocol": "tri", "methods": "a,b", "note": "x = 100% + ä/?", "empty": ""}
	for name, l := range map[string]layout{"Curator": curator{}, "Dubbo": dubbo{}} {
		for _, want := range []registry.Entry{entry(), plain, six, odd} {
			node, data, err := l.encode("org.example.Web", want)
			checktest.NoError(t, err)
			if strings.Contains(node, "/") {
				t.Errorf("%s: the node's name %q has a slash", name, node)
			}
			checktest.Same(t, name, want, l.decode(node, data))
		}
	}
}

func TestCuratorContent(t *testing.T) {
	name, data, err := curator{}.encode("web", entry())
	want := `{"name":"web","id":"demo.web-1.0a","address":"10.0.0.1","port":8080,"sslPort":null,"payload":{"zone":"a"},` +
		`"registrationTimeUTC":0,"serviceType":"PERMANENT","uriSpec":null,"enabled":true,"usher":{"weight":10,` +
		`"owner":{"cluster":"here","namespace":"demo","registration":"web","pod":"demo.web-1.0a","uid":"uid-demo.web-1.0a"}}}`
	if err != nil || name != "demo.web-1.0a" || string(data) != want {
		t.Errorf("%s: %s, %v; want %s", name, data, err, want)
	}
}

func TestWhatDubboCannotHoldIsRefused(t *testing.T) {
	for name, metadata := range map[string]map[string]string{
		"interface": {"interface": "x"}, "side": {"side": "x"}, "weight": {"weight": "1"}, "usher": {"usher": "x"},
		"a key with =": {"a=b": "x"}, "no key": {"": "x"}, "a value with &": {"a": "x&weight=0"},
		"a line break": {"a": "x\ny"}, "a fragment": {"a": "x#y"}, "a protocol with a slash": {"protocol": "x://"},
	} {
		e := entry()
		e.Metadata = metadata
		_, _, err := (dubbo{}).encode("web", e)
		registrytest.Check(t, name, err, registry.ErrPermanent)
	}
}

func TestCopiesHaveIDsOfTheirOwn(t *testing.T) {
	name, data, err := dubbo{}.encode("web", entry())
	checktest.NoError(t, err)
	at := func(name string, created int64) *node {
		return &node{name: name, stat: &zk.Stat{Czxid: created, Mzxid: created}, entry: dubbo{}.decode(name, data)}
	}
	copied := name + "%26x%3Dy"
	for _, found := range [][]*node{{at(name, 1), at(copied, 2), nil}, {at(copied, 2), nil, at(name, 1)}} {
		have := map[string]string{}
		for _, n := range distinct(found) {
			have[n.entry.ID] = n.name
		}
		checktest.Same(t, "the list", map[string]string{entry().ID: name, copied: copied}, have)
	}
}

func TestUnmasked(t *testing.T) {
	world, boss := zk.WorldACL(zk.PermRead), zk.DigestACL(zk.PermAll, "boss", "secret")
	masked := zk.ACL{Scheme: "digest", ID: "boss:x", Perms: zk.PermAll}
	for name, test := range map[string]struct{ have, want []zk.ACL }{
		"seen":   {slices.Concat(world, boss), slices.Concat(world, boss)},
		"masked": {append([]zk.ACL{masked}, world...), append(world, zk.AuthACL(zk.PermAll)...)},
	} {
		checktest.Same(t, name, test.want, unmasked(test.have))
	}
}

func TestServersThatGiveNoSession(t *testing.T) {
	nobody := registrytest.Listen(t, func(conn net.Conn) { _ = conn.Close() })
	web := registrytest.Listen(t, registrytest.Say("HTTP/1.1 400 Bad Request\r\n\r\n"))
	hanging := registrytest.Listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	for name, test := range map[string]struct {
		servers []string
		limit   time.Duration
		says    string
	}{
		"nobody listens":   {[]string{"127.0.0.1:1"}, 10 * time.Second, "connection refused"},
		"none of two":      {[]string{"127.0.0.1:1", nobody}, 10 * time.Second, "refused"},
		"it hangs up":      {[]string{nobody}, 10 * time.Second, "no server gave a session"},
		"it says nothing":  {[]string{hanging}, 500 * time.Millisecond, "deadline exceeded"},
		"an unknown name":  {[]string{"usher.invalid:1"}, 10 * time.Second, "usher.invalid"},
		"another protocol": {[]string{web}, 2 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := registrytest.Connect(New(test.servers, usherv1alpha1.LayoutCurator, "services", false, nil))(t)
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			defer cancel()
			began := time.Now()
			registrytest.Check(t, "ping", r.Ping(ctx), registry.ErrTransient, test.says)
			if took := time.Since(began); took > test.limit+2*time.Second {
				t.Errorf("a call that may take %s took %s", test.limit, took)
			}
		})
	}
}

// TestBrokenPackets sends a session, and then a packet shorter than the minimum.
func TestBrokenPackets(t *testing.T) {
	server := registrytest.Listen(t, func(conn net.Conn) {
		session := make([]byte, lengthBytes+36)
		binary.BigEndian.PutUint32(session, 36)
		binary.BigEndian.PutUint32(session[8:], 10000) // The session's time-out,
		binary.BigEndian.PutUint64(session[12:], 1)    // its id,
		binary.BigEndian.PutUint32(session[20:], 16)   // and how long its password is.
		_, _ = conn.Write(session)
		_, _ = conn.Read(make([]byte, 1024)) // The request for a session,
		_, _ = conn.Read(make([]byte, 1024)) // and the first one in it.
		_, _ = conn.Write([]byte{0, 0, 0, 1, 0})
		_, _ = io.Copy(io.Discard, conn)
	})
	r := registrytest.Connect(New([]string{server}, usherv1alpha1.LayoutCurator, "services", false, nil))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Ping(ctx); !errors.Is(err, registry.ErrTransient) || ctx.Err() != nil {
		t.Errorf("ping: %v, want a transient error at once", err)
	}
}

func TestOptions(t *testing.T) {
	refusal := func(user, password string, servers ...string) error {
		secret := map[string][]byte{credentials.KeyUsername: []byte(user), credentials.KeyPassword: []byte(password)}
		return registrytest.Refusal(New(servers, usherv1alpha1.LayoutDubbo, "dubbo", false, secret))
	}
	registrytest.CheckOptions(t, map[string]error{
		"no server":       refusal("", ""),
		"no password":     refusal("s3cret", "", "localhost:2181"),
		"a colon in user": refusal("a:s3cret", "x", "localhost:2181"),
	})
}

// FuzzDecode decodes a node's name and, after a line break, its content.
func FuzzDecode(f *testing.F) {
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		name, data, _ := strings.Cut(text, "\n")
		return []registry.Entry{curator{}.decode(name, []byte(data)), dubbo{}.decode(name, []byte(data))}
	})
}

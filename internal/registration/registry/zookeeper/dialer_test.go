// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

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
			r := registrytest.Connect(t, New, Options{Servers: test.servers, Layout: Curator})
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
		session := make([]byte, headerBytes+36)
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
	r := registrytest.Connect(t, New, Options{Servers: []string{server}, Layout: Curator})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Ping(ctx); !errors.Is(err, registry.ErrTransient) || ctx.Err() != nil {
		t.Errorf("ping: %v, want a transient error at once", err)
	}
}

func TestOptions(t *testing.T) {
	servers := []string{"localhost:2181"}
	registrytest.CheckOptions(t, New, map[string]Options{
		"no server":       {Layout: Curator},
		"no layout":       {Servers: servers},
		"no password":     {Servers: servers, Layout: Dubbo, Secret: map[string][]byte{KeyUsername: []byte("s3cret")}},
		"a colon in user": {Servers: servers, Layout: Dubbo, Secret: map[string][]byte{KeyUsername: []byte("a:s3cret"), KeyPassword: []byte("x")}},
	})
	for layout, want := range map[Layout]string{Curator: "/services", Dubbo: "/dubbo"} {
		r, err := New(Options{Servers: servers, Layout: layout})
		if err != nil || r.root != want {
			t.Errorf("%s: the root is %+v, %v", layout, r, err)
		}
	}
}

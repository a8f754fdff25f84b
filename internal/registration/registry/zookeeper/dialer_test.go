// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// listen runs a server that calls serve with each connection.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}

func TestServersThatGiveNoSession(t *testing.T) {
	nobody := listen(t, func(conn net.Conn) { _ = conn.Close() })
	web := listen(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_ = conn.Close()
	})
	hanging := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
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
			r, err := New(Options{Servers: test.servers, Layout: Curator})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			defer cancel()
			began := time.Now()
			err = r.Ping(ctx)
			if !errors.Is(err, registry.ErrTransient) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("ping: %v, want it transient with %q", err, test.says)
			}
			if took := time.Since(began); took > test.limit+2*time.Second {
				t.Errorf("a call that may take %s took %s", test.limit, took)
			}
		})
	}
}

// TestBrokenPackets sends a session, and then a packet shorter than the minimum.
func TestBrokenPackets(t *testing.T) {
	server := listen(t, func(conn net.Conn) {
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
	r, err := New(Options{Servers: []string{server}, Layout: Curator})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Ping(ctx); !errors.Is(err, registry.ErrTransient) || ctx.Err() != nil {
		t.Errorf("ping: %v, want a transient error at once", err)
	}
}

func TestOptions(t *testing.T) {
	servers := []string{"localhost:2181"}
	for name, options := range map[string]Options{
		"no server":       {Layout: Curator},
		"no layout":       {Servers: servers},
		"no password":     {Servers: servers, Layout: Dubbo, Secret: map[string][]byte{KeyUsername: []byte("s3cret")}},
		"a colon in user": {Servers: servers, Layout: Dubbo, Secret: map[string][]byte{KeyUsername: []byte("a:s3cret"), KeyPassword: []byte("x")}},
	} {
		if _, err := New(options); !errors.Is(err, registry.ErrPermanent) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want a permanent error that tells no secret", name, err)
		}
	}
	for layout, want := range map[Layout]string{Curator: "/services", Dubbo: "/dubbo"} {
		r, err := New(Options{Servers: servers, Layout: layout})
		if err != nil || r.root != want {
			t.Errorf("%s: the root is %+v, %v", layout, r, err)
		}
	}
}

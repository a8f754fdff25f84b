// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

// echoServer returns the address of a server that sends back what it gets.
func echoServer(t *testing.T) string {
	t.Helper()
	server := listen(t)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return server.Addr().String()
}

// listen returns the address of a server that sends nothing.
func listen(t *testing.T) net.Listener {
	t.Helper()
	server := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = server.Close() })
	return server
}

// echo returns how long it took to send so much and get it back.
func echo(client net.Conn, size int) (time.Duration, error) {
	began := time.Now()
	go func() { _, _ = client.Write(make([]byte, size)) }()
	_, err := io.ReadFull(client, make([]byte, size))
	return time.Since(began), err
}

// TestLink: a link delays an answer by a round trip, however much there is of it, finds a target that
// is ready and answers, and cuts connections; while it is down, it accepts none.
func TestLink(t *testing.T) {
	const roundTrip, much = 100 * time.Millisecond, 8 << 20
	s := &Stage{}
	defer func() { checktest.NoError(t, s.close(t.Context())) }()
	l := checktest.Must(s.NewLink(t.Context(), func(target int) bool { return target > 0 }, listen(t).Addr().String(), "127.0.0.1:1", echoServer(t)))(t)
	connect := func() net.Conn {
		client := checktest.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", l.Address()))(t)
		checktest.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
		return client
	}
	client := connect()
	l.Slow(roundTrip)
	for _, size := range []int{1, much} {
		took := checktest.Must(echo(client, size))(t)
		if took < roundTrip || took > 30*roundTrip {
			t.Errorf("%d bytes came back after %s, want a little more than %s", size, took, roundTrip)
		}
	}
	l.Slow(0)
	for name, broken := range map[string]func(){"cut": l.Cut, "down": func() { l.Down(true) }} {
		broken()
		if _, err := echo(client, 1); err == nil {
			t.Errorf("%s: the connection is still there", name)
		}
		if _, err := echo(connect(), 1); (err != nil) != (name == "down") {
			t.Errorf("%s: a new connection: %v", name, err)
		}
		l.Down(false)
		client = connect()
		if _, err := echo(client, 1); err != nil {
			t.Errorf("%s is over: %v", name, err)
		}
	}
	checktest.NoError(t, client.(*net.TCPConn).CloseWrite())
	if n, err := client.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes of a closed connection: %v", n, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package link

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
	ready := func(target int) bool { return target > 0 }
	l := checktest.Must(Listen(t.Context(), Options{Ready: ready}, listen(t).Addr().String(), "127.0.0.1:1", echoServer(t)))(t)
	defer func() { checktest.NoError(t, l.Close()) }()
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

// server answers each connection with its name, and then with all that it gets.
func server(t *testing.T, name string) string {
	t.Helper()
	s := listen(t)
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.WriteString(c, name); _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return s.Addr().String()
}

// TestBalance: connections go to the targets in turn, those of one target can be cut, and held back without that
// anybody learns of it.
func TestBalance(t *testing.T) {
	l := checktest.Must(Listen(t.Context(), Options{Rotate: true}, server(t, "a"), server(t, "b")))(t)
	defer func() { checktest.NoError(t, l.Close()) }()
	clients := map[string]net.Conn{}
	connect := func() string {
		client := checktest.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", l.Address()))(t)
		checktest.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
		name := make([]byte, 1)
		_ = checktest.Must(io.ReadFull(client, name))(t)
		clients[string(name)] = client
		return string(name)
	}
	if first, second := connect(), connect(); first == second {
		t.Errorf("both connections went to %s", first)
	}
	l.Hold(0, true)
	for range 3 {
		checktest.Same(t, "the target of a connection while the other one is held back", "b", connect())
	}
	came := make(chan error, 1)
	go func() { _, err := echo(clients["a"], 1); came <- err }()
	_ = checktest.Must(echo(clients["b"], 1<<20))(t) // It takes its time.
	select {
	case err := <-came:
		t.Errorf("data of a target that is held back came: %v", err)
	default:
	}
	l.Hold(0, false)
	checktest.NoError(t, <-came)
	l.CutTarget(0)
	if _, err := echo(clients["a"], 1); err == nil {
		t.Error("the connection is still there")
	}
	_ = checktest.Must(echo(clients["b"], 1))(t)
}

// TestSender: data of one sender can be slower than that of another one, whatever their connections.
func TestSender(t *testing.T) {
	l := checktest.Must(Listen(t.Context(), Options{
		Sender: func(first []byte) string { return string(first[:1]) },
		Delay:  func(sender string) time.Duration { return map[string]time.Duration{"s": time.Minute}[sender] },
	}, echoServer(t)))(t)
	defer func() { checktest.NoError(t, l.Close()) }()
	connect := func(sender string) net.Conn {
		client := checktest.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", l.Address()))(t)
		_ = checktest.Must(io.WriteString(client, sender))(t)
		return client
	}
	slow, fast := connect("s"), connect("f")
	came := make(chan error, 1)
	go func() { _, err := io.ReadFull(slow, make([]byte, 1)); came <- err }()
	_ = checktest.Must(echo(fast, 1<<20))(t)
	select {
	case err := <-came:
		t.Errorf("data that takes a minute is there: %v", err)
	default:
	}
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// The distance delays an answer by a round trip, however much there is of it.
func TestForward(t *testing.T) {
	const roundTrip, much = 100 * time.Millisecond, 8 << 20
	listen := func() net.Listener {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		registrytest.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		return listener
	}
	server, proxy := listen(), listen()
	go forward(t.Context(), proxy, server.Addr().String(), roundTrip/2)
	go func() {
		if c, err := server.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", proxy.Addr().String())
	registrytest.NoError(t, err)
	registrytest.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
	for _, size := range []int{1, much} {
		began := time.Now()
		go func() { _, _ = client.Write(make([]byte, size)) }()
		_, err = io.ReadFull(client, make([]byte, size))
		registrytest.NoError(t, err)
		if took := time.Since(began); took < roundTrip || took > 30*roundTrip {
			t.Errorf("%d bytes came back after %s, want a little more than %s", size, took, roundTrip)
		}
	}
	registrytest.NoError(t, client.(*net.TCPConn).CloseWrite())
	if n, err := client.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes of a closed connection: %v", n, err)
	}
}

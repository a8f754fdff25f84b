// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/usher-dev/usher/test/stage"
)

const (
	// pieceSize is how much is passed on at once, at most.
	pieceSize = 32 << 10
	// pieces is how many may be under way in one direction of a connection, so that the
	// distance costs time and no throughput.
	pieces = 4096
)

// moveAway makes the API server look far away to those who use the returned kubeconfig,
// which is Usher's: an answer takes a round trip longer.
func moveAway(ctx context.Context, s *stage.Stage, roundTrip time.Duration) (kubeconfig string, err error) {
	path, err := s.Cluster.UserKubeconfig(stage.UsherUser)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return "", fmt.Errorf("read Usher's kubeconfig: %w", err)
	}
	server, err := url.Parse(s.Cluster.Server())
	if err != nil {
		return "", err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen in place of the API server: %w", err)
	}
	s.AtEnd(func(context.Context) error { return listener.Close() })
	go forward(context.WithoutCancel(ctx), listener, server.Host, roundTrip/2)
	for _, one := range config.Clusters {
		one.Server = "https://" + listener.Addr().String()
	}
	path = s.Path("far.kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

// forward passes connections on to a server, each direction with a delay, until the
// listener is closed.
func forward(ctx context.Context, listener net.Listener, server string, delay time.Duration) {
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			far, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
			if err != nil {
				_ = near.Close() // The client tries again.
				return
			}
			end := func() { _ = errors.Join(near.Close(), far.Close()) } // as the other side did
			go carry(far, near, delay, end)
			go carry(near, far, delay, end)
		}()
	}
}

// carry passes on what comes, each piece after the delay, until a side closes.
func carry(to, from net.Conn, delay time.Duration, end func()) {
	type piece struct {
		due  time.Time
		data []byte
	}
	under := make(chan piece, pieces)
	go func() {
		defer close(under)
		buffer := make([]byte, pieceSize)
		for {
			n, err := from.Read(buffer)
			under <- piece{due: time.Now().Add(delay), data: bytes.Clone(buffer[:n])}
			if err != nil {
				return
			}
		}
	}()
	for p := range under {
		<-time.After(time.Until(p.due)) // This delay is under test.
		if _, err := to.Write(p.data); err != nil {
			end() // The reader fails then, too; what it has read is for nobody.
		}
	}
	end()
}

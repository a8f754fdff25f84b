// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/checktest/pki"
)

// nameless is a connection that only has a name.
type nameless struct {
	net.Conn
	name string
}

// TestWhoLeaves: the connection that is closed is the oldest one of the host with most, among those
// that have not shown the path.
func TestWhoLeaves(t *testing.T) {
	for _, test := range []struct{ guests, leaves string }{
		{"a1", "a1"},
		{"a1 a2", "a1"},
		{"api1 flood1 flood2", "flood1"},
		{"api1! flood1! flood2 flood3", "flood2"},
		{"api1! api2! flood1", "flood1"},
		{"api1! flood1! flood2! flood3!", "flood1"},
	} {
		var guests []*guest
		for name := range strings.FieldsSeq(test.guests) {
			name, proven := strings.CutSuffix(name, "!")
			g := &guest{Conn: nameless{name: name}, from: strings.TrimRight(name, "0123456789")}
			g.proven.Store(proven)
			guests = append(guests, g)
		}
		checktest.Same(t, "who leaves of "+test.guests, test.leaves, leaves(guests).Conn.(nameless).name)
	}
}

// house is a guard's server on loopback, whose door opens at a path that the test knows.
type house struct {
	*knocks
	*crowd
	frontend *frontend
}

// most is how many connections a house has.
const most = 8

func serveHouse(t *testing.T, clients Clients) *house {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: "guard"})
	checktest.NoError(t, err)
	pair := checktest.Must(tls.X509KeyPair(chain, key))(t)
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
	h := &house{knocks: newKnocks(), crowd: listens(t)}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	h.frontend = &frontend{tls: config, handler: h.knocks, clients: clients}
	go func() { ended <- h.frontend.serve(ctx, h.crowd) }()
	t.Cleanup(func() { end(); checktest.NoError(t, <-ended) })
	return h
}

// listens is a crowd on loopback.
func listens(t *testing.T) *crowd {
	t.Helper()
	return newCrowd(checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t), most)
}

// connect opens a connection from a host, and sends nothing on it, not even to begin TLS.
func (h *house) connect(t *testing.T, from string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn := checktest.Must(dialer.DialContext(t.Context(), "tcp", h.Addr().String()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// secure begins TLS on a connection, as a client that trusts every certificate.
func secure(conn net.Conn, certificates ...tls.Certificate) *tls.Conn {
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: certificates})
}

// post sends a request over a connection, and returns the status of the answer.
func post(conn net.Conn, path string) (int, error) {
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: guard\r\nContent-Length: 2\r\n\r\n{}", path); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, errors.Join(err, answer.Body.Close())
}

// TestIdleConnectionsKeepNobodyOut is an attack: a host opens connections and sends nothing, or nothing
// after TLS, or asks for paths that are not the guard's. There are never more than the bound, an API
// server's connection is not among those that are closed, and a new one is served.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	h := serveHouse(t, Clients{})
	server := secure(h.connect(t, "127.0.0.2"))
	checktest.Same(t, "an API server's answer", http.StatusOK, checktest.Must(post(server, *h.path.Load()))(t))
	var idle []net.Conn
	for i := range 5 * most {
		conn := h.connect(t, "127.0.0.1")
		if i%2 == 1 {
			secured := secure(conn)
			// The guard may have closed it already.
			if secured.HandshakeContext(t.Context()) == nil && i%4 == 3 {
				_, _ = post(secured, "/guess")
			}
			conn = secured
		}
		idle = append(idle, conn)
	}
	for i, conn := range idle[:4*most] { // closed in favour of newer ones
		checktest.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("idle connection %d stays", i)
		}
	}
	checktest.Same(t, "an API server's next answer", http.StatusOK, checktest.Must(post(server, *h.path.Load()))(t))
	other := secure(h.connect(t, "127.0.0.3"))
	checktest.Same(t, "another API server's answer", http.StatusOK, checktest.Must(post(other, *h.path.Load()))(t))
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.guests) > most {
		t.Errorf("%d connections are open, more than %d", len(h.guests), most)
	}
}

// TestReviewsOutliveTheManager: when the manager has ended, as a leader's does that has lost its lease, the guard
// answers what it was asked, and what it is asked, until it is to take no more. An API server lets a deletion pass if
// the process that it has asked ends without an answer.
func TestReviewsOutliveTheManager(t *testing.T) {
	h := serveHouse(t, Clients{})
	asked, answer := make(chan struct{}), make(chan struct{})
	h.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
			w.WriteHeader(http.StatusTeapot)
		}
	})
	manager, ends := context.WithCancel(t.Context())
	until, leave := context.WithCancel(t.Context())
	outlives := Outlives{Until: until, Serving: &sync.WaitGroup{}}
	served := &frontend{tls: h.frontend.tls, handler: h.knocks, outlives: outlives}
	crowd := listens(t)
	second := &house{h.knocks, crowd, served}
	ended := make(chan error, 1)
	go func() { ended <- served.outlive(manager, crowd) }()
	answers := make(chan int, 2)
	review := func() {
		conn := secure(second.connect(t, "127.0.0.1"))
		go func() { answers <- checktest.Must(post(conn, *h.path.Load()))(t) }()
		<-asked
	}
	review()
	ends()
	checktest.NoError(t, <-ended)
	review()
	leave()
	close(answer)
	outlives.Serving.Wait()
	for range 2 {
		checktest.Same(t, "an answer", http.StatusOK, <-answers)
	}
	if conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", crowd.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("it listens still")
	}
}

// TestClientCertificates is an attack by a client that knows the path: if the guard demands
// certificates, it serves only clients with a certificate of its CAs and one of its names. CAs can be
// replaced while it runs.
func TestClientCertificates(t *testing.T) {
	ours, theirs := authority(t, "ours"), authority(t, "theirs")
	file := filepath.Join(t.TempDir(), "ca.crt")
	trust := func(a *pki.Authority) { checktest.NoError(t, os.WriteFile(file, a.PEM(), 0o600)) }
	trust(ours)
	h := serveHouse(t, Clients{CA: file, Names: []string{"api", "api.example.com"}})
	now := time.Now()
	client := func(a *pki.Authority, user string) pki.Pair { return checktest.Must(a.Client(user, now))(t) }
	served := func(pairs ...pki.Pair) bool {
		t.Helper()
		var shown []tls.Certificate
		for _, pair := range pairs {
			shown = append(shown, checktest.Must(tls.X509KeyPair(pair.Cert, pair.Key))(t))
		}
		code, err := post(secure(h.connect(t, "127.0.0.1"), shown...), *h.path.Load())
		return err == nil && code == http.StatusOK
	}
	checktest.Same(t, "with a certificate", true, served(client(ours, "api")))
	checktest.Same(t, "with a certificate for a DNS name", true, served(checktest.Must(ours.Peer("x", now, "api.example.com"))(t)))
	checktest.Same(t, "without a certificate", false, served())
	checktest.Same(t, "with one of another name", false, served(client(ours, "kubelet")))
	checktest.Same(t, "with one of another CA", false, served(client(theirs, "api")))
	checktest.Same(t, "with one for servers", false, served(checktest.Must(ours.Server("api", now, "api"))(t)))
	checktest.Same(t, "asked", 2, h.asked)
	trust(theirs)
	checktest.Same(t, "with one of a CA that is new", true, served(client(theirs, "api")))
	checktest.Same(t, "with one of a CA that was replaced", false, served(client(ours, "api")))
	checktest.NoError(t, os.WriteFile(file, []byte("none"), 0o600))
	checktest.Same(t, "without CAs", false, served(client(theirs, "api")))
}

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	return checktest.Must(pki.NewAuthority(name, time.Now()))(t)
}

// TestHeadersAreBounded: a header that is too long is refused before it is read to its end.
func TestHeadersAreBounded(t *testing.T) {
	h := serveHouse(t, Clients{})
	conn := secure(h.connect(t, "127.0.0.1"))
	go func() {
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: guard\r\nX: ", *h.path.Load())
		for { // until the server hangs up
			if _, err := io.WriteString(conn, strings.Repeat("x", 1<<10)); err != nil {
				return
			}
		}
	}()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	checktest.NoError(t, err)
	defer func() { checktest.NoError(t, answer.Body.Close()) }()
	checktest.Same(t, "the answer", http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode)
	checktest.Same(t, "asked", 0, h.asked)
}

// TestNothingIsSignedForClosedConnections: handshakes wait for one another, and stop waiting when their connection
// is closed.
func TestNothingIsSignedForClosedConnections(t *testing.T) {
	key := checktest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	turn, digest := make(chan struct{}, 1), make([]byte, crypto.SHA256.Size())
	sign := func(gone chan struct{}) error {
		_, err := (&signer{key, turn, gone}).Sign(rand.Reader, digest, crypto.SHA256)
		return err
	}
	checktest.NoError(t, sign(make(chan struct{})))
	turn <- struct{}{} // another one signs
	gone := make(chan struct{})
	close(gone)
	if err := sign(gone); !errors.Is(err, net.ErrClosed) {
		t.Errorf("for a connection that has been closed: %v", err)
	}
	waits := make(chan error)
	go func() { waits <- sign(make(chan struct{})) }()
	<-turn
	checktest.NoError(t, <-waits)
}

// TestNotReadyWithoutCertificate: a replica that cannot answer API servers is not ready. The check
// needs no connection, which could fail in a flood.
func TestNotReadyWithoutCertificate(t *testing.T) {
	k := &known{}
	f := &frontend{tls: &tls.Config{MinVersion: tls.VersionTLS13}}
	k.serve(f.tls)
	if f.ready(nil) == nil {
		t.Error("it is ready before it listens")
	}
	f.serves.Store(true)
	if f.ready(nil) == nil {
		t.Error("it is ready without a certificate")
	}
	k.current.Store(&tls.Certificate{})
	checktest.NoError(t, f.ready(nil))
}

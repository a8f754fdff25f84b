// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

const (
	opConnect = 0 // The request for a session has no number of its own.
	opPing    = 11
)

// request is what a server reads of a request.
type request struct {
	op, xid int32
	path    string
}

// receive reads one request. The first one on a connection asks for a session.
func receive(conn net.Conn, first bool) (request, error) {
	length := make([]byte, 4)
	if _, err := io.ReadFull(conn, length); err != nil {
		return request{}, err
	}
	packet := make([]byte, binary.BigEndian.Uint32(length))
	if _, err := io.ReadFull(conn, packet); err != nil || first {
		return request{op: opConnect}, err
	}
	r := request{xid: int32(binary.BigEndian.Uint32(packet)), op: int32(binary.BigEndian.Uint32(packet[4:]))}
	if len(packet) >= 12 {
		size := min(int(binary.BigEndian.Uint32(packet[8:])), len(packet)-12)
		r.path = string(packet[12:][:max(size, 0)])
	}
	return r, nil
}

// wire encodes values as ZooKeeper does; bytes are themselves.
func wire(values ...any) (data []byte) {
	for _, value := range values {
		switch v := value.(type) {
		case int:
			data = binary.BigEndian.AppendUint32(data, uint32(v))
		case int32:
			data = binary.BigEndian.AppendUint32(data, uint32(v))
		case int64:
			data = binary.BigEndian.AppendUint64(data, uint64(v))
		case bool:
			data = append(data, map[bool]byte{true: 1}[v])
		case string:
			data = append(binary.BigEndian.AppendUint32(data, uint32(len(v))), v...)
		case []byte:
			data = append(data, v...)
		}
	}
	return data
}

const version = 7

// mostMemory is what the calls of everything may allocate. Each connection has buffers of 3 MiB.
const mostMemory = 48 << 20

// stat is that of any node.
var stat = wire(int64(1), int64(version), make([]byte, 52))

// nodesThere returns the entries of a service, and their nodes by name.
func nodesThere(l layout) ([]registry.Entry, map[string][]byte) {
	entries := []registry.Entry{registrytest.Entry("a"), registrytest.Entry("b"), registrytest.Entry("c")}
	nodes := map[string][]byte{}
	for i := range entries {
		entries[i].Version = "7"
		name, data, _ := l.encode("web", entries[i])
		nodes[name] = data
	}
	return entries, nodes
}

// honest returns what ZooKeeper answers to a request, after the header.
func honest(r request, nodes map[string][]byte) []byte {
	switch r.op {
	case opConnect:
		return granted(10000, make([]byte, 16))
	case opCreate, opSync:
		return wire(r.path)
	case opGetData:
		data := nodes[path.Base(r.path)]
		return wire(string(data), stat)
	case opSetData:
		return stat
	case opGetACL:
		return wire(1, 31, "world", "anyone", stat)
	case opGetChildren2:
		names := wire(len(nodes))
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			names = append(names, wire(name)...)
		}
		return append(names, stat...)
	case opMulti:
		return wire(2, false, 0, 1, false, 0, "/new", -1, true, -1)
	}
	return nil
}

// granted is the answer to a request for a session.
func granted(timeout int, password []byte) []byte {
	return wire(0, timeout, int64(1), len(password), password, false)
}

// reply puts the header before an answer, and the length before both.
func reply(r request, body []byte) []byte {
	if r.op != opConnect {
		body = slices.Concat(wire(r.xid, int64(9), 0), body)
	}
	return wire(len(body), body)
}

// answering answers every request of a connection with what answer returns, until that is nil.
func answering(answer func(request) []byte) func(net.Conn) {
	return func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		for first := true; ; first = false {
			r, err := receive(conn, first)
			if err != nil {
				return
			}
			said := answer(r)
			if _, err := conn.Write(said); err != nil || said == nil {
				return
			}
		}
	}
}

// addressed is a connection in memory, with an address as the client expects one.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2181} }

// attacked returns a connector whose servers answer as serve does.
func attacked(t *testing.T, name usherv1alpha1.ZooKeeperLayout, serve func(net.Conn)) *Registry {
	secret := map[string][]byte{credentials.KeyUsername: []byte("usher"), credentials.KeyPassword: []byte(registrytest.Secret)}
	r := registrytest.Connect(New([]string{"127.0.0.1:2181"}, name, "services", false, secret))(t)
	r.dialer.dial = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go serve(theirs)
		return addressed{ours}, nil
	}
	return r
}

// everything makes each kind of request that the connector makes, and returns the errors.
func everything(ctx context.Context, r *Registry, l layout) []error {
	entries, _ := nodesThere(l)
	moved, changed, gone, added := entries[0], entries[1], entries[2], registrytest.Entry("new")
	moved.Weight++
	changed.Owner.Registration = "another"
	_, listed := r.List(ctx, "web")
	return []error{r.Ping(ctx), listed, r.Apply(ctx, "web", []registry.Change{
		{Op: registry.Put, Entry: moved}, {Op: registry.Put, Entry: changed}, {Op: registry.Put, Entry: added},
		{Op: registry.Remove, Entry: gone},
	})}
}

// TestAttacks has a server answer one kind of request as no ZooKeeper does. The client decodes in
// goroutines of its own: a panic there ends the process.
func TestAttacks(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff}
	for name, attack := range map[string]struct {
		op   int32
		body []byte
		says string
	}{
		"a Multi answered by 4 bytes":                   {opMulti, wire(0), "multi"},
		"a Multi without an end":                        {opMulti, wire(2, false, 0), "multi"},
		"a Multi with results that nobody asked":        {opMulti, slices.Concat(slices.Repeat(wire(2, false, 0), 10000), wire(-1, true, -1)), "multi"},
		"a Multi with an unknown result":                {opMulti, wire(77, false, 0, -1, true, -1), "multi"},
		"4 billion children":                            {opGetChildren2, huge, "getChildren2"},
		"more children than bytes":                      {opGetChildren2, wire(1000, "a", "b", stat), "getChildren2"},
		"children without names":                        {opGetChildren2, slices.Concat(wire(500000), make([]byte, 4*500000), stat), "getChildren2"},
		"a child's name of 4 GiB":                       {opGetChildren2, wire(1, huge, stat), "getChildren2"},
		"children without a stat":                       {opGetChildren2, wire(1, "a"), "getChildren2"},
		"content of 2 GiB":                              {opGetData, wire(1<<31-1, stat), "getData"},
		"content that was sent before":                  {opGetData, wire(100), "getData"},
		"nothing as content":                            {opGetData, nil, "getData"},
		"4 billion ACLs":                                {opGetACL, wire(huge, stat), "getACL"},
		"an ACL that ends early":                        {opGetACL, wire(1, 31, "world"), "getACL"},
		"a path of 4 GiB":                               {opCreate, huge, "create"},
		"no path":                                       {opSync, nil, "sync"},
		"half a stat":                                   {opSetData, stat[:67], "setData"},
		"a session's password of 2 GiB":                 {opConnect, wire(0, 10000, int64(1), 1<<31-1), "session"},
		"a session without a password":                  {opConnect, wire(0, 10000, int64(1)), "session"},
		"a session of no time":                          {opConnect, granted(0, nil), "session"},
		"a session that ends before it begins":          {opConnect, granted(-1, nil), "session"},
		"a session of a millisecond: pings on end":      {opConnect, granted(1, nil), "session"},
		"a session of weeks":                            {opConnect, granted(1<<31-1, nil), "session"},
		"an answer as long as a list to something else": {opDelete, make([]byte, 2<<20), "delete"},
	} {
		t.Run(name, func(t *testing.T) {
			_, nodes := nodesThere(dubbo{})
			r := attacked(t, usherv1alpha1.LayoutDubbo, answering(func(r request) []byte {
				if r.op == attack.op {
					return reply(r, attack.body)
				}
				return reply(r, honest(r, nodes))
			}))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			errs := everything(registrytest.Bounded(t), r, dubbo{})
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > mostMemory {
				t.Errorf("it took %d bytes", took)
			}
			registrytest.Check(t, "the error", errors.Join(errs...), registry.ErrTransient, attack.says)
		})
	}
}

// TestUnasked has a server send what nobody asked for.
func TestUnasked(t *testing.T) {
	event := func(body ...any) []byte { return reply(request{op: opPing, xid: eventXid}, wire(body...)) }
	for name, test := range map[string]struct {
		packet []byte
		says   string
	}{
		"an event":                       {event(4, 3, "/services/web"), ""},
		"an answer to a ping":            {reply(request{op: opPing, xid: pingXid}, nil), ""},
		"an event of 4 GiB":              {event(4, 3, -1), "event"},
		"an event without an end":        {event(4), "event"},
		"an answer to nobody":            {reply(request{op: opPing, xid: 77}, nil), "77"},
		"an answer to a login of before": {reply(request{op: opPing, xid: -4}, nil), "-4"},
	} {
		t.Run(name, func(t *testing.T) {
			_, nodes := nodesThere(curator{})
			r := attacked(t, usherv1alpha1.LayoutCurator, answering(func(r request) []byte {
				if r.op == opGetChildren2 {
					return slices.Concat(test.packet, reply(r, honest(r, nodes)))
				}
				return reply(r, honest(r, nodes))
			}))
			_, err := r.List(registrytest.Bounded(t), "web")
			want := registry.ErrTransient
			if test.says == "" {
				want = nil
			}
			registrytest.Check(t, "list", err, want, test.says)
		})
	}
}

// TestHonestServer makes every request, and gets the answers of a server as it should be.
func TestHonestServer(t *testing.T) {
	_, nodes := nodesThere(dubbo{})
	asked := map[int32]bool{}
	r := attacked(t, usherv1alpha1.LayoutDubbo, answering(func(r request) []byte {
		asked[r.op] = true
		return reply(r, honest(r, nodes))
	}))
	checktest.NoError(t, errors.Join(everything(registrytest.Bounded(t), r, dubbo{})...))
	for op := range operations {
		if !asked[op] && op != opClose {
			t.Errorf("the connector makes no request of the kind %d: why is it allowed?", op)
		}
	}
}

// TestSilentServersAreLeft gives a session, and then nothing, not even when it is closed: the
// client would keep the connection, and its buffers, for as long as the server has said.
func TestSilentServersAreLeft(t *testing.T) {
	left := make(chan struct{})
	r := attacked(t, usherv1alpha1.LayoutCurator, func(conn net.Conn) {
		defer close(left)
		answering(func(r request) []byte {
			if r.op == opConnect {
				return reply(r, granted(int(time.Hour/time.Millisecond), nil))
			}
			return []byte{}
		})(conn)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	registrytest.Check(t, "ping", r.Ping(ctx), registry.ErrTransient)
	select {
	case <-left:
	case <-time.After(30 * time.Second):
		t.Error("the connection is kept")
	}
}

// TestWritesDoNotFail: the client reports a failed write to its caller, and again that the connection
// ended, and a third time that it was closed, through a channel with room for two. Then the call, or
// the client, would wait forever.
func TestWritesDoNotFail(t *testing.T) {
	for name, request := range map[string][]byte{
		"a session":                 wire(0),
		"a request that is unknown": wire(12, 1, 77, "/"),
	} {
		ours, theirs := net.Pipe()
		if name == "a session" {
			_ = theirs.Close()
		}
		f := &frames{Conn: addressed{ours}, begun: name != "a session"}
		if n, err := f.Write(request); err != nil || n != len(request) {
			t.Errorf("%s: %d, %v; want all of it to be written", name, n, err)
		}
		_ = ours.SetReadDeadline(time.Now().Add(time.Second)) // Of a connection that is still open.
		if _, err := f.Read(make([]byte, 8)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: the connection is not closed: %v", name, err)
		}
	}
}

// script is what a server does: each request takes a byte of it. 0 is an honest answer; 1 is one of
// which the bytes after the header are what follows in the script, after their number; 2 is the same
// for a whole packet, and 3 for bytes that are none. The server hangs up at the end of the script.
type script struct {
	mu    sync.Mutex // The client may still say goodbye on one connection.
	rest  []byte
	nodes map[string][]byte
}

func (s *script) next(n int) []byte {
	said := s.rest[:min(n, len(s.rest))]
	s.rest = s.rest[len(said):]
	return said
}

func (s *script) answer(r request) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := s.next(1)
	if len(kind) == 0 {
		return nil
	}
	if kind[0] == 0 || kind[0] > 3 {
		return reply(r, honest(r, s.nodes))
	}
	size := append(slices.Clone(s.next(2)), 0, 0)
	said := s.next(int(binary.BigEndian.Uint16(size)))
	switch kind[0] {
	case 1:
		return reply(r, said)
	case 2:
		return wire(len(said), said)
	}
	return append([]byte{}, said...)
}

// scripted returns a script that begins with honest answers, and then says something.
func scripted(honest int, kind byte, said []byte) []byte {
	return slices.Concat(make([]byte, honest), []byte{kind, byte(len(said) >> 8), byte(len(said))}, said)
}

// checkKind checks that each of an error's parts has a kind, and reveals no password.
func checkKind(t *testing.T, err error) {
	byID, rest := registry.ChangeErrors(err)
	for _, err := range append(slices.Collect(maps.Values(byID)), rest) {
		known := err == nil || errors.Is(err, registry.ErrTransient) || errors.Is(err, registry.ErrPermanent) || errors.Is(err, registry.ErrConflict)
		if !known || strings.Contains(fmt.Sprint(err), registrytest.Secret) {
			t.Errorf("the error %v is of no kind, or reveals the password", err)
		}
	}
}

// FuzzConnection runs the connector against a server that follows a script.
func FuzzConnection(f *testing.F) {
	huge := []byte{0xff, 0xff, 0xff, 0xff}
	// First come the session, the login, a list (synchronised, the names, three nodes) and a ping. A change
	// lists again, and reads the folder's ACL before it writes, in any order.
	for _, seed := range [][]byte{
		scripted(3, 1, huge), slices.Concat(make([]byte, 14), slices.Repeat(scripted(0, 1, wire(0)), 4)), scripted(0, 1, granted(0, nil)),
		scripted(0, 1, granted(1<<31-1, nil)), scripted(0, 1, wire(0, 10000, int64(1), 1<<31-1)),
		scripted(3, 2, wire(1<<31-1, int64(1), 0)), scripted(2, 3, []byte("HTTP/1.1 400 Bad Request\r\n\r\n")),
		scripted(4, 1, wire(1<<31-1)), scripted(13, 1, huge), make([]byte, 64),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &script{rest: text}
		_, s.nodes = nodesThere(dubbo{})
		ended := make(chan struct{}, 16)
		r := attacked(t, usherv1alpha1.LayoutDubbo, func(conn net.Conn) {
			answering(s.answer)(conn)
			ended <- struct{}{}
		})
		connections, dial := 0, r.dialer.dial
		r.dialer.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			connections++
			return dial(ctx, network, address)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, err := range everything(ctx, r, dubbo{}) {
			checkKind(t, err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(connections+1)*16<<20 {
			t.Errorf("%d connections took %d bytes", connections, took)
		}
		_ = r.Close()
		for range connections {
			<-ended
		}
	})
}

// TestAnswersAreBounded lists nodes without content: in memory they take as much as any others.
func TestAnswersAreBounded(t *testing.T) {
	const count = 1000
	nodes := map[string][]byte{}
	for i := range count {
		nodes[strconv.Itoa(i)] = nil
	}
	var read atomic.Int64
	r := attacked(t, usherv1alpha1.LayoutCurator, answering(func(r request) []byte {
		if r.op == opGetData {
			read.Add(1)
		}
		return reply(r, honest(r, nodes))
	}))
	whole := int64(4 * count * registry.EntryBytes) // One call may take a quarter.
	_, err := r.List(registrytest.Counted(t, whole-4), "web")
	registrytest.Check(t, "a list that is too long", err, registry.ErrOneService, "more than")
	checktest.Same(t, "how many nodes were read", 0, read.Load())
	_, err = r.List(registrytest.Counted(t, whole), "web")
	registrytest.Check(t, "a list that fits", err, nil)
}

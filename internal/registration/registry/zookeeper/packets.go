// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// lengthBytes is the size of the length field before each packet.
	lengthBytes = 4
	// headerBytes is the size of an answer's header, and so the shortest packet of a server: the
	// request's xid, the transaction's number and an error code. A new session has no header, but
	// is longer.
	headerBytes = 16
	// maxNames is how long a list of names may be, in bytes, and maxPacket any other answer. By
	// default servers take 1 MiB of content for a node.
	maxNames  = 8 << 20
	maxPacket = 1<<20 + 64<<10
	// maxElements is how many names or rules an answer may list: in Go, each takes 16 or 40 bytes,
	// however short it was.
	maxElements = 1 << 17
	// maxResults is more than Usher asks for in one transaction.
	maxResults = 16
	// minTimeout and maxTimeout bound what a server may make of sessionTimeout. The client pings
	// three times in that time, and would panic at none.
	minTimeout = time.Second
	maxTimeout = time.Hour
)

// The numbers of requests that the connector makes.
const (
	opCreate       = 1
	opDelete       = 2
	opGetData      = 4
	opSetData      = 5
	opGetACL       = 6
	opSync         = 9
	opGetChildren2 = 12
	opMulti        = 14
	opSetAuth      = 100
	opClose        = -11
	// opError is the result of an operation that a transaction did not carry out.
	opError = -1
)

// The xids of packets that answer no request of a caller's.
const (
	eventXid = -1
	pingXid  = -2
)

// answer is what may answer one kind of request.
type answer struct {
	name string
	// limit is how long its packet may be.
	limit int
	// check reads what follows the header, unless that has an error code.
	check func(*fields)
}

var (
	sessionAnswer = answer{"the request for a session", maxPacket, (*fields).session}
	eventAnswer   = answer{"an event", maxPacket, (*fields).event}
	pingAnswer    = answer{"ping", maxPacket, (*fields).nothing}
)

// operations are the answers by kind of request. The connector makes no others.
var operations = map[int32]answer{
	opCreate:       {"create", maxPacket, (*fields).text},
	opDelete:       {"delete", maxPacket, (*fields).nothing},
	opGetData:      {"getData", maxPacket, func(f *fields) { f.buffer(); f.stat() }},
	opSetData:      {"setData", maxPacket, (*fields).stat},
	opGetACL:       {"getACL", maxPacket, func(f *fields) { f.list((*fields).acl); f.stat() }},
	opSync:         {"sync", maxPacket, (*fields).text},
	opGetChildren2: {"getChildren2", maxNames, func(f *fields) { f.list((*fields).text); f.stat() }},
	opMulti:        {"multi", maxPacket, (*fields).results},
	opSetAuth:      {"setAuth", maxPacket, (*fields).nothing},
	opClose:        {"close", maxPacket, (*fields).nothing},
}

// frames is a connection on which the client gets whole packets, each of which can be the answer
// to one of its requests. The client believes every length and count that it reads: it would
// panic in a goroutine of its own, where nobody recovers, or allocate gigabytes. Anything else
// ends the connection.
type frames struct {
	net.Conn

	// begun and greeted mean that the request for a session was sent, and answered. Each is used by
	// one goroutine at a time.
	begun, greeted bool
	// rest is what the client has not read of the current packet, its length field included.
	rest []byte

	mu sync.Mutex
	// asked has the kinds of the requests that were not answered yet, by xid.
	asked map[int32]answer
	// wrong is why the connection ended, nil if nothing was wrong.
	wrong error
}

// why returns the reason for which the connection ended: what was wrong with a packet, or nil.
func (f *frames) why() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong
}

// Write implements io.Writer. The client writes one request at a time, as a whole. If that fails, the
// connection is closed, which the client learns by reading: of a failed write it would tell its
// caller once more than that can hear, and wait for it forever.
func (f *frames) Write(p []byte) (int, error) {
	var err error
	if f.begun {
		err = f.ask(p)
	}
	if f.begun = true; err == nil {
		_, err = f.Conn.Write(p)
	}
	if err != nil {
		_ = f.Close()
	}
	return len(p), nil
}

// ask remembers a request, whose answer is checked.
func (f *frames) ask(request []byte) error {
	head := fields{rest: request[min(lengthBytes, len(request)):]}
	xid, op := head.number(), head.number()
	if head.err == nil && xid == pingXid {
		return nil
	}
	expected, known := operations[op]
	f.mu.Lock()
	defer f.mu.Unlock()
	if head.err != nil || !known {
		f.wrong = fmt.Errorf("a request of the kind %d, whose answer nobody checks: add it to the operations", op)
		return f.wrong
	}
	if f.asked == nil {
		f.asked = map[int32]answer{}
	}
	f.asked[xid] = expected
	return nil
}

// Read implements io.Reader. The client reads from one goroutine at a time.
func (f *frames) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		packet, err := f.next()
		if err != nil {
			return 0, err
		}
		f.rest = packet
	}
	n := copy(p, f.rest)
	if f.rest = f.rest[n:]; len(f.rest) == 0 {
		f.rest = nil // The packet's memory is free.
	}
	return n, nil
}

// next reads a packet with its length field.
func (f *frames) next() ([]byte, error) {
	head := make([]byte, lengthBytes+headerBytes)
	if _, err := io.ReadFull(f.Conn, head[:lengthBytes]); err != nil {
		return nil, err
	}
	length := int64(binary.BigEndian.Uint32(head))
	if length < headerBytes || length > maxNames {
		return nil, f.end(fmt.Errorf("a packet of %d bytes", length))
	}
	if _, err := io.ReadFull(f.Conn, head[lengthBytes:]); err != nil {
		return nil, err
	}
	expected, err := f.expected(head[lengthBytes:])
	if err == nil && length > int64(expected.limit) {
		err = fmt.Errorf("%d bytes answer %s", length, expected.name)
	}
	if err != nil {
		return nil, f.end(err)
	}
	packet := bytes.NewBuffer(head) // It grows as the rest arrives: the length may be a lie.
	if _, err := io.CopyN(packet, f.Conn, length-headerBytes); err != nil {
		return nil, err
	}
	if err := f.check(expected, packet.Bytes()[lengthBytes:]); err != nil {
		return nil, f.end(fmt.Errorf("the answer to %s: %w", expected.name, err))
	}
	return packet.Bytes(), nil
}

// end ends the connection because of a packet that no ZooKeeper sends. It is closed at once: the
// client may be writing to a server that reads no more.
func (f *frames) end(err error) error {
	_ = f.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = fmt.Errorf("%s sent what ZooKeeper does not, or a service has too many entries: %w", f.RemoteAddr(), err)
	return f.wrong
}

// expected returns what a packet with that header can be. The request is answered then.
func (f *frames) expected(header []byte) (answer, error) {
	if !f.greeted {
		f.greeted = true
		return sessionAnswer, nil
	}
	xid := int32(binary.BigEndian.Uint32(header))
	switch xid {
	case eventXid:
		return eventAnswer, nil
	case pingXid:
		return pingAnswer, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	expected, known := f.asked[xid]
	if !known {
		return answer{}, fmt.Errorf("an answer to %d, which was not asked", xid)
	}
	delete(f.asked, xid)
	return expected, nil
}

// check reads a packet as the client will.
func (f *frames) check(expected answer, packet []byte) error {
	read := fields{rest: packet}
	if expected.name != sessionAnswer.name {
		read.number()
		read.skip(8) // The transaction's number.
		if failed := read.number(); failed != 0 && expected.name != eventAnswer.name {
			return nil // The client reads no further.
		}
	}
	expected.check(&read)
	return read.err
}

// errShort means that a packet ends too early.
var errShort = errors.New("it ends too early")

// fields reads a packet field by field. After the first error it reads no more. A newer server may
// say more than the client knows: what follows the last field is ignored.
type fields struct {
	rest []byte
	err  error
}

// skip reads a field of n bytes.
func (f *fields) skip(n int64) []byte {
	if f.err == nil && (n < 0 || n > int64(len(f.rest))) {
		f.err = errShort
	}
	if f.err != nil {
		return nil
	}
	field := f.rest[:n]
	f.rest = f.rest[n:]
	return field
}

func (f *fields) number() int32 {
	if field := f.skip(4); field != nil {
		return int32(binary.BigEndian.Uint32(field))
	}
	return 0
}

func (f *fields) flag() bool {
	field := f.skip(1)
	return field != nil && field[0] != 0
}

// nothing is the content of an answer that only says that it was done.
func (f *fields) nothing() {}

// text has a length, which the client takes for a number without a sign.
func (f *fields) text() { f.skip(int64(uint32(f.number()))) }

// buffer is a text, or nothing if its length is below 0.
func (f *fields) buffer() { f.skip(max(int64(f.number()), 0)) }

// stat is six numbers of 8 bytes and five of 4.
func (f *fields) stat() { f.skip(6*8 + 5*4) }

// acl is what one user may.
func (f *fields) acl() {
	f.number()
	f.text()
	f.text()
}

// list is a count and so many elements.
func (f *fields) list(element func(*fields)) {
	count := uint32(f.number())
	if f.err == nil && count > maxElements {
		f.err = fmt.Errorf("it lists %d elements, and %d are the most", count, maxElements)
	}
	for range count {
		if f.err != nil {
			return
		}
		element(f)
	}
}

// event is of a node, or of the session.
func (f *fields) event() {
	f.number()
	f.number()
	f.text()
}

// results are those of a transaction, and a header that ends them.
func (f *fields) results() {
	for range maxResults + 1 {
		op, last := f.number(), f.flag()
		f.number()
		if f.err != nil || last {
			return
		}
		switch op {
		case opCreate:
			f.text()
		case opSetData:
			f.stat()
		case opError:
			f.number()
		case opDelete:
		default:
			f.err = fmt.Errorf("a result of the kind %d, which was not asked", op)
		}
	}
	f.err = fmt.Errorf("more than %d results", maxResults)
}

// session is a new session: a version, how long it lasts without a ping, its number and password. The
// number 0 means that there is none.
func (f *fields) session() {
	f.number()
	lasts := time.Duration(f.number()) * time.Millisecond
	id := f.skip(8)
	f.buffer()
	if f.err == nil && !bytes.Equal(id, make([]byte, 8)) && (lasts < minTimeout || lasts > maxTimeout) {
		f.err = fmt.Errorf("a session of %s: set the server's minSessionTimeout and maxSessionTimeout so that %s is possible", lasts, sessionTimeout)
	}
}

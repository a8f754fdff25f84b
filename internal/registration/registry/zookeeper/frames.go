// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

const (
	// headerBytes is the size of the length field before each packet.
	headerBytes = 4
	// minPacket is the server's shortest packet, a reply without content.
	minPacket = 16
	// maxPacket is more than servers send by default, 1 MiB. A connection reads one at a time.
	maxPacket = 8 << 20
)

// frames is a connection that ends at a packet with an impossible length. The client
// trusts the length: it would panic at a short one, and allocate gigabytes if something
// other than ZooKeeper answers.
type frames struct {
	net.Conn
	header []byte // The rest of a length field to return.
	body   int    // The rest of its packet, in bytes.
}

// Read implements io.Reader. The client reads from one goroutine at a time.
func (f *frames) Read(p []byte) (int, error) {
	if len(f.header) == 0 && f.body == 0 {
		header := make([]byte, headerBytes)
		if _, err := io.ReadFull(f.Conn, header); err != nil {
			return 0, err
		}
		length := binary.BigEndian.Uint32(header)
		if length < minPacket || length > maxPacket {
			return 0, fmt.Errorf("a packet of %d bytes: this is no ZooKeeper, or the service has too many entries", length)
		}
		f.header, f.body = header, int(length)
	}
	if len(f.header) > 0 {
		n := copy(p, f.header)
		f.header = f.header[n:]
		return n, nil
	}
	n, err := f.Conn.Read(p[:min(len(p), f.body)])
	f.body -= n
	return n, err
}

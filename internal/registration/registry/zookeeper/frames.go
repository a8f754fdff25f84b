// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"bytes"
	"encoding/binary"
	"errors"
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
	packet io.Reader // The current one with its length field, nil before the first.
}

// Read implements io.Reader. The client reads from one goroutine at a time.
func (f *frames) Read(p []byte) (int, error) {
	for {
		if f.packet != nil {
			if n, err := f.packet.Read(p); n > 0 || !errors.Is(err, io.EOF) {
				return n, err
			}
		}
		header := make([]byte, headerBytes)
		if _, err := io.ReadFull(f.Conn, header); err != nil {
			return 0, err
		}
		length := binary.BigEndian.Uint32(header)
		if length < minPacket || length > maxPacket {
			return 0, fmt.Errorf("a packet of %d bytes: this is no ZooKeeper, or the service has too many entries", length)
		}
		f.packet = io.MultiReader(bytes.NewReader(header), io.LimitReader(f.Conn, int64(length)))
	}
}

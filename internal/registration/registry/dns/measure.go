// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

const (
	// recordBytes is about what a record takes in memory, apart from its texts.
	recordBytes = 100
	// stringBytes is what each text of a record takes, however short it is.
	stringBytes = 16
	// maxAnswer is how much one answer may take in memory. It is far more than 64 KiB of usual
	// records do.
	maxAnswer = 16 << 20
)

// nameAt is where a record's data has a name, by type.
var nameAt = map[uint16]int{dns.TypeSRV: 6, dns.TypeNS: 0, dns.TypeCNAME: 0, dns.TypeDNAME: 0, dns.TypeTSIG: 0}

var errMessage = errors.New("the message ends too early")

// measure returns about how many bytes a message takes in memory, before it is unpacked: two bytes that
// point to a name become one of up to a thousand characters, and an empty text takes 16 bytes. What
// measure cannot read, the library cannot unpack.
func measure(data []byte) (int, error) {
	const header, question, fixed = 12, 4, 10
	if len(data) < header {
		return 0, errMessage
	}
	count := func(section int) int { return int(binary.BigEndian.Uint16(data[4+2*section:])) }
	size, at := len(data), header
	for range count(0) {
		if at == len(data) {
			return size, nil
		}
		name, next, err := dns.UnpackDomainName(data, at)
		if err != nil {
			return 0, err
		}
		at = next + question
		size += recordBytes + len(name)
	}
	for range count(1) + count(2) + count(3) {
		if at >= len(data) {
			return size, nil // The library takes the counts for a lie, too.
		}
		name, next, err := dns.UnpackDomainName(data, at)
		if err != nil {
			return 0, err
		}
		if next+fixed > len(data) {
			return 0, errMessage
		}
		kind, length := binary.BigEndian.Uint16(data[next:]), int(binary.BigEndian.Uint16(data[next+8:]))
		next += fixed
		if next+length > len(data) {
			return 0, errMessage
		}
		size += recordBytes + len(name) + sizeOfData(kind, data[:next+length], next)
		if at = next + length; size > maxAnswer {
			return size, nil
		}
	}
	return size, nil
}

// sizeOfData returns about how many bytes a record's data take, which begin there and end with the message.
func sizeOfData(kind uint16, message []byte, at int) int {
	length := len(message) - at
	switch kind {
	case dns.TypeA, dns.TypeAAAA:
		return stringBytes
	case dns.TypeTXT:
		size := length
		for at < len(message) {
			at += 1 + int(message[at])
			size += stringBytes
		}
		return size
	case dns.TypeSOA, dns.TypeOPT:
		return stringBytes * length
	}
	offset, known := nameAt[kind]
	if !known || length <= offset {
		// It may consist of pointers to names.
		return length * maxPresented / 2
	}
	name, _, _ := dns.UnpackDomainName(message, at+offset) // A broken one ends the library's attempt, too.
	return 2*length + len(name)
}

// maxPresented is how long a name can be as text: 255 bytes, of which each may be escaped.
const maxPresented = 4 * 255

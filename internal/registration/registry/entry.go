// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// HostPort joins the entry's address and port.
func (e Entry) HostPort() string { return net.JoinHostPort(e.Address, strconv.Itoa(int(e.Port))) }

// SetHostPort splits a text into the entry's address and port. A text in another form is
// the address as a whole.
func (e *Entry) SetHostPort(text string) {
	e.Address = text
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return
	}
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		e.Address, e.Port = host, int32(number)
	}
}

// SetMetadata sets one key.
func (e *Entry) SetMetadata(key, value string) {
	if e.Metadata == nil {
		e.Metadata = map[string]string{}
	}
	e.Metadata[key] = value
}

// MarkedMetadata returns the entry's metadata and its owner's mark, for registries that
// store both together. check refuses keys and values. Errors are permanent.
func (e Entry) MarkedMetadata(check func(key, value string) error) (map[string]string, error) {
	meta := maps.Clone(e.Metadata)
	if meta == nil {
		meta = map[string]string{}
	}
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		err := check(key, meta[key])
		if strings.HasPrefix(key, MetaPrefix) {
			err = fmt.Errorf("the key %q begins like Usher's own: use another", key)
		}
		if err != nil {
			return nil, Permanent(fmt.Errorf("instance.metadata: %w", err))
		}
	}
	e.Owner.Mark(meta)
	return meta, nil
}

// SetMarkedMetadata sets the metadata that MarkedMetadata returned, without the mark and
// the keys that are not for callers.
func (e *Entry) SetMarkedMetadata(meta map[string]string, hidden func(key string) bool) {
	for key, value := range meta {
		if !strings.HasPrefix(key, MetaPrefix) && !hidden(key) {
			e.SetMetadata(key, value)
		}
	}
}

// Digest returns a short digest, for versions and names.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

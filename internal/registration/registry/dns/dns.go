// SPDX-License-Identifier: Apache-2.0

// Package dns keeps entries as records of a zone, through dynamic updates (RFC 2136)
// signed with a TSIG key (RFC 8945). For a service web in the zone svc.example.com, an
// instance is
//
//	_web._tcp.svc.example.com.   SRV  0 <weight> <port> <id>.web.svc.example.com.
//	<id>.web.svc.example.com.    A    10.0.0.7
//	<id>.web.svc.example.com.    TXT  {"id":…,"usher":{owner},"metadata":{…}}
//
// One message writes all three; the server applies it as a whole or not at all. The
// prerequisites are the address and TXT records as they were read. That is a
// compare-and-set against every writer who, like Usher, changes them together with the
// SRV record. If another writer changes only an SRV record at the same moment, the next
// List notices it. An SRV record without such a TXT record is foreign. So is one whose
// target is outside <service>.<zone>; it is listed by its full name.
//
// The protocol sets limits. A service name is a single label. The SRV records of a
// service must fit into one answer of 64 KiB, about 700 instances with ids of 40
// characters; more are refused. An id that cannot be a name is replaced by a digest.
package dns

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Keys of the credentials Secret.
const (
	// KeyName and KeySecret are the TSIG key. KeySecret is in base64, as tsig-keygen
	// prints it.
	KeyName   = "tsig.name"
	KeySecret = "tsig.secret"
	// KeyAlgorithm is one of hmac-sha224, -sha256 (the default), -sha384 and -sha512.
	KeyAlgorithm = "tsig.algorithm"
)

const (
	// defaultTTL is the TTL of records if spec.dns.ttl sets none, and maxTTL its maximum.
	defaultTTL = 5 * time.Second
	maxTTL     = 24 * time.Hour
	// maxName is the length of the longest name, without its trailing dot.
	maxName = 253
)

// algorithms are the unbroken ones.
var algorithms = []string{dns.HmacSHA224, dns.HmacSHA256, dns.HmacSHA384, dns.HmacSHA512}

var labels = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)
var oneWay = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,60}[a-z0-9])?$`)

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.DNSRegistry) *registry.Settings {
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: s.Zone, Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(s.Server, root, cmp.Or(ptr.Deref(s.TTL, metav1.Duration{}).Duration, defaultTTL), secret)
		},
	}
}

// Registry implements registry.Connector. Each call opens its own connections.
type Registry struct {
	server, zone string
	ttl          uint32 // In seconds.
	key          key
	// Now is the clock that stamps requests.
	Now func() time.Time
}

// key is a TSIG key. Without a name, nothing is signed.
type key struct {
	name, algorithm string
	// secret is in base64.
	secret string
}

// New checks what it gets but does not connect. The server is host:port of the zone's primary,
// because secondaries lag. Existing records keep their TTL until they change. The secret has the
// keys above; without any of them requests are unsigned, and the server must allow them by address. Errors
// are permanent and name the field or the Secret's key.
func New(server, zone string, ttl time.Duration, secret map[string][]byte) (*Registry, error) {
	if _, _, err := net.SplitHostPort(server); err != nil {
		return nil, registry.Permanent(errors.New("dns.server is not an address: write host:port of the zone's primary"))
	}
	name := strings.TrimSuffix(strings.ToLower(zone), ".")
	if len(name) > maxName || !labels.MatchString(name) {
		return nil, registry.Permanent(fmt.Errorf("dns.zone %q is not the name of a zone: write it like svc.example.com", zone))
	}
	signer, err := newKey(secret)
	if err != nil {
		return nil, registry.Permanent(err)
	}
	seconds := min(max(ttl, time.Second), maxTTL) / time.Second
	return &Registry{server: server, zone: name + ".", ttl: uint32(seconds), key: signer, Now: time.Now}, nil
}

func newKey(secret map[string][]byte) (key, error) {
	name, value := strings.TrimSpace(string(secret[KeyName])), strings.TrimSpace(string(secret[KeySecret]))
	if len(secret) == 0 {
		return key{}, nil
	}
	if name == "" || value == "" {
		return key{}, fmt.Errorf("the credentials Secret needs both %s and %s", KeyName, KeySecret)
	}
	if _, ok := dns.IsDomainName(name); !ok {
		return key{}, fmt.Errorf("the credentials Secret's %s is no name of a key", KeyName)
	}
	if _, err := base64.StdEncoding.DecodeString(value); err != nil {
		return key{}, fmt.Errorf("the credentials Secret's %s is not base64", KeySecret)
	}
	algorithm := cmp.Or(strings.TrimSpace(string(secret[KeyAlgorithm])), dns.HmacSHA256)
	algorithm = dns.Fqdn(strings.ToLower(algorithm))
	if !slices.Contains(algorithms, algorithm) {
		return key{}, fmt.Errorf("the credentials Secret's %s is unknown: use hmac-sha256 or another of SHA-2", KeyAlgorithm)
	}
	return key{name: dns.CanonicalName(name), algorithm: algorithm, secret: value}, nil
}

// names are the names of a service's records.
type names struct {
	// srv owns the SRV records; base is the suffix of their targets.
	srv, base string
}

func (r *Registry) names(service string) (names, error) {
	if !oneWay.MatchString(service) {
		return names{}, registry.Permanent(fmt.Errorf("service %q is not one label of a DNS name: "+
			"use up to 62 lower-case letters, digits, dashes and underscores", service))
	}
	return names{srv: "_" + service + "._tcp." + r.zone, base: service + "." + r.zone}, nil
}

// host returns the name of an instance.
func (n names) host(id string) string {
	if name := id + "." + n.base; labels.MatchString(id) && len(name) <= maxName+1 {
		return name
	}
	digest := sha256.Sum256([]byte(id))
	return "x-" + hex.EncodeToString(digest[:16]) + "." + n.base
}

// Ping implements registry.Connector: the server must know the key and be authoritative
// for the zone.
func (r *Registry) Ping(ctx context.Context) error {
	answers, err := r.ask(ctx, []dns.Question{{Name: r.zone, Qtype: dns.TypeSOA, Qclass: dns.ClassINET}})
	if err != nil {
		return err
	}
	if len(answers[0].Answer) == 0 {
		return registry.Permanent(fmt.Errorf("%s has no zone %s: correct dns.zone", r.server, r.zone))
	}
	return nil
}

// Close implements registry.Connector. There is nothing to free.
func (r *Registry) Close() error { return nil }

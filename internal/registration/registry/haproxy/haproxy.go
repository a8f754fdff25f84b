// SPDX-License-Identifier: Apache-2.0

// Package haproxy keeps entries as servers of HAProxy, through the runtime API
// (the stats socket) of one process or several. A service is the backend of the
// same name, an entry a dynamic server in it, which "add server" made.
//
// A server has no room for more than its name, address and weight. So the name
// says whose it is, <id>:usher:<cluster>:<registration>:<pod uid>, followed by
// :<namespace>:<pod> where the id does not tell them, and metadata is not kept
// (registry.Entry.NoMetadata). Servers of other names, those of the
// configuration file among them, are foreign and never touched.
//
// Removing drains: the server gets no new requests and stays listed, unsettled,
// until a Remove finds no session on it any more and deletes it. One that is held
// back has the weight 0, and is unsettled while it has a session.
//
// HAProxy cannot compare and set. Changes are compared with what the processes
// have just before they are made; only that a name is unique is HAProxy's own word.
//
// A reload or restart forgets dynamic servers. They are missing then, and
// written again when entries are compared. A reload leaves the old process to
// finish its requests, and nobody sees those.
package haproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// maxParallel bounds how many processes are spoken to at a time.
const maxParallel = 8

// serverOptions is what may follow an address in "add server": nothing that
// ends a command or begins another.
var serverOptions = regexp.MustCompile(`^[A-Za-z0-9_./:@=, -]*$`)

// Options say where HAProxy is.
type Options struct {
	// Addresses are the runtime APIs, one for each process that callers go
	// through: tcp://host:port, tls://host:port or unix:///path. An entry is
	// listed as in service when all of them have it, and as gone when none has.
	Addresses []string
	// ServerOptions are added to every "add server", such as "check inter 2s".
	ServerOptions string
	// Secret holds the keys that credentials.TLS reads, for addresses that begin
	// with tls://; the client certificate is the only way to prove who asks. It may
	// be nil.
	Secret map[string][]byte
}

// FromSpec reads the kind's field of a Registry.
func FromSpec(spec *usherv1alpha1.RegistrySpec, _ string) *registry.Settings {
	s := spec.HAProxy
	if s == nil {
		return nil
	}
	return &registry.Settings{
		Secret: s.CredentialsSecret, Connect: func(_ string, secret map[string][]byte) (registry.Connector, error) {
			return New(Options{Addresses: s.Addresses, ServerOptions: s.ServerOptions, Secret: secret})
		},
	}
}

// Registry implements registry.Connector. It keeps no connection: one that is
// open during a reload goes on speaking to the old process.
type Registry struct {
	targets []target
	options string
}

var _ registry.Connector = (*Registry)(nil)

// target is the runtime API of one process.
type target struct {
	network, address string
	tls              *tls.Config
}

// New checks the options and connects to nothing. Errors are permanent and name
// the field.
func New(options Options) (*Registry, error) {
	if len(options.Addresses) == 0 {
		return nil, registry.Permanent(errors.New("haproxy.addresses is empty: name the runtime API of each process"))
	}
	if !serverOptions.MatchString(options.ServerOptions) {
		return nil, registry.Permanent(errors.New("haproxy.serverOptions has a character that no server option needs: " +
			"use letters, digits, spaces and any of _ . / : @ = , -"))
	}
	r := &Registry{options: strings.TrimSpace(options.ServerOptions)}
	for _, address := range options.Addresses {
		t, err := parseTarget(address, options.Secret)
		if err != nil {
			return nil, registry.Permanent(err)
		}
		r.targets = append(r.targets, t)
	}
	return r, nil
}

func parseTarget(address string, secret map[string][]byte) (target, error) {
	u, err := url.Parse(address)
	if err != nil {
		u = &url.URL{}
	}
	switch u.Scheme {
	case "unix":
		if u.Host == "" && strings.HasPrefix(u.Path, "/") {
			return target{network: "unix", address: u.Path}, nil
		}
	case "tcp", "tls":
		if u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil {
			break
		}
		t := target{network: "tcp", address: u.Host}
		if u.Scheme == "tls" {
			t.tls, err = tlsConfig(u.Hostname(), secret)
		}
		return t, err
	}
	return target{}, errors.New("haproxy.addresses has one that cannot be used: " +
		"write tcp://host:port, tls://host:port or unix:///path")
}

func tlsConfig(host string, secret map[string][]byte) (*tls.Config, error) {
	config, err := credentials.TLS(secret)
	if err != nil {
		return nil, err
	}
	config.ServerName = host
	return config, nil
}

// Ping implements registry.Connector: every process has to answer, and to grant
// the level that adding servers needs.
func (r *Registry) Ping(ctx context.Context) error {
	return r.each(func(at int) error {
		return r.targets[at].with(ctx, func(s *session) error {
			answers, err := s.run("show cli level")
			if err != nil {
				return err
			}
			if level := strings.TrimSpace(answers[0]); level != "admin" {
				return registry.Permanent(fmt.Errorf("its runtime API grants the level %q: write \"level admin\" "+
					"behind its stats socket", registry.Excerpt(level)))
			}
			return nil
		})
	})
}

// List implements registry.Connector. All processes have to answer. A service
// without a backend is empty.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	views, err := r.look(ctx, service)
	if err != nil {
		return nil, err
	}
	entries := make([]registry.Entry, 0, len(views))
	for _, v := range views {
		entries = append(entries, v.entry)
	}
	return entries, nil
}

// Close implements registry.Connector. There is nothing to free.
func (r *Registry) Close() error { return nil }

// look asks every process what it has.
func (r *Registry) look(ctx context.Context, service string) ([]view, error) {
	if !plain.MatchString(service) {
		return nil, registry.Permanent(fmt.Errorf(
			"service %q can be no backend: use letters, digits, dots, dashes and underscores", service))
	}
	found := make([][]server, len(r.targets))
	err := r.each(func(at int) error {
		return r.targets[at].with(ctx, func(s *session) error {
			var err error
			found[at], err = s.servers(service)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return r.merge(found), nil
}

// each calls a function for every process, in parallel, and joins the errors in
// the order of the addresses.
func (r *Registry) each(call func(at int) error) error {
	return errors.Join(registry.Each(len(r.targets), maxParallel, call)...)
}

// String names the process for people.
func (t target) String() string { return "HAProxy " + t.address }

func (t target) dial(ctx context.Context) (net.Conn, error) {
	dialer := &net.Dialer{}
	if t.tls != nil {
		return (&tls.Dialer{NetDialer: dialer, Config: t.tls}).DialContext(ctx, t.network, t.address)
	}
	return dialer.DialContext(ctx, t.network, t.address)
}

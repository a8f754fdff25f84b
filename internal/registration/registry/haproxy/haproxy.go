// SPDX-License-Identifier: Apache-2.0

// Package haproxy keeps entries as servers of HAProxy, through the runtime API (the
// stats socket) of one or more processes. A service is the backend of the same name. An
// entry is a dynamic server in it, created with "add server".
//
// A server stores only a name, an address and a weight. So its name identifies the
// owner: <id>:usher:<cluster>:<registration>:<pod uid>, followed by :<namespace>:<pod>
// if the id does not contain them. Metadata is not kept (registry.Entry.NoMetadata).
// Servers with other names, including those of the configuration file, are foreign and
// never touched.
//
// Removing drains: the server gets no new requests and stays listed, unsettled, until a
// Remove finds no session on it and deletes it. A server that is held back has the
// weight 0, and is unsettled while it has a session.
//
// HAProxy has no compare-and-set. Changes are compared with the processes' state just
// before they are made; HAProxy itself guarantees only that a name is unique.
//
// A reload or restart loses dynamic servers. They are then missing, and rewritten when
// entries are next compared. After a reload the old process finishes its requests,
// which nobody can see.
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

// maxParallel limits how many processes are contacted at a time.
const maxParallel = 8

// serverOptions matches what may follow an address in "add server": nothing that ends a
// command or begins another.
var serverOptions = regexp.MustCompile(`^[A-Za-z0-9_./:@=, -]*$`)

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.HAProxyRegistry) *registry.Settings {
	return &registry.Settings{
		Secret: s.CredentialsSecret, Connect: func(_ string, secret map[string][]byte) (registry.Connector, error) {
			return New(s, secret)
		},
	}
}

// Registry implements registry.Connector. It keeps no connection open, because a
// connection that survives a reload keeps talking to the old process.
type Registry struct {
	targets []target
	// options are appended to every "add server", for example "check inter 2s".
	options string
}

// target is the runtime API of one process.
type target struct {
	network, address string
	dial             func(ctx context.Context, network, address string) (net.Conn, error)
}

// New checks the spec but does not connect. An entry is listed as in service if the processes at
// all addresses have it, and as gone if none has it. The secret has the keys that credentials.TLS
// reads, for tls:// addresses, or is nil: the client certificate is the only authentication.
// Errors are permanent and name the field.
func New(s *usherv1alpha1.HAProxyRegistry, secret map[string][]byte) (*Registry, error) {
	if len(s.Addresses) == 0 {
		return nil, registry.Permanent(errors.New("haproxy.addresses is empty: list the runtime API of each process"))
	}
	if !serverOptions.MatchString(s.ServerOptions) {
		return nil, registry.Permanent(errors.New("haproxy.serverOptions contains a character that is not allowed: " +
			"use letters, digits, spaces and any of _ . / : @ = , -"))
	}
	r := &Registry{options: strings.TrimSpace(s.ServerOptions)}
	for _, address := range s.Addresses {
		t, err := parseTarget(address, secret)
		if err != nil {
			return nil, registry.Permanent(err)
		}
		r.targets = append(r.targets, t)
	}
	return r, nil
}

func parseTarget(address string, secret map[string][]byte) (target, error) {
	switch u, err := url.Parse(address); {
	case err != nil:
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return target{"unix", u.Path, (&net.Dialer{}).DialContext}, nil
	case u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil:
	case u.Scheme == "tcp":
		return target{"tcp", u.Host, (&net.Dialer{}).DialContext}, nil
	case u.Scheme == "tls":
		config, err := credentials.TLS(secret)
		return target{"tcp", u.Host, (&tls.Dialer{Config: config}).DialContext}, err
	}
	return target{}, errors.New("haproxy.addresses has one that cannot be used: " +
		"write tcp://host:port, tls://host:port or unix:///path")
}

// Ping implements registry.Connector: every process must answer, and grant the level
// that adding servers requires.
func (r *Registry) Ping(ctx context.Context) error {
	return r.each(ctx, func(_ int, s *session) error {
		answers, err := s.run("show cli level")
		if err != nil {
			return err
		}
		if level := strings.TrimSpace(answers[0]); level != "admin" {
			return registry.Permanent(fmt.Errorf("its runtime API grants only the level %q: add \"level admin\" "+
				"to its stats socket", registry.Excerpt(level)))
		}
		return nil
	})
}

// List implements registry.Connector. All processes must answer. A service without a
// backend is empty.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	views, err := r.look(ctx, service)
	return registry.Listed(views, err, view.asEntry)
}

// Close implements registry.Connector. There is nothing to free.
func (r *Registry) Close() error { return nil }

// look asks every process for its servers.
func (r *Registry) look(ctx context.Context, service string) ([]view, error) {
	if !plain.MatchString(service) {
		return nil, registry.Permanent(fmt.Errorf(
			"service %q cannot be the name of a backend: use letters, digits, dots, dashes and underscores", service))
	}
	found := make([][]server, len(r.targets))
	err := r.each(ctx, func(at int, s *session) (err error) {
		found[at], err = s.servers(service)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r.merge(found), nil
}

// each calls a function with a session of every process, in parallel, and joins the errors in
// the order of the addresses.
func (r *Registry) each(ctx context.Context, call func(at int, s *session) error) error {
	return errors.Join(registry.Each(ctx, len(r.targets), maxParallel, func(at int) error {
		return r.targets[at].with(ctx, func(s *session) error { return call(at, s) })
	})...)
}

// String names the process for messages.
func (t target) String() string { return "HAProxy " + t.address }

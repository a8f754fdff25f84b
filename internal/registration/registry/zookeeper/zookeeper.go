// SPDX-License-Identifier: Apache-2.0

// Package zookeeper keeps entries in ZooKeeper, in the layout of Curator's service
// discovery or of Dubbo's providers.
//
// Nodes are persistent: an ephemeral node would disappear with its writer's session. An
// entry is one node, because callers of every version understand its removal; not all
// know Curator's flag enabled.
package zookeeper

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/semaphore"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// parallel limits how many requests of one call run at once. They share a connection.
const parallel = 32

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.ZooKeeperRegistry) *registry.Settings {
	l := layoutOf(s.Layout)
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: cmp.Or(s.Path, l.path()), Obeyed: l.obeyed,
		Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(s.Servers, s.Layout, root, s.TLS, secret)
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	root   string
	layout layout
	dialer *dialer
}

// layout translates between entries and nodes.
type layout interface {
	// path is where callers look by default.
	path() string
	// obeyed is registry.Settings.Obeyed.
	obeyed(key, value string) bool
	// folder returns the folder of a service's nodes, relative to the root.
	folder(service string) string
	// encode returns a node's name and content. Errors are permanent.
	encode(service string, entry registry.Entry) (name string, data []byte, err error)
	// decode never fails: a node that Usher did not write is an entry without an owner.
	decode(name string, data []byte) registry.Entry
}

func layoutOf(name usherv1alpha1.ZooKeeperLayout) layout {
	if name == usherv1alpha1.LayoutDubbo {
		return dubbo{}
	}
	return curator{}
}

// New checks what it gets but does not connect. The servers are the members, each as
// host:port, and the root is the path of all services. The secret has the login for the digest
// scheme, and the certificates for an encrypted connection, or is nil. Errors are permanent and
// name the field or the Secret's key.
func New(servers []string, layout usherv1alpha1.ZooKeeperLayout, root string, encrypted bool, secret map[string][]byte) (*Registry, error) {
	if len(servers) == 0 {
		return nil, registry.Permanent(errors.New("zookeeper.servers is empty: list the members as host:port"))
	}
	var auth []byte
	if user, password := secret[credentials.KeyUsername], secret[credentials.KeyPassword]; len(user)+len(password) > 0 {
		if len(user) == 0 || len(password) == 0 || bytes.ContainsRune(user, ':') {
			return nil, registry.Permanent(fmt.Errorf("the credentials Secret needs both %s and %s, and no colon in the first",
				credentials.KeyUsername, credentials.KeyPassword))
		}
		auth = slices.Concat(user, []byte(":"), password)
	}
	plain := &net.Dialer{Timeout: dialTimeout}
	d := &dialer{servers: servers, auth: auth, dial: plain.DialContext, turn: semaphore.NewWeighted(1)}
	if encrypted {
		config, err := credentials.TLS(secret)
		if err != nil {
			return nil, registry.Permanent(err)
		}
		d.dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext // its handshake included
	}
	return &Registry{root: "/" + strings.Trim(root, "/"), layout: layoutOf(layout), dialer: d}, nil
}

// Ping implements registry.Connector. ZooKeeper accepts any credentials; wrong ones
// fail only where an ACL requires the right ones.
func (r *Registry) Ping(ctx context.Context) error {
	return r.dialer.run(ctx, func(conn *zk.Conn) error {
		_, _, err := conn.Get(r.root)
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		return err
	})
}

// List implements registry.Connector. The queried member first catches up with the
// leader. An instance with Curator's flag enabled set to false has the weight 0,
// because Curator's callers skip it.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	var nodes []node
	err := r.dialer.run(ctx, func(conn *zk.Conn) (err error) {
		nodes, err = r.read(ctx, conn, service)
		return err
	})
	return registry.Listed(nodes, err, node.asEntry)
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	r.dialer.close()
	return nil
}

// node is an entry as it is stored.
type node struct {
	name  string
	stat  *zk.Stat
	entry registry.Entry
}

func (n node) asEntry() registry.Entry { return n.entry }

func (r *Registry) folder(service string) string { return r.root + "/" + r.layout.folder(service) }

// read returns the service's nodes.
func (r *Registry) read(ctx context.Context, conn *zk.Conn, service string) ([]node, error) {
	folder := r.folder(service)
	if _, err := conn.Sync(folder); err != nil {
		return nil, fmt.Errorf("synchronise: %w", err)
	}
	names, _, err := conn.Children(folder)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", folder, err)
	}
	if err := registry.Take(ctx, registry.EntryBytes*len(names)); err != nil {
		return nil, err
	}
	found := make([]*node, len(names))
	errs := registry.Each(ctx, len(names), parallel, func(i int) error {
		data, stat, err := conn.Get(folder + "/" + names[i])
		if errors.Is(err, zk.ErrNoNode) {
			return nil // It was removed in the meantime.
		}
		if err != nil {
			return fmt.Errorf("read an entry of %s: %w", folder, err)
		}
		if err := registry.Take(ctx, max(len(names[i])+len(data)-registry.EntryBytes, 0)); err != nil {
			return err
		}
		found[i] = &node{name: names[i], stat: stat, entry: r.layout.decode(names[i], data)}
		return nil
	})
	if err := cmp.Or(errs...); err != nil { // One stands for all.
		return nil, err
	}
	return distinct(found), nil
}

// distinct gives every node a version and a unique ID. If several nodes have one
// entry's ID, someone must have copied it: the oldest keeps the ID.
func distinct(found []*node) []node {
	found = slices.DeleteFunc(found, func(n *node) bool { return n == nil })
	slices.SortFunc(found, func(a, b *node) int { return cmp.Compare(a.stat.Czxid, b.stat.Czxid) })
	nodes, seen := make([]node, 0, len(found)), map[string]bool{}
	for _, n := range found {
		if seen[n.entry.ID] {
			n.entry.ID = n.name
		}
		seen[n.entry.ID] = true
		n.entry.Version = strconv.FormatInt(n.stat.Mzxid, 10)
		nodes = append(nodes, *n)
	}
	return nodes
}

// errStale means that a node has changed since it was read.
var errStale = errors.New("it changed since it was read")

// step is a change on its way to ZooKeeper.
type step struct {
	change registry.Change
	// there is the entry's current node, nil for none.
	there *node
	name  string
	data  []byte
}

// Apply implements registry.Connector. It compares the changes with a list that it
// reads first; the writes carry the node versions from that list. Only one concurrent
// change goes unnoticed: a node that was removed and recreated in between has its old
// version again.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, error) { return r.round(ctx, service, changes) })
}

// round makes the changes once, and returns those that conflicted with other writes.
func (r *Registry) round(ctx context.Context, service string, changes []registry.Change) (again []registry.Change, err error) {
	var refused []error
	err = r.dialer.run(ctx, func(conn *zk.Conn) (failed error) {
		nodes, err := r.read(ctx, conn, service)
		if err != nil {
			return err
		}
		steps, no := r.steps(service, changes, nodes)
		refused = append(refused, no)
		var acl []zk.ACL
		if slices.ContainsFunc(steps, func(s step) bool { return s.change.Op == registry.Put }) {
			if acl, err = prepare(conn, r.folder(service)); err != nil {
				return err
			}
		}
		errs := registry.Each(ctx, len(steps), parallel, func(n int) error { return steps[n].make(conn, r.folder(service), acl) })
		for i, err := range errs {
			switch change := steps[i].change; {
			case errors.Is(err, errStale):
				again = append(again, change)
			case errors.Is(typed(err), registry.ErrPermanent):
				refused = append(refused, change.Refused(typed(err)))
			default:
				failed = cmp.Or(failed, err) // One stands for all: it concerns the connection.
			}
		}
		return failed
	})
	return again, errors.Join(append(refused, err)...)
}

// steps compares the changes with the current nodes.
func (r *Registry) steps(service string, changes []registry.Change, nodes []node) (steps []step, refused error) {
	return registry.Decide(nodes, node.asEntry, changes, func(change registry.Change, there *node) (step, error) {
		if change.Op == registry.Remove {
			return step{change: change, there: there, name: there.name}, nil
		}
		name, data, err := r.layout.encode(service, change.Entry)
		return step{change: change, there: there, name: name, data: data}, err
	})
}

func (s step) make(conn *zk.Conn, folder string, acl []zk.ACL) error {
	path, err := folder+"/"+s.name, error(nil)
	switch {
	case s.change.Op == registry.Remove:
		err = conn.Delete(path, s.there.stat.Version)
	case s.there == nil:
		_, err = conn.Create(path, s.data, 0, acl)
	case s.there.name == s.name:
		_, err = conn.Set(path, s.data, s.there.stat.Version)
	default:
		// The name contains what callers read. One transaction replaces the old node by
		// the new one, so that callers always see the instance exactly once.
		err = moved(conn.Multi(
			&zk.DeleteRequest{Path: folder + "/" + s.there.name, Version: s.there.stat.Version},
			&zk.CreateRequest{Path: path, Data: s.data, Acl: acl}))
	}
	if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return err
}

// moved returns why a transaction failed: the error of the operation that caused it.
func moved(results []zk.MultiResponse, err error) error {
	for _, result := range results {
		if result.Error != nil && !errors.Is(result.Error, zk.ErrAPIError) {
			return result.Error
		}
	}
	return err
}

// prepare creates a folder, and those around it, unless it is there. It returns the ACL for
// its nodes: new nodes inherit that of their parent, so that the owner of the root decides.
// Empty folders stay, because callers watch them.
func prepare(conn *zk.Conn, folder string) ([]zk.ACL, error) {
	acl, _, err := conn.GetACL(folder)
	if err == nil {
		return unmasked(acl), nil
	}
	if !errors.Is(err, zk.ErrNoNode) || folder == "/" {
		return nil, fmt.Errorf("read the ACL of %s: %w", folder, err)
	}
	if acl, err = prepare(conn, path.Dir(folder)); err != nil {
		return nil, err
	}
	if _, err := conn.Create(folder, nil, 0, acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return nil, fmt.Errorf("create %s: %w", folder, err)
	}
	return acl, nil
}

// unmasked replaces the users that the server shows as <name>:x with ourselves. The
// server masks users in this way from anyone without the right to administer the node,
// and an ACL with a masked user would match nobody.
func unmasked(acl []zk.ACL) []zk.ACL {
	seen := slices.DeleteFunc(slices.Clone(acl), func(a zk.ACL) bool { return a.Scheme == "digest" && strings.HasSuffix(a.ID, ":x") })
	if len(seen) < len(acl) {
		seen = append(seen, zk.AuthACL(zk.PermAll)...)
	}
	return seen
}

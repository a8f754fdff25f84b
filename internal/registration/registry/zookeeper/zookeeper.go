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
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// parallel limits how many requests of one call run at once. They share a connection.
const parallel = 32

// Layout is the layout of entries.
type Layout string

const (
	// Curator is <path>/<service>/<id> with the JSON of a ServiceInstance. An entry's
	// metadata is its payload.
	Curator Layout = "Curator"
	// Dubbo is <path>/<interface>/providers/<URL>. The service is the interface. An
	// entry's metadata become parameters of the URL.
	Dubbo Layout = "Dubbo"
)

// DefaultPath returns where callers of that layout look by default.
func DefaultPath(layout Layout) string {
	if layout == Dubbo {
		return "dubbo"
	}
	return "services"
}

// Options locate ZooKeeper.
type Options struct {
	// Servers are the members, each as host:port.
	Servers []string
	// Layout is the layout of the entries.
	Layout Layout
	// Path is the path of all services, without leading or trailing slashes. Default:
	// DefaultPath.
	Path string
	// Secret holds the login for the digest scheme, under the keys of package credentials.
	// It may be nil.
	Secret map[string][]byte
}

// FromSpec reads the kind's field from a Registry's spec.
func FromSpec(spec *usherv1alpha1.RegistrySpec, _ string) *registry.Settings {
	s := spec.ZooKeeper
	if s == nil {
		return nil
	}
	layout := cmp.Or(Layout(s.Layout), Curator)
	obeyed := map[Layout]func(key, value string) bool{Curator: obeyedByCurator, Dubbo: obeyedByDubbo}
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: cmp.Or(s.Path, DefaultPath(layout)), Obeyed: obeyed[layout],
		Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(Options{Servers: s.Servers, Layout: layout, Path: root, Secret: secret})
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
	// folder returns the folder of a service's nodes, relative to the root.
	folder(service string) string
	// encode returns a node's name and content. Errors are permanent.
	encode(service string, entry registry.Entry) (name string, data []byte, err error)
	// decode never fails: a node that Usher did not write is an entry without an owner.
	decode(name string, data []byte) registry.Entry
}

// New checks the options but does not connect. Errors are permanent and name the field
// or the Secret's key.
func New(options Options) (*Registry, error) {
	if len(options.Servers) == 0 {
		return nil, registry.Permanent(errors.New("zookeeper.servers is empty: list the members as host:port"))
	}
	layouts := map[Layout]layout{Curator: curator{}, Dubbo: dubbo{}}
	known := layouts[options.Layout]
	if known == nil {
		return nil, registry.Permanent(fmt.Errorf("zookeeper.layout %q is unknown: use %s or %s", options.Layout, Curator, Dubbo))
	}
	var auth []byte
	if user, password := options.Secret[credentials.KeyUsername], options.Secret[credentials.KeyPassword]; len(user)+len(password) > 0 {
		if len(user) == 0 || len(password) == 0 || bytes.ContainsRune(user, ':') {
			return nil, registry.Permanent(fmt.Errorf("the credentials Secret needs both %s and %s, and no colon in the first",
				credentials.KeyUsername, credentials.KeyPassword))
		}
		auth = slices.Concat(user, []byte(":"), password)
	}
	return &Registry{
		root:   "/" + strings.Trim(cmp.Or(options.Path, DefaultPath(options.Layout)), "/"),
		layout: known,
		dialer: newDialer(options.Servers, auth),
	}, nil
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
	if err != nil {
		return nil, err
	}
	return registry.Entries(nodes, node.asEntry), nil
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

// read returns the service's nodes, sorted by the IDs of their entries.
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
	found := make([]*node, len(names))
	var taken registry.Taken
	errs := registry.Each(ctx, len(names), parallel, func(i int) error {
		data, stat, err := conn.Get(folder + "/" + names[i])
		if errors.Is(err, zk.ErrNoNode) {
			return nil // It was removed in the meantime.
		}
		if err != nil {
			return fmt.Errorf("read an entry of %s: %w", folder, err)
		}
		found[i] = &node{name: names[i], stat: stat, entry: r.layout.decode(names[i], data)}
		return taken.Add(data)
	})
	if err := cmp.Or(errs...); err != nil { // One stands for all.
		return nil, err
	}
	return distinct(found), nil
}

// distinct gives every node a version and a unique ID. If several nodes have one
// entry's ID, someone must have copied it: the oldest keeps the ID.
func distinct(found []*node) []node {
	nodes := make([]node, 0, len(found))
	for _, n := range found {
		if n != nil {
			n.entry.Version = strconv.FormatInt(n.stat.Mzxid, 10)
			nodes = append(nodes, *n)
		}
	}
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.stat.Czxid, b.stat.Czxid) })
	seen := map[string]bool{}
	for i, n := range nodes {
		if seen[n.entry.ID] {
			nodes[i].entry.ID = n.name
		}
		seen[n.entry.ID] = true
	}
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.entry.ID, b.entry.ID) })
	return nodes
}

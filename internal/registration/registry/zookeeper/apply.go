// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// errStale says that a node is not as it was when it was read.
var errStale = errors.New("it changed since it was read")

// step is a change on its way to ZooKeeper.
type step struct {
	change registry.Change
	// there is the node that the entry has, nil for none.
	there *node
	name  string
	data  []byte
}

// Apply implements registry.Connector. Changes are compared with a list that is
// read first; the writes carry the versions of the nodes in that list. A node
// that somebody removes and makes anew in between has its old version again: the
// one change of others that is not noticed.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes); err != nil {
		return err
	}
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, []error, error) {
		return r.round(ctx, service, changes)
	})
}

// round makes the changes once, and returns those that met others' writes.
func (r *Registry) round(
	ctx context.Context, service string, changes []registry.Change,
) (again []registry.Change, refused []error, err error) {
	err = r.dialer.run(ctx, func(conn *zk.Conn) error {
		nodes, err := r.read(conn, service)
		if err != nil {
			return err
		}
		steps, no := r.steps(service, changes, nodes)
		refused = no
		acl, err := r.prepare(conn, r.folder(service), steps)
		if err != nil {
			return err
		}
		results := registry.Each(len(steps), parallel, func(n int) error { return steps[n].make(conn, r.folder(service), acl) })
		again, no, err = sortOut(steps, results)
		refused = append(refused, no...)
		return err
	})
	return again, refused, err
}

// sortOut tells results that concern one change from those of the connection.
func sortOut(steps []step, results []error) (again []registry.Change, refused []error, err error) {
	for i, result := range results {
		change := steps[i].change
		switch {
		case result == nil:
		case errors.Is(result, errStale):
			again = append(again, change)
		case errors.Is(typed(result), registry.ErrPermanent), errors.Is(result, zk.ErrNotEmpty):
			refused = append(refused, &registry.ChangeError{ID: change.Entry.ID, Err: registry.Permanent(explain(result))})
		case err == nil:
			err = result
		}
	}
	return again, refused, err
}

// steps compares the changes with what is there.
func (r *Registry) steps(service string, changes []registry.Change, nodes []node) (steps []step, refused []error) {
	byID := map[string]*node{}
	for i := range nodes {
		byID[nodes[i].entry.ID] = &nodes[i]
	}
	needed, refused := registry.Compare(entries(nodes), changes)
	for _, change := range needed {
		s, err := r.step(service, change, byID[change.Entry.ID])
		if err != nil {
			refused = append(refused, &registry.ChangeError{ID: change.Entry.ID, Err: err})
			continue
		}
		steps = append(steps, s)
	}
	return steps, refused
}

func (r *Registry) step(service string, change registry.Change, there *node) (s step, err error) {
	s = step{change: change, there: there}
	if change.Op == registry.Remove {
		s.name = there.name
		return s, nil
	}
	s.name, s.data, err = r.layout.encode(service, change.Entry)
	return s, err
}

// make makes the change.
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
		// The name holds what callers read: the new node comes with the old one's
		// end, so that the instance is always there once.
		err = moved(conn.Multi(
			&zk.DeleteRequest{Path: folder + "/" + s.there.name, Version: s.there.stat.Version},
			&zk.CreateRequest{Path: path, Data: s.data, Acl: acl}))
	}
	if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return err
}

// moved is why a transaction failed: the one operation that was to blame says it.
func moved(results []zk.MultiResponse, err error) error {
	for _, result := range results {
		if result.Error != nil && !errors.Is(result.Error, zk.ErrAPIError) {
			return result.Error
		}
	}
	return err
}

// prepare makes the folder if a step needs it, and returns the ACL of its nodes:
// what is made has the ACL of where it is made, so that whoever owns the root
// decides. Folders stay when they are empty, as callers watch them.
func (r *Registry) prepare(conn *zk.Conn, folder string, steps []step) ([]zk.ACL, error) {
	needed := false
	for _, s := range steps {
		needed = needed || s.change.Op == registry.Put
	}
	if !needed {
		return nil, nil
	}
	at, missing := folder, []string{}
	for {
		acl, _, err := conn.GetACL(at)
		if err == nil {
			acl = unmasked(acl)
			return acl, create(conn, missing, acl)
		}
		if !errors.Is(err, zk.ErrNoNode) || at == "/" {
			return nil, fmt.Errorf("read the ACL of %s: %w", at, err)
		}
		missing = append([]string{at}, missing...)
		at = at[:strings.LastIndex(at, "/")]
		if at == "" {
			at = "/"
		}
	}
}

// unmasked puts ourselves in the place of users that the server shows as
// <name>:x, as it does to those who may not administer the node: an ACL with
// such a user is one that nobody has.
func unmasked(acl []zk.ACL) []zk.ACL {
	seen := slices.DeleteFunc(slices.Clone(acl), func(a zk.ACL) bool {
		return a.Scheme == "digest" && strings.HasSuffix(a.ID, ":x")
	})
	if len(seen) < len(acl) {
		seen = append(seen, zk.AuthACL(zk.PermAll)...)
	}
	return seen
}

// create makes folders, outermost first.
func create(conn *zk.Conn, folders []string, acl []zk.ACL) error {
	for _, folder := range folders {
		if _, err := conn.Create(folder, nil, 0, acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("create %s: %w", folder, err)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/usher-dev/usher/internal/registration/registry"
)

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
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, error) {
		return r.round(ctx, service, changes)
	})
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
		acl, err := r.prepare(conn, r.folder(service), steps)
		if err != nil {
			return err
		}
		errs := registry.Each(ctx, len(steps), parallel, func(n int) error { return steps[n].make(conn, r.folder(service), acl) })
		for i, err := range errs {
			switch change := steps[i].change; {
			case errors.Is(err, errStale):
				again = append(again, change)
			case err != nil && (errors.Is(typed(err), registry.ErrPermanent) || errors.Is(err, zk.ErrNotEmpty)):
				refused = append(refused, change.Refused(registry.Permanent(explain(err))))
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
	refused = registry.Decide(nodes, node.asEntry, changes, func(change registry.Change, there *node) (err error) {
		s := step{change: change, there: there}
		if change.Op == registry.Put {
			s.name, s.data, err = r.layout.encode(service, change.Entry)
		} else {
			s.name = s.there.name
		}
		if err == nil {
			steps = append(steps, s)
		}
		return err
	})
	return steps, refused
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

// prepare creates the folder if a step needs it, and returns the ACL for its nodes. New
// nodes inherit the ACL of their parent, so that the owner of the root decides. Empty
// folders stay, because callers watch them.
func (r *Registry) prepare(conn *zk.Conn, folder string, steps []step) ([]zk.ACL, error) {
	if !slices.ContainsFunc(steps, func(s step) bool { return s.change.Op == registry.Put }) {
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
		at = path.Dir(at)
	}
}

// unmasked replaces the users that the server shows as <name>:x with ourselves. The
// server masks users in this way from anyone without the right to administer the node,
// and an ACL with a masked user would match nobody.
func unmasked(acl []zk.ACL) []zk.ACL {
	seen := slices.DeleteFunc(slices.Clone(acl), func(a zk.ACL) bool {
		return a.Scheme == "digest" && strings.HasSuffix(a.ID, ":x")
	})
	if len(seen) < len(acl) {
		seen = append(seen, zk.AuthACL(zk.PermAll)...)
	}
	return seen
}

// create creates folders, outermost first.
func create(conn *zk.Conn, folders []string, acl []zk.ACL) error {
	for _, folder := range folders {
		if _, err := conn.Create(folder, nil, 0, acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("create %s: %w", folder, err)
		}
	}
	return nil
}

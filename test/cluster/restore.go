// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/usher-dev/usher/test/cluster/build"
)

// Snapshot copies what the cluster has in etcd, and its keys, to a folder that does not exist yet. etcd and the API
// server are away for a moment, as etcd's own files are copied.
func (c *Cluster) Snapshot(ctx context.Context, dir string) error {
	return c.between(ctx, []string{build.APIServer, build.Etcd}, func() error {
		return errors.Join(copyDir(dir, "etcd", c.layout.path("etcd")), copyDir(dir, "pki", c.layout.path("pki")))
	})
}

// Restore takes the cluster back to a snapshot of its own: resourceVersions go back, as with etcdutl's restore and no
// --bump-revision. All components restart, as Kubernetes' documentation asks for; what else watches does not.
func (c *Cluster) Restore(ctx context.Context, snapshot string) error {
	return c.between(ctx, []string{build.Scheduler, build.ControllerManager, build.APIServer, build.Etcd}, func() error {
		if err := os.RemoveAll(c.layout.path("etcd")); err != nil {
			return fmt.Errorf("remove what is in etcd: %w", err)
		}
		return copyDir(c.layout.dir, "etcd", layout{dir: snapshot}.path("etcd"))
	})
}

// between ends the components of these binaries in this order, does something, and starts them again.
func (c *Cluster) between(ctx context.Context, binaries []string, do func() error) error {
	for _, binary := range binaries {
		for _, name := range c.names(binary) {
			end := func() error { return c.Kill(name) }
			if binary == build.Etcd {
				end = func() error { return c.Drain(ctx, name) }
			}
			if err := end(); err != nil {
				return err
			}
		}
	}
	if err := do(); err != nil {
		return err
	}
	for _, binary := range slices.Backward(binaries) {
		for _, name := range c.names(binary) {
			if err := c.Restart(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyDir copies a folder into another one, which is made if it is missing.
func copyDir(into, name, from string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(layout{dir: into}.path(name), os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// fromSnapshot begins with what another cluster had.
func (c *Cluster) fromSnapshot() error {
	if c.opts.Snapshot == "" {
		return nil
	}
	return copyDir(c.layout.dir, "etcd", layout{dir: c.opts.Snapshot}.path("etcd"))
}

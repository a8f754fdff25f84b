// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strconv"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/servers/run"
)

// EtcdOptions configures StartEtcd. The zero value works.
type EtcdOptions struct {
	// Port is the client port on 127.0.0.1; 0 means a free one.
	Port int
	// ExtraArgs are appended to etcd's arguments; of a repeated flag, the last one
	// wins.
	ExtraArgs []string
}

// Etcd is a single-member etcd independent of the control plane, for instance as a
// service registry. After Kill, Restart brings it back with its port and data.
type Etcd struct {
	*run.Process
	endpoint string
}

// StartEtcd starts an etcd with its data and log in dir, which is created if missing;
// existing data is kept. ctx bounds the start (and the build of etcd if it is missing),
// not the life of the process.
func StartEtcd(ctx context.Context, dir string, opts EtcdOptions) (*Etcd, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	binaries, err := build.Ensure(ctx, build.Etcd)
	if err != nil {
		return nil, err
	}
	free, err := run.FreePorts(ctx, 2)
	if err != nil {
		return nil, err
	}
	if opts.Port != 0 {
		free[0] = opts.Port
	}
	client := strconv.Itoa(free[0])
	values := map[string]string{"DATA": filepath.Join(dir, "data"), "CLIENT": client, "PEER": strconv.Itoa(free[1])}
	e := &Etcd{endpoint: "http://" + net.JoinHostPort(loopback, client)}
	e.Process, err = run.Start(ctx, run.Spec{
		Name: build.Etcd, Path: binaries.Path(build.Etcd), Log: filepath.Join(dir, "etcd.log"),
		Args:  flags(etcdFlags, values, opts.ExtraArgs),
		Ready: func(ctx context.Context) error { return get(ctx, http.DefaultClient, e.Endpoint()+"/health") },
	})
	return e, err
}

// Endpoint is the client URL, for instance "http://127.0.0.1:23790". Kill and Restart do
// not change it.
func (e *Etcd) Endpoint() string { return e.endpoint }

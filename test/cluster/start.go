// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/servers/run"
)

// Start builds what is missing, starts a control plane and returns when it is usable:
// the API server is ready, the default namespace has its service account, and the
// controller manager and the scheduler are healthy. ctx bounds the build and the start,
// not the cluster's life; Stop ends that.
//
// Errors: *process.ExitError if a component ended, for instance because Options.Port is
// taken.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	lock, err := claim(dir)
	if err != nil {
		return nil, err
	}
	c, err := startLocked(ctx, opts, layout{dir: dir}, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return c, nil
}

func startLocked(ctx context.Context, opts Options, l layout, lock *flock.Flock) (*Cluster, error) {
	binaries, err := build.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	opts.Progress.Line("Starting Kubernetes %s on %s in %s.", binaries.Kubernetes, loopback, l.dir)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the start took longer than %s", startTimeout))
	defer cancel()
	if err := l.reset(); err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, layout: l, binaries: binaries, lock: lock}
	c.well, c.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	if err = c.start(ctx); err == nil {
		return c, nil
	}
	for name := range c.PIDs() {
		err = errors.Join(err, c.end(name, (*process.Process).Kill))
	}
	return nil, errors.Join(err, c.ha.close())
}

// start runs the components in the order of their dependencies.
func (c *Cluster) start(ctx context.Context) (err error) {
	if err := c.configure(ctx); err != nil {
		return err
	}
	// If a component ends while another one starts, the start fails.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.well, func() { cancel(c.Err()) })() //nolint:contextcheck // two contexts are what it is about
	// Each stage starts its components at once and waits until all are ready. The API
	// server's clients start only when it is ready: a client that is refused once,
	// because RBAC is not there yet, would back off for longer than it gained.
	for _, stage := range [][]string{{build.Etcd}, {build.APIServer}, {build.ControllerManager, build.Scheduler}} {
		var starting errgroup.Group
		for _, part := range list.Only(c.parts, func(p part) bool { return slices.Contains(stage, p.binary) }) {
			starting.Go(func() error {
				return c.opts.Progress.Task(part.name, func() (string, error) { return "ready", c.startPart(ctx, part) })
			})
		}
		if err := starting.Wait(); err != nil {
			return err
		}
	}
	// Until then, no Pod can be created in the default namespace.
	return c.process(build.ControllerManager).WaitReady(ctx, func(ctx context.Context) error {
		return get(ctx, c.client, c.Server()+"/api/v1/namespaces/default/serviceaccounts/default")
	})
}

// configure chooses ports, and writes what the components read.
func (c *Cluster) configure(ctx context.Context) error {
	members, servers := c.opts.HA.size()
	free, err := run.FreePorts(ctx, 2*members+servers+2)
	if err != nil {
		return err
	}
	next := func() string {
		port := free[0]
		free = free[1:]
		return strconv.Itoa(port)
	}
	c.values = map[string]string{
		"DIR": c.layout.dir, "AUDIT": c.opts.AuditLog, "SERVICES": ServiceRange, "CONTROLLERS": next(), "SCHEDULER": next(),
	}
	var etcds, apis []part
	for i := range members {
		etcds = append(etcds, c.newPart(build.Etcd, i, members, map[string]string{
			"NAME": fmt.Sprintf("dev-%d", i+1), "DATA": c.layout.path("etcd", strconv.Itoa(i+1)), "CLIENT": next(), "PEER": next(),
		}))
	}
	for i := range servers {
		apis = append(apis, c.newPart(build.APIServer, i, servers, map[string]string{
			"CLIENT": etcds[i%members].values["CLIENT"], "API": next(),
		}))
	}
	if c.opts.HA == nil && c.opts.Port != 0 {
		apis[0].values["API"] = strconv.Itoa(c.opts.Port)
	}
	c.parts = slices.Concat(etcds, apis, []part{
		c.newPart(build.ControllerManager, 0, 1, nil), c.newPart(build.Scheduler, 0, 1, nil),
	})
	c.server = Fill("127.0.0.1:$API", apis[0].values)
	if err := c.connect(ctx, etcds); err != nil {
		return err
	}
	now := time.Now()
	if err := c.fromSnapshot(); err != nil {
		return err
	}
	if c.identity, err = newIdentity(c.layout, c.opts.Snapshot, now); err != nil {
		return err
	}
	if err := c.identity.writeKubeconfigs(c.layout, c.Server(), now); err != nil {
		return err
	}
	if c.client, err = rest.HTTPClientFor(c.RESTConfig()); err != nil {
		return err
	}
	c.balance()
	return errors.Join(
		writeFile(c.layout.config("kube-scheduler.yaml"), []byte(Fill(schedulerConfig, c.values)), 0o644),
		writeFile(c.layout.config("audit-policy.yaml"), []byte(cmp.Or(c.opts.AuditPolicy, auditPolicy)), 0o644))
}

// connect makes what is between members of etcd, and the balancer before API servers.
func (c *Cluster) connect(ctx context.Context, etcds []part) (err error) {
	if c.opts.HA != nil {
		if c.ha, err = newHA(ctx, c, etcds); err != nil {
			return err
		}
		c.server = c.ha.balancer.Address()
	}
	var all []string
	for i, p := range etcds {
		p.values["ADVERTISED"] = p.values["PEER"]
		if c.ha != nil {
			p.values["ADVERTISED"] = c.ha.peerPort(i)
		}
		all = append(all, Fill("$NAME=http://127.0.0.1:$ADVERTISED", p.values))
	}
	for _, p := range etcds {
		p.values["MEMBERS"] = strings.Join(all, ",")
	}
	return nil
}

// startPart starts one component, watches it, and waits until it is healthy.
func (c *Cluster) startPart(ctx context.Context, part part) error {
	p, err := c.spawn(part)
	if err != nil {
		return err
	}
	return c.awaitPart(ctx, part, p)
}

// spawn starts a component, and watches it.
func (c *Cluster) spawn(part part) (*process.Process, error) {
	p, err := process.Start(process.Spec{
		Name: part.name, Path: c.binaries.Path(part.binary), Args: c.args(part), Dir: c.layout.dir, Log: c.layout.log(part.name), Failed: c.fail,
	})
	if err == nil {
		c.running.Store(part.name, p)
	}
	return p, err
}

// awaitPart waits until a component is healthy.
func (c *Cluster) awaitPart(ctx context.Context, part part, p *process.Process) error {
	health := Fill(components[part.binary].health, part.values)
	return p.WaitReady(ctx, func(ctx context.Context) error { return get(ctx, c.client, health) })
}

const (
	// startTimeout bounds a start, without the build.
	startTimeout = 2 * time.Minute
	// probeTimeout bounds one health request to a component.
	probeTimeout = 2 * time.Second
	dialTime     = 5 * time.Second
	// keepAlive is how soon the client of an etcd notices that it is back.
	keepAlive = 2 * time.Second
)

// get returns nil if a URL answers with success.
func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := run.HTTP{Client: client, Header: http.Header{
		// Readers of the audit log recognize our requests by this name.
		"User-Agent": {"usher-devcluster"},
		// A kept-alive connection to a component that has ended would be tried first.
		"Connection": {"close"},
	}}.Do(ctx, http.MethodGet, url, nil, new(string))
	return err
}

// EtcdOptions configures StartEtcd. The zero value works.
type EtcdOptions struct {
	// Port is the client port on 127.0.0.1; 0 means a free one.
	Port int
	// ExtraArgs are appended to etcd's arguments; of a repeated flag, the last one
	// wins.
	ExtraArgs []string
}

// Etcd is a single-member etcd independent of the control plane, for instance as a
// service registry, and a client of it. After Kill, Restart brings it back with its port and data.
type Etcd struct {
	*run.Process
	Client *clientv3.Client
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
	port := strconv.Itoa(free[0])
	peer := strconv.Itoa(free[1])
	values := map[string]string{
		"NAME": "dev", "DATA": filepath.Join(dir, "data"), "CLIENT": port, "PEER": peer, "ADVERTISED": peer,
		"MEMBERS": "dev=http://127.0.0.1:" + peer,
	}
	endpoint := "http://" + net.JoinHostPort(loopback, port)
	process, err := run.Start(ctx, run.Spec{
		Name: build.Etcd, Path: binaries.Path(build.Etcd), Log: filepath.Join(dir, "etcd.log"),
		Args:  flags(etcdFlags, values, opts.ExtraArgs),
		Ready: func(ctx context.Context) error { return get(ctx, http.DefaultClient, endpoint+"/health") },
	})
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: dialTime, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		Logger: zap.NewNop(), // Its outages are intended.
	})
	if err != nil {
		return nil, errors.Join(err, process.Close())
	}
	return &Etcd{process, client}, nil
}

// Endpoint returns the client URL, for instance "http://127.0.0.1:23790". Kill and Restart do not
// change it.
func (e *Etcd) Endpoint() string { return e.Client.Endpoints()[0] }

// Close ends the client, and the process for good.
func (e *Etcd) Close() error { return errors.Join(e.Client.Close(), e.Process.Close()) }

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/usher-dev/usher/test/cluster"
)

const (
	etcdPrefix = "services"
	dialTime   = 5 * time.Second
	keepAlive  = 2 * time.Second
)

// etcd is a registry: the server and the callers' client.
type etcd struct {
	server *cluster.Etcd
	client *clientv3.Client
}

// close ends both; nil is allowed.
func (e *etcd) close() error {
	if e == nil {
		return nil
	}
	var errs []error
	if e.client != nil {
		errs = append(errs, e.client.Close())
	}
	return errors.Join(append(errs, e.server.Kill())...)
}

func (s *session) startEtcd(kind Registry) func(context.Context) error {
	return func(ctx context.Context) error {
		port := portOf(kind)
		server, err := cluster.StartEtcd(ctx, s.path(string(kind)), cluster.EtcdOptions{
			Port: port, ExtraArgs: []string{fmt.Sprintf("--listen-client-urls=http://0.0.0.0:%d", port)},
		})
		if err != nil {
			return err
		}
		started := &etcd{server: server}
		s.etcds[kind] = started
		started.client, err = clientv3.New(clientv3.Config{
			Endpoints: []string{server.Endpoint()}, DialTimeout: dialTime,
			DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
			Logger: zap.NewNop(), // Its outages are part of the stories.
		})
		return err
	}
}

// KillEtcd kills the story's own etcd; StartEtcd restarts it with its data.
func (s *Scene) KillEtcd() {
	s.Step("kill etcd")
	s.Check(s.session.etcds[OwnEtcd].server.Kill())
}

// StartEtcd undoes KillEtcd.
func (s *Scene) StartEtcd() {
	s.Step("etcd is back")
	s.Check(s.session.etcds[OwnEtcd].server.Restart(s.ctx))
}

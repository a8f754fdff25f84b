// SPDX-License-Identifier: Apache-2.0

package stage

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
	dialTime = 5 * time.Second
	// keepAlive is how soon callers notice that a registry is back.
	keepAlive = 2 * time.Second
)

// Etcd is a service registry, unrelated to Kubernetes, and the callers' client of it.
type Etcd struct {
	*cluster.Etcd
	Client *clientv3.Client
}

// StartEtcd starts a registry that lives as long as the stage.
func (s *Stage) StartEtcd(ctx context.Context, name string, options cluster.EtcdOptions) (*Etcd, error) {
	server, err := cluster.StartEtcd(ctx, s.Path(name), options)
	if err != nil {
		return nil, fmt.Errorf("the registry %s: %w", name, err)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server.Endpoint()}, DialTimeout: dialTime, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		Logger: zap.NewNop(), // Its outages are intended.
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the registry %s: %w", name, err), server.Close())
	}
	s.AtEnd(func(context.Context) error { return errors.Join(client.Close(), server.Close()) })
	return &Etcd{server, client}, nil
}

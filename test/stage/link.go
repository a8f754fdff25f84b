// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"net/url"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/usher-dev/usher/test/cluster/link"
)

// NewLink listens on loopback as long as the stage lives. A connection goes to the first of the
// targets, host:port, that accepts it. Unless ready is nil, only targets for which it returns true are
// tried; it gets their index.
func (s *Stage) NewLink(ctx context.Context, ready func(target int) bool, targets ...string) (*link.Link, error) {
	l, err := link.Listen(ctx, link.Options{Ready: ready}, targets...)
	if err == nil {
		s.AtEnd(func(context.Context) error { return l.Close() })
	}
	return l, err
}

// Through writes a kubeconfig that reaches the server of another one through a link.
func (s *Stage) Through(ctx context.Context, kubeconfig, path string) (*link.Link, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(s.Cluster.Server())
	if err != nil {
		return nil, err
	}
	l, err := s.NewLink(ctx, nil, server.Host)
	if err != nil {
		return nil, err
	}
	for _, one := range config.Clusters {
		one.Server = "https://" + l.Address()
	}
	return l, clientcmd.WriteToFile(*config, path)
}

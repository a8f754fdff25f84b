// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"slices"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/link"
	"github.com/usher-dev/usher/test/stage"
)

// peersApart is the round trip between members of etcd: that between zones of a cloud.
const peersApart = 2 * time.Millisecond

// kinds are the faults of Usher and its surroundings that can come. With a highly available control plane those come
// that have to do with who reaches whom; a run without it has the others.
func (s *soak) kinds() []kind {
	if !s.options.HA {
		return usherFaults
	}
	too := []string{usherKilled, leaderStopped, watchesCut}
	return slices.Concat(haFaults, list.Only(usherFaults, func(k kind) bool { return slices.Contains(too, k.name) }))
}

// haBegins are how the faults of a highly available control plane begin. What they return ends them.
func (s *soak) haBegins() map[string]func(context.Context, fault) (func(context.Context) error, error) {
	c := s.Cluster
	type end = func(context.Context) error
	restart := func(name string) end { return func(ctx context.Context) error { return c.Restart(ctx, name) } }
	return map[string]func(context.Context, fault) (end, error){
		// The member that leads, or the one of the first API server.
		memberLost: func(ctx context.Context, f fault) (end, error) {
			member := c.Members()[0]
			if f.which > 0 {
				leads, err := c.Leader(ctx)
				if err != nil {
					return nil, err
				}
				member = leads
			}
			return restart(member), c.Kill(member)
		},
		leaderMoved: func(ctx context.Context, _ fault) (end, error) { return nothing, s.moveLeader(ctx) },
		memberLags: func(ctx context.Context, f fault) (end, error) {
			member := c.Members()[f.which]
			return func(ctx context.Context) error { return c.Lag(ctx, member, 0) }, c.Lag(ctx, member, f.roundTrip)
		},
		oneKilled: func(_ context.Context, f fault) (end, error) {
			name := c.APIServers()[f.which]
			return restart(name), c.Kill(name)
		},
		oneDrained: func(ctx context.Context, f fault) (end, error) {
			name := c.APIServers()[f.which]
			return restart(name), c.Drain(ctx, name)
		},
		oneApart: func(_ context.Context, f fault) (end, error) {
			links := list.Map(s.replicas, func(r *replica) *link.Link { return r.link })
			return apart(links, f.which), nil
		},
		registryApart: func(_ context.Context, f fault) (end, error) {
			return apart([]*link.Link{s.registries[f.which].link}, 0), nil
		},
	}
}

// nothing ends a fault that is over at once.
func nothing(context.Context) error { return nil }

// apart holds back what goes to a target of links, until the end is called.
func apart(links []*link.Link, target int) (end func(context.Context) error) {
	hold := func(yes bool) {
		for _, l := range links {
			l.Hold(target, yes)
		}
	}
	hold(true)
	return func(context.Context) error { hold(false); return nil }
}

// moveLeader makes the member after the one that leads etcd lead it.
func (s *soak) moveLeader(ctx context.Context) error {
	members := s.Cluster.Members()
	return stage.Try(ctx, back, "another leader of etcd", func(ctx context.Context) error {
		leads, err := s.Cluster.Leader(ctx)
		if err != nil {
			return err
		}
		return s.Cluster.MoveLeader(ctx, members[(slices.Index(members, leads)+1)%len(members)])
	})
}

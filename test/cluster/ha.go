// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/link"
)

// HA is a control plane as production has it: three members of etcd, and API servers behind a TCP balancer. API
// server 1 uses member 1 only, as in clusters where both are on one machine, API server 2 member 2, and so on. The
// controller manager and the scheduler are one each, and come through the balancer as everybody does.
type HA struct {
	// APIServers is how many there are; 0 means 2.
	APIServers int
	// RoundTrip is the latency between members of etcd, as between zones of a cloud; 0 means none.
	RoundTrip time.Duration
}

const (
	haMembers, haServers = 3, 2
	// probeEvery is how often the balancer asks each API server whether it is ready.
	probeEvery = 500 * time.Millisecond
	// unreadyFor is how long an API server may be unready until the balancer cuts its connections. It gets no new ones
	// from the first failed probe on. One that drains, or has crashed, ends them sooner.
	unreadyFor = 15 * time.Second
	// askTime bounds a request to a member of etcd.
	askTime = 5 * time.Second
)

// size returns how many members of etcd and API servers there are.
func (o *HA) size() (members, servers int) {
	if o == nil {
		return 1, 1
	}
	return haMembers, cmp.Or(o.APIServers, haServers)
}

// highlyAvailable is what a cluster of several API servers has in addition.
type highlyAvailable struct {
	balancer *link.Link
	ready    []atomic.Bool // of the API servers
	peers    []*link.Link  // before the members of etcd
	clients  []string      // the URLs of the members

	mu      sync.Mutex
	lags    []time.Duration // of the members
	senders map[string]int  // the members, by their IDs
}

// newHA listens for the API servers and the members of etcd, of which none runs yet.
func newHA(ctx context.Context, c *Cluster, etcds []part) (h *highlyAvailable, err error) {
	address := func(name string) func(part) string {
		return func(p part) string { return net.JoinHostPort(loopback, p.values[name]) }
	}
	servers := list.Map(list.Only(c.parts, func(p part) bool { return p.values["API"] != "" }), address("API"))
	h = &highlyAvailable{
		ready: make([]atomic.Bool, len(servers)), lags: make([]time.Duration, len(etcds)), senders: map[string]int{},
		clients: list.Map(list.Map(etcds, address("CLIENT")), func(address string) string { return "http://" + address }),
	}
	balancing := link.Options{Rotate: true, Ready: func(i int) bool { return h.ready[i].Load() }}
	h.balancer, err = link.ListenOn(ctx, net.JoinHostPort(loopback, strconv.Itoa(c.opts.Port)), balancing, servers...)
	if err != nil {
		return nil, err
	}
	for i, p := range etcds {
		l, err := link.Listen(ctx, link.Options{Sender: sender, Delay: h.lag(i)}, address("PEER")(p))
		if err != nil {
			return nil, errors.Join(err, h.close())
		}
		l.Slow(c.opts.HA.RoundTrip)
		h.peers = append(h.peers, l)
	}
	return h, nil
}

func (h *highlyAvailable) close() error {
	if h == nil {
		return nil
	}
	errs := list.Map(h.peers, (*link.Link).Close)
	if h.balancer != nil {
		errs = append(errs, h.balancer.Close())
	}
	return errors.Join(errs...)
}

// peerPort returns the port where other members reach a member.
func (h *highlyAvailable) peerPort(member int) string {
	_, port, _ := net.SplitHostPort(h.peers[member].Address()) // A listener's address has one.
	return port
}

// fromHeader is in each request of a member of etcd to another one.
var fromHeader = []byte(textproto.CanonicalMIMEHeaderKey("X-Server-From") + ": ")

// sender returns the ID of the member of etcd that a connection is from. Members answer on the connections of
// others as well, so that a connection carries what both say.
func sender(first []byte) string {
	_, rest, found := bytes.Cut(first, fromHeader)
	id, _, ended := bytes.Cut(rest, []byte("\r\n"))
	if !found || !ended {
		return ""
	}
	return string(id)
}

// lag returns how slow data on the connections to a member is.
func (h *highlyAvailable) lag(member int) func(sender string) time.Duration {
	return func(sender string) time.Duration {
		h.mu.Lock()
		defer h.mu.Unlock()
		delay := h.lags[member]
		if from, known := h.senders[sender]; known {
			delay = max(delay, h.lags[from])
		}
		return delay
	}
}

// balance asks the API servers whether they are ready, until the cluster is stopped.
func (c *Cluster) balance() {
	if c.ha == nil {
		return
	}
	for i, p := range list.Only(c.parts, func(p part) bool { return p.binary == build.APIServer }) {
		go c.probe(i, Fill(components[p.binary].health, p.values))
	}
}

// probe asks an API server whether it is ready, and cuts its connections when it has not been for too long.
func (c *Cluster) probe(server int, health string) {
	ready := time.Now()
	for c.well.Err() == nil {
		err := get(c.well, c.client, health)
		c.ha.ready[server].Store(err == nil)
		if err == nil {
			ready = time.Now()
		} else if time.Since(ready) > unreadyFor {
			c.ha.balancer.CutTarget(server)
		}
		select {
		case <-c.well.Done():
		case <-time.After(probeEvery):
		}
	}
}

// ServerAddresses lists host:port of each API server, in the order of APIServers.
func (c *Cluster) ServerAddresses() []string {
	servers := list.Only(c.parts, func(p part) bool { return p.binary == build.APIServer })
	return list.Map(servers, func(p part) string { return Fill("127.0.0.1:$API", p.values) })
}

// Lag makes a member of etcd slow: what it and the others say to each other takes that long in each direction. Its
// API server's cache, and what it answers to those who ask for no particular version, lag behind by as much. 0 ends
// that. The cluster must be HA.
func (c *Cluster) Lag(ctx context.Context, member string, by time.Duration) error {
	at := slices.Index(c.Members(), member)
	if err := c.learnSenders(ctx); err != nil {
		return err
	}
	c.ha.mu.Lock()
	defer c.ha.mu.Unlock()
	c.ha.lags[at] = by
	return nil
}

// learnSenders asks etcd for its members' IDs.
func (c *Cluster) learnSenders(ctx context.Context) error {
	return c.askMember(ctx, c.ha.clients, func(ctx context.Context, etcd *clientv3.Client) error {
		found, err := etcd.MemberList(ctx)
		if err != nil {
			return err
		}
		c.ha.mu.Lock()
		defer c.ha.mu.Unlock()
		for _, m := range found.Members {
			at := slices.IndexFunc(c.parts, func(p part) bool { return p.values["NAME"] == m.Name })
			c.ha.senders[strconv.FormatUint(m.ID, 16)] = at
		}
		return nil
	})
}

// askMember asks etcd at some of its URLs.
func (c *Cluster) askMember(ctx context.Context, urls []string, ask func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: dialTime, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	return errors.Join(ask(ctx, etcd), etcd.Close())
}

// Leader returns the member of etcd that leads. The cluster must be HA.
func (c *Cluster) Leader(ctx context.Context) (name string, err error) {
	var errs []error
	for i, member := range c.Members() {
		err := c.askMember(ctx, c.ha.clients[i:i+1], func(ctx context.Context, etcd *clientv3.Client) error {
			status, err := etcd.Status(ctx, c.ha.clients[i])
			if err == nil && status.Leader == status.Header.MemberId {
				name = member
			}
			return err
		})
		if errs = append(errs, err); name != "" {
			return name, nil
		}
	}
	return "", errors.Join(append(errs, errors.New("no member of etcd leads"))...)
}

// MoveLeader makes another member of etcd lead. The cluster must be HA.
func (c *Cluster) MoveLeader(ctx context.Context, to string) error {
	from, err := c.Leader(ctx)
	if err != nil || from == to {
		return err
	}
	at := slices.Index(c.Members(), from)
	return c.askMember(ctx, c.ha.clients[at:at+1], func(ctx context.Context, etcd *clientv3.Client) error {
		found, err := etcd.Status(ctx, c.ha.clients[slices.Index(c.Members(), to)])
		if err != nil {
			return err
		}
		_, err = etcd.MoveLeader(ctx, found.Header.MemberId)
		return err
	})
}

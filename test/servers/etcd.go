// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/servers/run"
)

const (
	kindEtcd  = "etcd"
	rangeCall = "Range"
	prefix    = "services"
	root      = prefix + "/" + Service + "/"
	rawRoot   = prefix + "/raw/"
)

// etcd is a real etcd. Unlike the API server's, it syncs its writes to disk.
type etcd struct {
	*cluster.Etcd
	version string

	keys   sync.Map     // by UID
	ranges atomic.Int64 // requested by Watch
}

func startEtcd(ctx context.Context, dir string) (Server, error) {
	process, err := cluster.StartEtcd(ctx, dir, cluster.EtcdOptions{ExtraArgs: []string{"--unsafe-no-fsync=false"}})
	if err != nil {
		return nil, err
	}
	status, err := process.Client.Status(ctx, process.Endpoint())
	if err != nil {
		return nil, errors.Join(err, process.Close())
	}
	return &etcd{Etcd: process, version: status.Version}, nil
}

func (e *etcd) Name() string { return "etcd " + e.version }

func (e *etcd) Spec() v1alpha1.RegistrySpec {
	return v1alpha1.RegistrySpec{Etcd: &v1alpha1.EtcdRegistry{Endpoints: []string{e.Endpoint()}, Prefix: prefix}}
}

// Put writes a value of the same size as Usher's.
func (e *etcd) Put(ctx context.Context, name string) error {
	_, err := e.Client.Put(ctx, rawRoot+name, fmt.Sprintf(`{"Op":0,"Addr":"127.0.0.1:8080","Metadata":`+
		`{"usher":{"cluster":"00000000-0000-0000-0000-000000000000","namespace":"measure","registration":"web",`+
		`"pod":%q,"uid":"00000000-0000-0000-0000-000000000000"},"weight":1}}`, name))
	return err
}

func (e *etcd) Remove(ctx context.Context, name string) error {
	_, err := e.Client.Delete(ctx, rawRoot+name)
	return err
}

func (e *etcd) Evict(ctx context.Context, uid string) error {
	key, watched := e.keys.Load(uid)
	if !watched {
		return fmt.Errorf("evict the entry of Pod %s: %w", uid, errNotWatched)
	}
	_, err := e.Client.Delete(ctx, key.(string))
	return err
}

func (e *etcd) Calls(ctx context.Context) (Calls, error) {
	families, err := run.HTTP{Address: e.Endpoint()}.Metrics(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	calls := Calls{}
	for _, m := range families["grpc_server_handled_total"].GetMetric() {
		if n := int(m.GetCounter().GetValue()); label(m, "grpc_service") == "etcdserverpb.KV" && n > 0 {
			calls[label(m, "grpc_method")] += n
		}
	}
	calls[rangeCall] -= int(e.ranges.Load())
	return calls, nil
}

func (e *etcd) Watch(ctx context.Context, report func(Sighting)) error {
	began := time.Now()
	answer, err := e.Client.Get(ctx, root, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("watch etcd: %w", err)
	}
	e.ranges.Add(1)
	for _, kv := range answer.Kvs {
		e.compare(nil, kv, began, report)
	}
	// With a leader required, a disconnected watch ends instead of waiting.
	watched := e.Client.Watch(clientv3.WithRequireLeader(ctx), root, clientv3.WithPrefix(),
		clientv3.WithPrevKV(), clientv3.WithRev(answer.Header.Revision+1))
	for batch := range watched {
		if err := batch.Err(); err != nil {
			return fmt.Errorf("watch etcd: %w", err)
		}
		for _, event := range batch.Events {
			now := event.Kv
			if event.Type == clientv3.EventTypeDelete {
				now = nil
			}
			e.compare(event.PrevKv, now, time.Now(), report)
		}
	}
	if ctx.Err() == nil {
		return errors.New("the watch of etcd has ended")
	}
	return nil
}

func (e *etcd) compare(before, after *mvccpb.KeyValue, since time.Time, report func(Sighting)) {
	was, is := choiceOf(before), choiceOf(after)
	for key, one := range is {
		e.keys.Store(one.uid, key)
	}
	was.changes(is, since, report)
}

// choiceOf returns what one key makes available to callers.
func choiceOf(kv *mvccpb.KeyValue) choice {
	if kv == nil {
		return nil
	}
	var stored struct {
		Addr     string
		Metadata struct {
			Weight int                  `json:"weight"`
			Usher  struct{ UID string } `json:"usher"`
		}
	}
	if json.Unmarshal(kv.Value, &stored) != nil || stored.Addr == "" || stored.Metadata.Weight < 1 {
		return nil
	}
	return choice{string(kv.Key): {uid: stored.Metadata.Usher.UID, life: uint64(kv.CreateRevision)}}
}

// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"net"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// endless answers every read with more than a connector may take.
type endless struct {
	etcdserverpb.UnimplementedKVServer
}

func (*endless) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("services/web/a"), Value: make([]byte, registry.MaxAnswer)}}}, nil
}

// TestAnswersAreBounded: no registry can take the process's memory.
func TestAnswersAreBounded(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	registrytest.NoError(t, err)
	server := grpc.NewServer(grpc.MaxSendMsgSize(2 * registry.MaxAnswer))
	etcdserverpb.RegisterKVServer(server, &endless{})
	go func() { _ = server.Serve(listener) }() // It ends with Stop.
	t.Cleanup(server.Stop)
	r, err := New(Options{Endpoints: []string{"http://" + listener.Addr().String()}, Prefix: "services"})
	registrytest.NoError(t, err)
	defer func() { _ = r.Close() }() // Nothing is open any more.
	_, err = r.List(t.Context(), "web")
	registrytest.Check(t, "an endless list", err, registry.ErrPermanent)
	if !strings.Contains(err.Error(), "spread the instances over several services") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/test/cluster/node"
)

// Port is where Pods serve.
const Port = 8080

// Loopback is where a Pod with an address serves in fact: API servers refuse loopback addresses in EndpointSlices, so
// Pods have others there.
func Loopback(address string) string {
	_, rest, _ := strings.Cut(address, ".")
	return "127." + rest
}

// FromLoopback is the opposite of Loopback.
func FromLoopback(address string) string {
	_, rest, _ := strings.Cut(address, ".")
	return "10." + rest
}

// Serving is a runtime whose containers serve HTTP in this process, until they get SIGTERM, which cuts what is in
// flight.
type Serving struct{ node.Runtime }

// Address implements node.Runtime. Simulated addresses may collide; a Pod gets one that nobody serves.
func (s Serving) Address(pod types.UID) (string, error) {
	for n := range 64 {
		address, err := s.Runtime.Address(types.UID(fmt.Sprint(pod, n)))
		if err != nil {
			return "", err
		}
		listener, err := listen(address)
		if err == nil {
			return address, listener.Close()
		}
	}
	return "", fmt.Errorf("no free address for Pod %s", pod)
}

func listen(address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(Loopback(address), strconv.Itoa(Port)))
}

// Start implements node.Runtime.
func (s Serving) Start(c node.ContainerConfig) (node.Instance, error) {
	instance, err := s.Runtime.Start(c)
	if err != nil {
		return nil, err
	}
	listener, err := listen(c.IP)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(serve), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until it is closed
	return serving{instance, server}, nil
}

// serve answers /slow?d=SPAN after that time, and all else at once.
func serve(_ http.ResponseWriter, r *http.Request) {
	slow, err := time.ParseDuration(r.URL.Query().Get("d"))
	if err != nil {
		return
	}
	select {
	case <-time.After(slow):
	case <-r.Context().Done():
	}
}

type serving struct {
	node.Instance
	server *http.Server
}

// Terminate implements node.Instance.
func (s serving) Terminate() {
	_ = s.server.Close() // what is in flight is cut
	s.Instance.Terminate()
}

// Kill implements node.Instance.
func (s serving) Kill() {
	_ = s.server.Close() // as above
	s.Instance.Kill()
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func addressed(uid types.UID, ip string, ports ...int32) *corev1.Pod {
	object := buildPod()
	object.UID, object.Status.PodIP = uid, ip
	for _, port := range ports {
		object.Spec.Containers[0].Ports = append(object.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: port})
	}
	return object
}

func newTestPool(t *testing.T, seed uint32) *addressPool {
	t.Helper()
	pool := newAddressPool(seed)
	t.Cleanup(pool.close)
	return pool
}

func take(t *testing.T, pool *addressPool, object *corev1.Pod) string {
	t.Helper()
	ip, err := pool.take(object)
	if err != nil {
		t.Fatal(err)
	}
	return ip
}

func TestAddressesAreEachPodsOwn(t *testing.T) {
	const seed = 77
	one, other := newTestPool(t, seed), newTestPool(t, seed) // two clusters that start at the same address
	a := take(t, one, addressed("a", ""))
	if again := take(t, one, addressed("a", "")); again != a {
		t.Errorf("the Pod's address changed from %s to %s", a, again)
	}
	b, c := take(t, one, addressed("b", "")), take(t, other, addressed("c", ""))
	if a == b || a == c || b == c {
		t.Errorf("addresses %s, %s and %s are not distinct", a, b, c)
	}
	one.release("a")
	if d := take(t, one, addressed("d", "")); d == a {
		t.Errorf("address %s is given out again at once", a)
	}
	if e := take(t, other, addressed("e", a)); e != a {
		t.Errorf("address %s, want %s from the status, which is free", e, a)
	}
	if f := take(t, one, addressed("f", a)); f == a {
		t.Errorf("address %s is another Pod's", a)
	}
	if g := take(t, one, addressed("g", "10.0.0.1")); !strings.HasPrefix(g, "127.") {
		t.Errorf("address %s is not of this machine", g)
	}
}

func TestAddressWhosePortIsTaken(t *testing.T) {
	probe := newTestPool(t, 78)
	first := take(t, probe, addressed("a", ""))
	probe.release("a")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", first+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	if ip := take(t, newTestPool(t, 78), addressed("b", "", port)); ip == first {
		t.Errorf("%s is given out, though its port %d is taken", ip, port)
	}
}

func TestNoAddress(t *testing.T) {
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	_, err = newTestPool(t, 79).take(addressed("a", "", int32(port)))
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("error %v, want one that names port %d", err, port)
	}
}

func TestFollowingAddress(t *testing.T) {
	for from, want := range map[string]string{
		"127.77.1.0": "127.77.1.1", "127.77.1.254": "127.77.2.1", "127.77.255.254": "127.78.0.1", "127.255.255.254": "127.1.0.1",
	} {
		if got := following(netip.MustParseAddr(from)).String(); got != want {
			t.Errorf("following(%s) = %s, want %s", from, got, want)
		}
	}
}

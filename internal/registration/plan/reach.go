// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Registrations have Usher call Pods: their applications, and those that say whether requests are under way. Tenants write
// Registrations, and may write the status of Pods. They must not have Usher call whom they like: a loopback or link-local
// address is no Pod's, and a Pod in its node's network shares its address with the kubelet.

// ownAddress reads an address that the Pod says is its own.
func (s *Snapshot) ownAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	address = address.Unmap()
	reachable := address.IsGlobalUnicast() || address.IsLoopback() && s.LoopbackPods
	if err != nil || !reachable || address.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("its address %s is none of a Pod's own, and Usher asks nobody else", registry.Excerpt(text))
	}
	return address, nil
}

// inNodeNetwork reports whether the address is the node's, too.
func inNodeNetwork(pod *corev1.Pod, address netip.Addr) bool {
	hosts := []string{pod.Status.HostIP}
	for _, host := range pod.Status.HostIPs {
		hosts = append(hosts, host.IP)
	}
	for _, host := range hosts {
		if own, err := netip.ParseAddr(host); err == nil && own.Unmap() == address {
			return true
		}
	}
	return false
}

// portToCall is a port of the Pod; the error names the field that chose it.
func portToCall(pod *corev1.Pod, port intstr.IntOrString, field string) (uint16, error) {
	number := portOf(pod, port)
	if number <= 0 || number > 65535 {
		return 0, fmt.Errorf("no container of it has a port named %q: correct %s", port.StrVal, field)
	}
	return uint16(number), nil
}

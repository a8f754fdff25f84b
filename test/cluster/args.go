// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

const loopback = "127.0.0.1"

func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// ports are the ports of one start, all on 127.0.0.1.
type ports struct {
	etcd, etcdPeer, api, controllers, scheduler int
}

// ServiceRange is the range of cluster IPs. Only package realnode has a kube-proxy that
// routes them.
const ServiceRange = "10.96.0.0/16"

// etcdArgs are the arguments of a single-member etcd. An fsync per write would take
// most of the time of a write, and this data need not survive a machine crash.
func etcdArgs(dataDir string, client, peer int, extra []string) []string {
	clientURL, peerURL := "http://"+hostPort(client), "http://"+hostPort(peer)
	return slices.Concat([]string{
		"--name=dev",
		"--data-dir=" + dataDir,
		"--listen-client-urls=" + clientURL,
		"--advertise-client-urls=" + clientURL,
		"--listen-peer-urls=" + peerURL,
		"--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=dev=" + peerURL,
		"--unsafe-no-fsync",
		"--log-level=warn",
		"--quota-backend-bytes=4294967296",
	}, extra)
}

// apiServerArgs are the arguments of kube-apiserver.
//
// API priority and fairness is off and the in-flight limits are high: tests create
// thousands of Pods a second as one user, and fairness exists to slow that down. The
// endpoint reconciler is off because the Service "kubernetes" may not have a loopback
// address as its endpoint.
func apiServerArgs(l layout, p ports, auditLog string, extra []string) []string {
	args := []string{
		"--etcd-servers=http://" + hostPort(p.etcd),
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", p.api),
		"--tls-cert-file=" + l.pki("apiserver.crt"),
		"--tls-private-key-file=" + l.pki("apiserver.key"),
		"--client-ca-file=" + l.pki("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-cluster-ip-range=" + ServiceRange,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + l.pki("sa.key"),
		"--service-account-signing-key-file=" + l.pki("sa.key"),
		"--endpoint-reconciler-type=none",
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=5000",
		"--max-mutating-requests-inflight=5000",
		"--http2-max-streams-per-connection=1000",
		"--profiling=false",
	}
	if auditLog != "" {
		args = append(args,
			"--audit-policy-file="+l.config("audit-policy.yaml"),
			"--audit-log-path="+auditLog,
			// No rotation, so that all lines to count are in one file.
			"--audit-log-maxsize=0",
		)
	}
	return append(args, extra...)
}

// auditPolicy logs each request once, when it is answered, without its body.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// controllers are the controllers that matter without a cloud, a network or a storage
// driver. The volume controllers are needed all the same: without them, a claim's
// protection finalizer is never removed.
func controllers() []string {
	return []string{
		"certificatesigningrequest-approving-controller",
		"certificatesigningrequest-signing-controller",
		"clusterrole-aggregation-controller",
		"cronjob-controller",
		"daemonset-controller",
		"deployment-controller",
		"disruption-controller",
		"endpoints-controller",
		"endpointslice-controller",
		"endpointslice-mirroring-controller",
		"garbage-collector-controller",
		"job-controller",
		"namespace-controller",
		"node-lifecycle-controller",
		"persistentvolume-binder-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller",
		"pod-garbage-collector-controller",
		"replicaset-controller",
		"replicationcontroller-controller",
		"resourcequota-controller",
		"root-ca-certificate-publisher-controller",
		"serviceaccount-controller",
		"serviceaccount-token-controller",
		"statefulset-controller",
		"taint-eviction-controller",
		"ttl-after-finished-controller",
		"validatingadmissionpolicy-status-controller",
	}
}

// controllerManagerArgs are the arguments of kube-controller-manager. Each controller
// uses its own service account, as in most real clusters, so that the audit log and
// RBAC can distinguish them.
func controllerManagerArgs(l layout, p ports, extra []string) []string {
	args := []string{
		"--kubeconfig=" + l.config("kube-controller-manager.kubeconfig"),
		"--authentication-kubeconfig=" + l.config("kube-controller-manager.kubeconfig"),
		"--authorization-kubeconfig=" + l.config("kube-controller-manager.kubeconfig"),
		"--bind-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", p.controllers),
		"--tls-cert-file=" + l.pki("components.crt"),
		"--tls-private-key-file=" + l.pki("components.key"),
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + l.pki("sa.key"),
		"--root-ca-file=" + l.pki("ca.crt"),
		"--cluster-signing-cert-file=" + l.pki("ca.crt"),
		"--cluster-signing-key-file=" + l.pki("ca.key"),
		"--kube-api-qps=2000",
		"--kube-api-burst=4000",
		"--profiling=false",
	}
	// Of this flag the values add up, and the first one about a controller counts.
	if !slices.ContainsFunc(extra, func(arg string) bool { return strings.HasPrefix(arg, "--controllers=") }) {
		args = append(args, "--controllers="+strings.Join(controllers(), ","))
	}
	return append(args, extra...)
}

// schedulerConfig sets the request rate, which has no flag; its default is 50 a second.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 5000, burst: 10000}
`

// schedulerArgs are the arguments of kube-scheduler.
func schedulerArgs(l layout, p ports) []string {
	return []string{
		"--config=" + l.config("kube-scheduler.yaml"),
		"--authentication-kubeconfig=" + l.config("kube-scheduler.kubeconfig"),
		"--authorization-kubeconfig=" + l.config("kube-scheduler.kubeconfig"),
		"--bind-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", p.scheduler),
		"--tls-cert-file=" + l.pki("components.crt"),
		"--tls-private-key-file=" + l.pki("components.key"),
	}
}

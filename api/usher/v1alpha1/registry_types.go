// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Registry is a place outside Kubernetes where callers find services.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=usher
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="KIND",type=string,JSONPath=`.status.kind`
// +kubebuilder:printcolumn:name="REACHABLE",type=string,JSONPath=`.status.conditions[?(@.type=="Reachable")].status`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Reachable")].message`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Registry struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RegistrySpec   `json:"spec"`
	Status RegistryStatus `json:"status,omitempty"`
}

// RegistryList is a list of Registries.
//
// +kubebuilder:object:root=true
type RegistryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Registry `json:"items"`
}

// RegistrySpec says where the registry is and of which kind. Exactly one kind
// is set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.consul), has(self.dns), has(self.endpointSlice), has(self.etcd), has(self.eureka), has(self.haproxy), has(self.nacos), has(self.webhook), has(self.xds), has(self.zookeeper)].exists_one(kind, kind)",message="set exactly one kind of registry: consul, dns, endpointSlice, etcd, eureka, haproxy, nacos, webhook, xds or zookeeper"
type RegistrySpec struct {
	// Consul keeps entries in Consul's catalog.
	// +optional
	Consul *ConsulRegistry `json:"consul,omitempty"`
	// DNS keeps entries as records of a zone, through dynamic updates (RFC 2136).
	// +optional
	DNS *DNSRegistry `json:"dns,omitempty"`
	// EndpointSlice keeps entries in EndpointSlices of Services without a selector.
	// +optional
	EndpointSlice *EndpointSliceRegistry `json:"endpointSlice,omitempty"`
	// Etcd keeps entries in the layout that gRPC's etcd resolver reads.
	// +optional
	Etcd *EtcdRegistry `json:"etcd,omitempty"`
	// Eureka keeps entries as instances of Eureka, and renews them.
	// +optional
	Eureka *EurekaRegistry `json:"eureka,omitempty"`
	// HAProxy keeps entries as servers of HAProxy, through its runtime API.
	// +optional
	HAProxy *HAProxyRegistry `json:"haproxy,omitempty"`
	// Nacos keeps entries as persistent instances of Nacos 3.
	// +optional
	Nacos *NacosRegistry `json:"nacos,omitempty"`
	// Webhook hands entries to an HTTP service of your own.
	// +optional
	Webhook *WebhookRegistry `json:"webhook,omitempty"`
	// XDS serves entries to clients that speak xDS, as gRPC does: Usher is the server.
	// +optional
	XDS *XDSRegistry `json:"xds,omitempty"`
	// ZooKeeper keeps entries in the layout of Curator or of Dubbo.
	// +optional
	ZooKeeper *ZooKeeperRegistry `json:"zookeeper,omitempty"`

	// Namespaces says whose Registrations may use this registry. Absent: those
	// of every namespace.
	// +optional
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	// Timeout bounds one call to the registry.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="the timeout has to be longer than 0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// RepairInterval is how often entries are compared with what they should be.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="the repair interval has to be 1s or longer"
	// +optional
	RepairInterval *metav1.Duration `json:"repairInterval,omitempty"`
	// RateLimit bounds how fast entries change, of all services together. Absent:
	// no limit.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`
}

// RateLimit bounds how fast entries change. Those that leave go before those that
// join; what has to wait is done as soon as it may be. Lists and renewals do not
// count.
type RateLimit struct {
	// ChangesPerSecond is how many entries may be written or removed in a second.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	ChangesPerSecond int32 `json:"changesPerSecond"`
	// Burst is how many may change at once. Absent: as many as in a second.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Burst *int32 `json:"burst,omitempty"`
}

// EtcdRegistry is an etcd cluster with entries under
// <prefix>/<service>/<instance>, as go.etcd.io/etcd/client/v3/naming/endpoints
// lays them out.
type EtcdRegistry struct {
	// Endpoints are the URLs of the members.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^https?://[^/@]+$`
	// +listType=set
	Endpoints []string `json:"endpoints"`
	// Prefix is where services begin, without slashes at its ends.
	// +kubebuilder:default=services
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^/].*[^/]$|^[^/]$`
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, and
	// ca.crt, tls.crt and tls.key for https.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// DNSRegistry is the primary server of a zone. An instance is an SRV record of
// _<service>._tcp.<zone> with an address and a TXT record at its target,
// <instance>.<service>.<zone>. Services are names of one label.
type DNSRegistry struct {
	// Server is host:port of the primary, reached over TCP.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^([^\s/@:\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
	Server string `json:"server"`
	// Zone that the records are in, for instance svc.example.com.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern=`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?$`
	Zone string `json:"zone"`
	// TTL is how long callers may keep what they were told, in whole seconds.
	// spec.drain.propagation of the Registrations has to be longer.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	TTL *metav1.Duration `json:"ttl,omitempty"`
	// CredentialsSecret names a Secret with the keys tsig.name, tsig.secret
	// (base64) and tsig.algorithm (hmac-sha256 if absent), which sign requests.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// HAProxyRegistry is one HAProxy process or several that callers go through. A
// service is the backend of that name in their configuration.
type HAProxyRegistry struct {
	// Addresses are the runtime APIs of all processes: tcp://host:port,
	// tls://host:port or unix:///path. Their level is admin.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^((tcp|tls)://[^/@\s]+:[0-9]{1,5}|unix:///[^\s]+)$`
	// +listType=set
	Addresses []string `json:"addresses"`
	// ServerOptions follow the address when a server is added, for instance
	// "check inter 2s". Servers that are there already keep theirs.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_./:@=, -]*$`
	// +optional
	ServerOptions string `json:"serverOptions,omitempty"`
	// CredentialsSecret names a Secret with the keys ca.crt, tls.crt and tls.key
	// for tls:// addresses.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// WebhookRegistry is an HTTP service that keeps the entries. docs/webhook.md
// describes the protocol.
type WebhookRegistry struct {
	// URL is the base address; operations are paths below it. It holds no
	// credentials: those belong in the Secret.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+[^?#@]*$`
	URL string `json:"url"`
	// CredentialsSecret names a Secret with the key hmac, which signs each
	// request, and ca.crt for https with a CA of your own.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// ConsulRegistry is a Consul datacenter. Each entry is a service with a passing
// check on a node of its own.
type ConsulRegistry struct {
	// Address is the URL of an agent or server, without a path.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	Address string `json:"address"`
	// Datacenter is where entries go. Absent: that of the agent.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	// +optional
	Datacenter string `json:"datacenter,omitempty"`
	// CredentialsSecret names a Secret with the key token, an ACL token, and
	// ca.crt, tls.crt and tls.key for https.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// EndpointSliceRegistry is the cluster itself: what a Registration calls its
// service is a Service without a selector, whose EndpointSlices Usher writes.
type EndpointSliceRegistry struct {
	// Namespace of the slices and of their Services. Absent: the namespace of
	// each Registration.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// EurekaRegistry is a Eureka server. Usher renews its instances every 30 seconds
// for as long as it runs.
type EurekaRegistry struct {
	// Address is the URL of a server with its path, as in
	// http://eureka.example.com:8761/eureka. It holds no credentials: those belong
	// in the Secret.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+[^?#@]*$`
	Address string `json:"address"`
	// ResponseCache is the age that the server's lists may have, which is its
	// eureka.server.response-cache-update-interval-ms; 0s where it has no such
	// cache. Usher trusts no list for that time after it started.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	ResponseCache *metav1.Duration `json:"responseCache,omitempty"`
	// Lease is how long instances stay while Usher does not run, at least 90s.
	// Eureka often takes twice as long.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('90s')",message="the lease is too short to be renewed in time: set 90s or more"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Lease *metav1.Duration `json:"lease,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, for
	// basic authentication, and ca.crt, tls.crt and tls.key for https.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// NacosRegistry is a Nacos 3 server or cluster. Entries are persistent instances:
// nobody sends heartbeats for them.
type NacosRegistry struct {
	// Address is the URL of a server, without a path.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	Address string `json:"address"`
	// NamespaceID is the id of Nacos's namespace, which is not its name.
	// +kubebuilder:default=public
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	// +optional
	NamespaceID string `json:"namespaceID,omitempty"`
	// Group of the services.
	// +kubebuilder:default=DEFAULT_GROUP
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.:-]+$`
	// +optional
	Group string `json:"group,omitempty"`
	// Cluster of the instances, as Nacos calls a part of a service.
	// +kubebuilder:default=DEFAULT
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, and
	// ca.crt, tls.crt and tls.key for https.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// XDSRegistry is Usher itself, started with --xds-bind-address. Clients ask its
// replicas for xds:///<service>.<namespace>; entries are kept in EndpointSlices
// that no Service has.
type XDSRegistry struct {
	// Namespace of the slices, which is part of the name that clients ask for.
	// Absent: the namespace of each Registration.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// ZooKeeperLayout is how entries are laid out in ZooKeeper.
// +kubebuilder:validation:Enum=Curator;Dubbo
type ZooKeeperLayout string

const (
	// LayoutCurator is <path>/<service>/<instance> with the JSON of Curator's
	// service discovery.
	LayoutCurator ZooKeeperLayout = "Curator"
	// LayoutDubbo is <path>/<interface>/providers/<URL of the provider>.
	LayoutDubbo ZooKeeperLayout = "Dubbo"
)

// ZooKeeperRegistry is a ZooKeeper ensemble.
//
// +kubebuilder:validation:XValidation:rule="self.layout == oldSelf.layout",message="the layout cannot change, as entries of the old one would stay: make another Registry"
type ZooKeeperRegistry struct {
	// Servers are the members, each a host and a port.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=260
	// +kubebuilder:validation:items:Pattern=`^[^/@,\s]+:[0-9]{1,5}$`
	// +listType=set
	Servers []string `json:"servers"`
	// Layout is that of Curator's service discovery, or that of Dubbo's
	// providers. It cannot change.
	// +kubebuilder:default=Curator
	// +optional
	Layout ZooKeeperLayout `json:"layout,omitempty"`
	// Path is where services begin, without slashes at its ends. Absent:
	// services in the layout of Curator, dubbo in that of Dubbo.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$`
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(part, part == '.' || part == '..' || part == 'zookeeper')",message="the path cannot have the parts . and .. nor zookeeper, which is ZooKeeper's own"
	// +optional
	Path string `json:"path,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, for
	// the scheme digest.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// Namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// RegistryStatus is what Usher last saw of the registry.
type RegistryStatus struct {
	// ObservedGeneration is the generation of the spec that the rest speaks of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Kind is the kind that the spec sets, for people to read.
	Kind string `json:"kind,omitempty"`
	// Conditions: Reachable says whether the last call succeeded.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastOutage is when the registry last did not answer; absent if that is not
	// known to have happened.
	// +optional
	LastOutage *Outage `json:"lastOutage,omitempty"`
	// Users are Registrations that may have entries there, one for each service. They
	// are written before the first entry is, and tell what to remove when a
	// Registration vanishes whose finalizer somebody took off.
	// +listType=atomic
	// +optional
	Users []RegistryUser `json:"users,omitempty"`
}

// RegistryUser is a Registration that may have entries in a service.
type RegistryUser struct {
	// Namespace of the Registration.
	Namespace string `json:"namespace"`
	// Registration is its name.
	Registration string `json:"registration"`
	// Selector found its Pods when this was written.
	Selector metav1.LabelSelector `json:"selector"`
	// Prefix is where the Registry kept its services, as in status.targets of a
	// Registration.
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// Service is the name that callers ask for.
	Service string `json:"service"`
}

// Outage is a time in which a registry did not answer. Two that follow each other
// closely are one.
type Outage struct {
	// From is when it last answered before, as far as is known.
	From metav1.Time `json:"from"`
	// To is when it answered again; absent while it does not.
	// +optional
	To *metav1.Time `json:"to,omitempty"`
}

// ConditionReachable is True while the registry answers.
const ConditionReachable = "Reachable"

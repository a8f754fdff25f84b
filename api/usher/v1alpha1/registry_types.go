// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Registry describes a service registry where callers find services.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=usher
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="KIND",type=string,JSONPath=`.status.kind`
// +kubebuilder:printcolumn:name="REACHABLE",type=string,JSONPath=`.status.conditions[?(@.type=="Reachable")].status`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Reachable")].message`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.users) || size(oldSelf.status.users) == 0 || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Reachable' && c.status == 'True') || (has(self.spec.awsCloudMap) ? has(oldSelf.spec.awsCloudMap) && self.spec.awsCloudMap.region == oldSelf.spec.awsCloudMap.region : !has(oldSelf.spec.awsCloudMap)) && (has(self.spec.awsTargetGroup) ? has(oldSelf.spec.awsTargetGroup) && (!oldSelf.spec.awsTargetGroup.manage || self.spec.awsTargetGroup.manage && self.spec.awsTargetGroup.region == oldSelf.spec.awsTargetGroup.region) : !has(oldSelf.spec.awsTargetGroup)) && (has(self.spec.consul) ? has(oldSelf.spec.consul) && self.spec.consul.address == oldSelf.spec.consul.address : !has(oldSelf.spec.consul)) && (has(self.spec.dns) ? has(oldSelf.spec.dns) && self.spec.dns.server == oldSelf.spec.dns.server : !has(oldSelf.spec.dns)) && has(self.spec.endpointSlice) == has(oldSelf.spec.endpointSlice) && (has(self.spec.etcd) ? has(oldSelf.spec.etcd) && self.spec.etcd.endpoints.exists(one, one in oldSelf.spec.etcd.endpoints) : !has(oldSelf.spec.etcd)) && (has(self.spec.eureka) ? has(oldSelf.spec.eureka) && self.spec.eureka.address == oldSelf.spec.eureka.address : !has(oldSelf.spec.eureka)) && has(self.spec.gcpNEG) == has(oldSelf.spec.gcpNEG) && (has(self.spec.haproxy) ? has(oldSelf.spec.haproxy) && self.spec.haproxy.addresses.exists(one, one in oldSelf.spec.haproxy.addresses) : !has(oldSelf.spec.haproxy)) && (has(self.spec.nacos) ? has(oldSelf.spec.nacos) && self.spec.nacos.address == oldSelf.spec.nacos.address : !has(oldSelf.spec.nacos)) && has(self.spec.service) == has(oldSelf.spec.service) && (has(self.spec.webhook) ? has(oldSelf.spec.webhook) && self.spec.webhook.url == oldSelf.spec.webhook.url : !has(oldSelf.spec.webhook)) && has(self.spec.xds) == has(oldSelf.spec.xds) && (has(self.spec.zookeeper) ? has(oldSelf.spec.zookeeper) && self.spec.zookeeper.servers.exists(one, one in oldSelf.spec.zookeeper.servers) : !has(oldSelf.spec.zookeeper))",message="Registrations use this registry (status.users), and their entries at the old place would stay: make another Registry for the new place, name it in their spec.registries, and take this one out there when it lists them. Of several members, one has to stay",fieldPath=".spec"
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

// RegistrySpec sets the registry's kind and location. Set exactly one kind.
//
// +kubebuilder:validation:XValidation:rule="[has(self.awsCloudMap), has(self.awsTargetGroup), has(self.consul), has(self.dns), has(self.endpointSlice), has(self.etcd), has(self.eureka), has(self.gcpNEG), has(self.haproxy), has(self.nacos), has(self.service), has(self.webhook), has(self.xds), has(self.zookeeper)].exists_one(kind, kind)",message="set exactly one kind of registry: awsCloudMap, awsTargetGroup, consul, dns, endpointSlice, etcd, eureka, gcpNEG, haproxy, nacos, service, webhook, xds or zookeeper"
// +kubebuilder:validation:XValidation:rule="!has(self.strictServices) || !self.strictServices || has(self.services)",message="strictServices allows only what services lists: list a service, or nobody could register",fieldPath=".strictServices"
// +kubebuilder:validation:XValidation:rule="!has(self.service) || !has(self.services)",message="the kind service needs no rules: each Service belongs to its namespace",fieldPath=".services"
// +kubebuilder:validation:XValidation:rule="!has(self.awsTargetGroup) || !has(self.services)",message="the kind awsTargetGroup needs no rules: each Service belongs to its namespace",fieldPath=".services"
// +kubebuilder:validation:XValidation:rule="!has(self.awsTargetGroup) || !has(self.awsTargetGroup.endpoint) || !self.awsTargetGroup.endpoint.startsWith('http:') || self.insecure",message="over http whoever is on the network forges what target groups have: use an https endpoint, or set spec.insecure: true to accept that",fieldPath=".awsTargetGroup"
// +kubebuilder:validation:XValidation:rule="!has(self.awsCloudMap) || !has(self.awsCloudMap.endpoint) || !self.awsCloudMap.endpoint.startsWith('http:') || self.insecure",message="over http whoever is on the network forges what Cloud Map has: use an https endpoint, or set spec.insecure: true to accept that",fieldPath=".awsCloudMap"
// +kubebuilder:validation:XValidation:rule="!has(self.gcpNEG) || !has(self.services)",message="the kind gcpNEG needs no rules: Usher writes nothing there",fieldPath=".services"
// +kubebuilder:validation:XValidation:rule="!has(self.gcpNEG) || !has(self.gcpNEG.endpoint) || !self.gcpNEG.endpoint.startsWith('http:') || self.insecure",message="over http whoever is on the network forges what network endpoint groups have: use an https endpoint, or set spec.insecure: true to accept that",fieldPath=".gcpNEG"
// +kubebuilder:validation:XValidation:rule="!has(self.zookeeper) || self.zookeeper.tls || self.insecure",message="without TLS whoever is on the network reads and changes what is sent to ZooKeeper: set zookeeper.tls, or insecure: true to accept that",fieldPath=".zookeeper"
// +kubebuilder:validation:XValidation:rule="!has(self.etcd) || self.etcd.layout != 'GoZero' || has(self.etcd.prefix) || has(self.strictServices) && self.strictServices",message="without a prefix each service is a key of the whole etcd, and its name shows what is there: list the services in services and set strictServices, or set etcd.prefix, with which the Key of callers begins then",fieldPath=".etcd"
// +kubebuilder:validation:XValidation:rule="!has(self.dns) || has(self.dns.credentialsSecret) || self.insecure",message="without a TSIG key whoever is on the network forges updates and answers: name a Secret with one, or set spec.insecure: true to accept that",fieldPath=".dns"
// +kubebuilder:validation:XValidation:rule="self.insecure || !(has(self.consul) && has(self.consul.credentialsSecret) && (self.consul.address.startsWith('http:') || has(self.consul.agents) && self.consul.agents.scheme == 'http') || has(self.etcd) && has(self.etcd.credentialsSecret) && self.etcd.endpoints.exists(url, url.startsWith('http:')) || has(self.eureka) && has(self.eureka.credentialsSecret) && self.eureka.address.startsWith('http:') || has(self.nacos) && has(self.nacos.credentialsSecret) && self.nacos.address.startsWith('http:'))",message="over http whoever is on the network reads the credentials: use an https address, or set spec.insecure: true to accept that"
type RegistrySpec struct {
	// AWSCloudMap keeps entries as instances of AWS Cloud Map's services.
	// +optional
	AWSCloudMap *AWSCloudMapRegistry `json:"awsCloudMap,omitempty"`
	// AWSTargetGroup shows which Pods AWS's load balancers have as healthy targets. Somebody else writes
	// the targets, such as AWS Load Balancer Controller, and Usher only waits for them; or Usher does, with manage.
	// +optional
	AWSTargetGroup *AWSTargetGroupRegistry `json:"awsTargetGroup,omitempty"`
	// Consul keeps entries in Consul's catalog.
	// +optional
	Consul *ConsulRegistry `json:"consul,omitempty"`
	// DNS keeps entries as records of a DNS zone, through dynamic updates (RFC 2136).
	// +optional
	DNS *DNSRegistry `json:"dns,omitempty"`
	// EndpointSlice keeps entries in the EndpointSlices of Services without a selector.
	// +optional
	EndpointSlice *EndpointSliceRegistry `json:"endpointSlice,omitempty"`
	// Etcd keeps entries in the layout of gRPC's etcd resolver, Kratos, go-zero or Kitex.
	// +optional
	Etcd *EtcdRegistry `json:"etcd,omitempty"`
	// Eureka keeps entries as Eureka instances, and renews them.
	// +optional
	Eureka *EurekaRegistry `json:"eureka,omitempty"`
	// GCPNEG shows which Pods the network endpoint groups of Google Cloud's load balancers have as healthy endpoints.
	// Somebody else writes the endpoints, such as GKE: Usher only waits for them.
	// +optional
	GCPNEG *GCPNEGRegistry `json:"gcpNEG,omitempty"`
	// HAProxy keeps entries as HAProxy servers, through its runtime API.
	// +optional
	HAProxy *HAProxyRegistry `json:"haproxy,omitempty"`
	// Nacos keeps entries as persistent instances in Nacos 2 or 3.
	// +optional
	Nacos *NacosRegistry `json:"nacos,omitempty"`
	// Service is for Services with a selector: Kubernetes lists the Pods, and Usher turns
	// their readiness gate. One Registry of this kind, called service, is made by Usher.
	// +optional
	Service *ServiceRegistry `json:"service,omitempty"`
	// Webhook sends entries to your own HTTP service.
	// +optional
	Webhook *WebhookRegistry `json:"webhook,omitempty"`
	// XDS serves entries from Usher itself to xDS clients such as gRPC.
	// +optional
	XDS *XDSRegistry `json:"xds,omitempty"`
	// ZooKeeper keeps entries in the layout of Curator or Dubbo.
	// +optional
	ZooKeeper *ZooKeeperRegistry `json:"zookeeper,omitempty"`

	// Namespaces selects, by labels, the namespaces whose Registrations may use this
	// registry. Default: all namespaces.
	// +optional
	Namespaces *LabelSelector `json:"namespaces,omitempty"`
	// Services says which namespaces may register in which services. The first rule with
	// the name of a service decides. Without one, a service belongs to the namespace that
	// has entries there, and to no namespace if there are entries that Usher did not write.
	// A rule never removes an entry: it refuses new ones. Default: no rules.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Services []ServiceRule `json:"services,omitempty"`
	// StrictServices refuses services that no rule of services names. Default: false.
	// +optional
	StrictServices bool `json:"strictServices,omitempty"`
	// Timeout limits each call to the registry. Maximum: 1m. Default:
	// 5s.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) > duration('0s') && duration(self) <= duration('1m')",message="the timeout is a number with a unit, as in 500ms or 5s, longer than 0s and at most 1m: calls to a slow registry hold up those to others"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// RepairInterval is how often entries are compared with the desired state. Minimum:
	// 1s. Default: 30s.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="the repair interval has to be 1s or longer"
	// +optional
	RepairInterval *metav1.Duration `json:"repairInterval,omitempty"`
	// AllowedMetadata lists metadata that callers obey or execute, each as key or as
	// key=value, and that Registrations may publish here nevertheless; tags count as the key
	// tags. Without it, they may publish only what callers take for mere data. Default: nothing
	// beyond that.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=set
	// +optional
	AllowedMetadata []string `json:"allowedMetadata,omitempty"`
	// Insecure accepts a connection that others on the network may read or change: credentials
	// over http, ZooKeeper without TLS, DNS without a TSIG key. Default: false, which refuses
	// these.
	// +kubebuilder:default=false
	// +optional
	Insecure bool `json:"insecure,omitempty"`
	// RateLimit limits how fast entries change, across all services. Default: no limit.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`
}

// ServiceRule says who may register in some services.
type ServiceRule struct {
	// Names are names of services. One that ends with * stands for all that begin so.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9*])?|\*)$`
	// +listType=set
	Names []string `json:"names"`
	// Namespaces selects, by labels, the namespaces whose Registrations may register there;
	// every namespace has the label kubernetes.io/metadata.name. Default: all namespaces.
	// +optional
	Namespaces *LabelSelector `json:"namespaces,omitempty"`
	// Shared lets several of these namespaces have entries in one service, beside each
	// other and beside entries that Usher did not write. Default: false, the first of them
	// keeps the others out until its Registrations and entries are gone.
	// +optional
	Shared bool `json:"shared,omitempty"`
}

// RateLimit limits how fast entries change. Removals go before additions, and delayed
// changes are made as soon as the limit allows. Lists and renewals do not count.
type RateLimit struct {
	// ChangesPerSecond is how many entries may be written or removed per second.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	ChangesPerSecond int32 `json:"changesPerSecond"`
	// Burst is how many entries may change at once. Default: changesPerSecond.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Burst *int32 `json:"burst,omitempty"`
}

// TargetDraining says how long a target that drains holds a Pod.
// +kubebuilder:validation:Enum=UntilOver;Propagation
type TargetDraining string

const (
	// TargetDrainingUntilOver holds a Pod until its target does not drain any more, which takes as long as the
	// deregistration delay of the target group.
	TargetDrainingUntilOver TargetDraining = "UntilOver"
	// TargetDrainingPropagation holds it for spec.drain.propagation of the Registration from when its target drains.
	TargetDrainingPropagation TargetDraining = "Propagation"
)

// AWSTargetGroupRegistry is the target groups of AWS's load balancers that send to Pods (target type ip), in one
// region. Usher reads the health of targets (DescribeTargetHealth), and writes nothing unless manage says so.
//
// +kubebuilder:validation:XValidation:rule="!self.manage || has(self.targetGroups) && size(self.targetGroups) > 0 && self.targetGroups.all(one, size(one.arns) == 1)",message="with manage, targetGroups names one target group for each Service that Usher registers Pods for",fieldPath=".targetGroups"
type AWSTargetGroupRegistry struct {
	// Region is the region of the target groups, for example eu-west-1.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z]{2,}(-[a-z0-9]+)+$`
	Region string `json:"region"`
	// TargetGroups names the target groups of Services. Those of other Services are found by the
	// TargetGroupBindings (elbv2.k8s.aws/v1beta1) of their namespace, which AWS Load Balancer Controller makes.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	TargetGroups []AWSTargetGroups `json:"targetGroups,omitempty"`
	// Manage has Usher register and deregister the targets of targetGroups, which nobody else writes: a group that a
	// TargetGroupBinding names is refused. Each group has the Pods of one Registration, which its tag usher.dev/owner
	// names. Default: false, somebody else writes them.
	// +kubebuilder:default=false
	// +optional
	Manage bool `json:"manage,omitempty"`
	// Draining says how long a target that drains holds its Pod: UntilOver, or Propagation, which is
	// spec.drain.propagation of the Registration from when it began. A load balancer may send new requests for
	// some 15s after that. Default: UntilOver.
	// +kubebuilder:default=UntilOver
	// +optional
	Draining TargetDraining `json:"draining,omitempty"`
	// RoleARN is a role to assume for the calls. Default: none.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$`
	// +optional
	RoleARN string `json:"roleARN,omitempty"`
	// Endpoint is the URL of another server than AWS's, such as an emulator or a VPC endpoint, for the API of load
	// balancing and for assuming the role. Default: AWS's own in the region.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// CredentialsSecret names a Secret with the keys aws_access_key_id and aws_secret_access_key, and for an https
	// endpoint ca.crt. Default: the credentials of Usher's Pod (EKS Pod Identity, IAM roles for service accounts, the
	// node's role).
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// AWSCloudMapRegistry is a namespace of AWS Cloud Map, in one region. Its services exist already; entries are their
// instances.
type AWSCloudMapRegistry struct {
	// Region is the region of the namespace, for example eu-west-1.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z]{2,}(-[a-z0-9]+)+$`
	Region string `json:"region"`
	// NamespaceID is the ID of the namespace, for example ns-e4anhexample0004.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^ns-[a-z0-9]+$`
	NamespaceID string `json:"namespaceID"`
	// RoleARN is a role to assume for the calls. Default: none.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$`
	// +optional
	RoleARN string `json:"roleARN,omitempty"`
	// Endpoint is the URL of another server than AWS's, such as an emulator or a VPC endpoint, for the API of Cloud
	// Map, DiscoverInstances as well, and for assuming the role. Default: AWS's own in the region.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// CredentialsSecret names a Secret with the keys aws_access_key_id and aws_secret_access_key, and for an https
	// endpoint ca.crt. Default: the credentials of Usher's Pod (EKS Pod Identity, IAM roles for service accounts, the
	// node's role).
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// GCPNEGRegistry is the zonal network endpoint groups (GCE_VM_IP_PORT) of Google Cloud's load balancers, in one
// project. Usher reads their endpoints with their health (listNetworkEndpoints), and writes nothing.
type GCPNEGRegistry struct {
	// Project is the ID of the project of the groups, for example shop-prod-1.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`
	Project string `json:"project"`
	// Groups names the groups of Services. Those of other Services are found by the annotation
	// cloud.google.com/neg-status, which GKE writes to each.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Groups []GCPNEGs `json:"groups,omitempty"`
	// Draining says how long an endpoint that drains holds its Pod: UntilOver, which takes as long as the connection
	// draining timeout of the backend service, or Propagation, which is spec.drain.propagation of the Registration
	// from when it began. Default: UntilOver.
	// +kubebuilder:default=UntilOver
	// +optional
	Draining TargetDraining `json:"draining,omitempty"`
	// Endpoint is the URL of another server than Google's, such as one of Private Service Connect. Usher sends its
	// token there. Default: https://compute.googleapis.com.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// CredentialsSecret names a Secret with the key key.json, which is a key of a service account, and for an https
	// endpoint ca.crt. Default: the credentials of Usher's Pod (Workload Identity Federation for GKE, the node's
	// service account).
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// GCPNEGs are the network endpoint groups of a Service.
type GCPNEGs struct {
	// Namespace is the namespace of the Service.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Service is the name of the Service: spec.instance.service of Registrations.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Service string `json:"service"`
	// Names are those of the groups, each of which has to have a Pod as healthy in one of the zones.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`
	// +listType=set
	Names []string `json:"names"`
	// Zones are those of the groups, for example europe-west1-b.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z]+-[a-z0-9]+-[a-z0-9]+$`
	// +listType=set
	Zones []string `json:"zones"`
}

// AWSTargetGroups are the target groups of a Service.
type AWSTargetGroups struct {
	// Namespace is the namespace of the Service.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Service is the name of the Service: spec.instance.service of Registrations.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Service string `json:"service"`
	// ARNs are those of the target groups, all of which have to have a Pod as healthy.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:[0-9]{12}:targetgroup/[A-Za-z0-9-]+/[0-9a-z]+$`
	// +listType=set
	ARNs []string `json:"arns"`
}

// EtcdLayout is the layout of entries in etcd.
// +kubebuilder:validation:Enum=GRPC;Kratos;GoZero;Kitex
type EtcdLayout string

const (
	// LayoutGRPC stores entries as go.etcd.io/etcd/client/v3/naming/endpoints does.
	LayoutGRPC EtcdLayout = "GRPC"
	// LayoutKratos stores entries as the JSON of Kratos' ServiceInstance.
	LayoutKratos EtcdLayout = "Kratos"
	// LayoutGoZero stores only addresses as values, and the rest in the names of keys.
	LayoutGoZero EtcdLayout = "GoZero"
	// LayoutKitex stores entries as the JSON of Kitex's registry-etcd.
	LayoutKitex EtcdLayout = "Kitex"
)

// EtcdRegistry is an etcd cluster. Entries are stored under <prefix>/<service>/<instance>.
//
// +kubebuilder:validation:XValidation:rule="self.layout == oldSelf.layout",message="the layout cannot change, as entries of the old one would stay: make another Registry"
type EtcdRegistry struct {
	// Endpoints are the URLs of the cluster's members.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^https?://[^/@]+$`
	// +listType=set
	Endpoints []string `json:"endpoints"`
	// Layout is GRPC, for gRPC's etcd resolver, Kratos, GoZero or Kitex, for callers of that framework. It is
	// immutable. Default: GRPC.
	// +kubebuilder:default=GRPC
	// +optional
	Layout EtcdLayout `json:"layout,omitempty"`
	// Prefix is the key prefix of all services, without a trailing slash: a leading one is part of the keys. Default:
	// services in the GRPC layout, /microservices in the Kratos layout, kitex/registry-etcd in the Kitex layout. The
	// GoZero layout has none by default, and then needs spec.strictServices.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/?[^/](.*[^/])?$`
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, and for
	// https ca.crt, tls.crt and tls.key.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// DNSRegistry is the primary server of a zone. An instance is an SRV record of
// _<service>._tcp.<zone>, with an address record and a TXT record at its target,
// <instance>.<service>.<zone>. A service name is a single label.
type DNSRegistry struct {
	// Server is the host:port of the primary server, reached over TCP.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^([^\s/@:\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
	Server string `json:"server"`
	// Zone is the zone of the records, for example svc.example.com.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern=`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?$`
	Zone string `json:"zone"`
	// TTL is how long callers may cache an answer, in whole seconds. In each
	// Registration, spec.drain.propagation must be longer. Default: 5s.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	TTL *metav1.Duration `json:"ttl,omitempty"`
	// CredentialsSecret names a Secret with the keys tsig.name, tsig.secret (base64)
	// and tsig.algorithm (default: hmac-sha256), which sign requests.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// HAProxyRegistry is one or more HAProxy processes that callers go through. A service
// is the backend of the same name in their configuration.
type HAProxyRegistry struct {
	// Addresses are the runtime APIs of all processes: tcp://host:port, tls://host:port
	// or unix:///path. They need the level admin.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^((tcp|tls)://[^/@\s]+:[0-9]{1,5}|unix:///[^\s]+)$`
	// +listType=set
	Addresses []string `json:"addresses"`
	// ServerOptions follow the address when a server is added, for example "check inter
	// 2s". Existing servers keep their options. Default: none.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_./:@=, -]*$`
	// +optional
	ServerOptions string `json:"serverOptions,omitempty"`
	// CredentialsSecret names a Secret with the keys ca.crt, tls.crt and tls.key for
	// tls:// addresses.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// WebhookRegistry is an HTTP service that stores the entries. docs/registry/webhook.md describes
// the protocol.
type WebhookRegistry struct {
	// URL is the base address; operations are paths below it. It must not contain
	// credentials: put them in the Secret.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+[^?#@]*$`
	URL string `json:"url"`
	// CredentialsSecret names a Secret with the key hmac, which signs each request, and
	// ca.crt for https with a private CA.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// ConsulRegistry is a Consul datacenter. Each entry is a service with a passing check,
// on a node of its own.
type ConsulRegistry struct {
	// Address is the URL of an agent or server, without a path.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	Address string `json:"address"`
	// Datacenter is the datacenter of the entries. Default: the agent's datacenter.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	// +optional
	Datacenter string `json:"datacenter,omitempty"`
	// Agents says where the agents of the datacenter are. Usher needs them only for Registrations with
	// registeredBy: Application, because what an application registers with an agent is taken out of service there.
	// Default: Usher talks to no agent.
	// +optional
	Agents *ConsulAgents `json:"agents,omitempty"`
	// CredentialsSecret names a Secret with the key token (an ACL token), agent-token (another one for agents;
	// default: token), and for https ca.crt, tls.crt and tls.key.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// ConsulAgents says how Usher reaches the agent of a node: at the address that Consul's catalog has for the node.
type ConsulAgents struct {
	// AllowedAddresses are the networks of the agents, such as those of the nodes, for example 10.0.0.0/16. Usher talks
	// to no agent outside of them, whatever the catalog says. Loopback, link-local and multicast addresses count only
	// in a network of such addresses.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:items:Pattern=`^[0-9A-Fa-f.:]+/[0-9]{1,3}$`
	// +listType=set
	AllowedAddresses []string `json:"allowedAddresses"`
	// Scheme is how agents serve their HTTP API: https or http. Default: https.
	// +kubebuilder:validation:Enum=https;http
	// +kubebuilder:default=https
	// +optional
	Scheme string `json:"scheme,omitempty"`
	// Port is the port of their HTTP API. Default: 8501.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=8501
	// +optional
	Port int32 `json:"port,omitempty"`
	// ServerName is the name in the certificates of all agents, for example client.east.consul. Default: the address
	// of each.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`
	// +optional
	ServerName string `json:"serverName,omitempty"`
}

// EndpointSliceRegistry is this Kubernetes cluster. The service of a Registration is a
// Service without a selector, and Usher writes its EndpointSlices.
type EndpointSliceRegistry struct {
	// Namespace is the namespace of the EndpointSlices and their Services. Default: the
	// namespace of each Registration.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// EurekaRegistry is a Eureka server. While it runs, Usher renews its instances every 30
// seconds.
type EurekaRegistry struct {
	// Address is the URL of a server with its path, such as
	// http://eureka.example.com:8761/eureka. It must not contain credentials: put them
	// in the Secret.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+[^?#@]*$`
	Address string `json:"address"`
	// ResponseCache is the maximum age of the server's lists, which is its setting
	// eureka.server.response-cache-update-interval-ms. Use 0s if the server has no such
	// cache. After a start, Usher trusts no list for this time. Default: 30s.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	ResponseCache *metav1.Duration `json:"responseCache,omitempty"`
	// Lease is how long instances stay while Usher is not running, at least 90s. Eureka
	// often keeps them twice as long. Default: 1h.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('90s')",message="the lease is too short to be renewed in time: set 90s or more"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Lease *metav1.Duration `json:"lease,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password for basic
	// authentication, and for https ca.crt, tls.crt and tls.key.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// NacosRegistry is a server or cluster of Nacos 2 or 3. Entries are persistent instances,
// which need no heartbeats.
type NacosRegistry struct {
	// Address is the URL of a server, without a path.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+$`
	Address string `json:"address"`
	// NamespaceID is the id, not the name, of the Nacos namespace. Default: public.
	// +kubebuilder:default=public
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	// +optional
	NamespaceID string `json:"namespaceID,omitempty"`
	// Group is the group of the services. Default: DEFAULT_GROUP.
	// +kubebuilder:default=DEFAULT_GROUP
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.:-]+$`
	// +optional
	Group string `json:"group,omitempty"`
	// Cluster is the Nacos cluster of the instances, a part of a service. Default:
	// DEFAULT.
	// +kubebuilder:default=DEFAULT
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, and for
	// https ca.crt, tls.crt and tls.key.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// ServiceRegistry is this Kubernetes cluster, as callers of its Services see it: through
// kube-proxy, DNS, a gateway, a mesh or a load balancer. The service of a Registration is a
// Service with a selector in the Registration's namespace. The Pods need the readiness gate
// usher.dev/registered, or the label.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.service does not change, since Pods that are out of a Service by its label would stay out: make another Registry, and name that in spec.registries of the Registrations"
type ServiceRegistry struct {
	// Label takes a Pod out of its Service by a label of the Service's selector, which Usher turns. The
	// Pod leaves the EndpointSlices then, and with them the target groups of load balancers whose
	// controllers do not look at readiness. The Pod stays Ready. Default: the readiness gate alone.
	// +optional
	Label *ServiceLabel `json:"label,omitempty"`
}

// ServiceLabel is a label of a Service's selector that Usher turns. The Pod template must have it, with any
// value: a Pod that begins with the value is in the Service as soon as Kubernetes lists it, any other one gets
// the value when its containers are ready. It must be none of the selector of the Pod's owner.
type ServiceLabel struct {
	// Key is the label's key: usher.dev/in-service, or one of a domain below usher.dev. Default:
	// usher.dev/in-service.
	// +kubebuilder:default="usher.dev/in-service"
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:XValidation:rule="self == 'usher.dev/in-service' || self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?[.])+usher[.]dev/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",message="the key is usher.dev/in-service, or one of a domain below usher.dev, such as shop.usher.dev/in-service"
	// +optional
	Key string `json:"key,omitempty"`
	// Value is that of Pods in service. Pods out of service have the value "false". Default: "true".
	// +kubebuilder:default="true"
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self != 'false'",message="the value false is that of Pods out of service: choose another"
	// +optional
	Value string `json:"value,omitempty"`
}

// XDSRegistry is Usher itself, started with --xds-bind-address. Clients ask its
// replicas for xds:///<service>.<namespace>. Usher keeps the entries in EndpointSlices
// that belong to no Service.
type XDSRegistry struct {
	// Namespace is the namespace of the EndpointSlices, and part of the name that
	// clients ask for. Default: the namespace of each Registration.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// ZooKeeperLayout is the layout of entries in ZooKeeper.
// +kubebuilder:validation:Enum=Curator;Dubbo
type ZooKeeperLayout string

const (
	// LayoutCurator stores entries at <path>/<service>/<instance>, as the JSON of
	// Curator's service discovery.
	LayoutCurator ZooKeeperLayout = "Curator"
	// LayoutDubbo stores entries at <path>/<interface>/providers/<URL of the provider>.
	LayoutDubbo ZooKeeperLayout = "Dubbo"
)

// ZooKeeperRegistry is a ZooKeeper ensemble.
//
// +kubebuilder:validation:XValidation:rule="self.layout == oldSelf.layout",message="the layout cannot change, as entries of the old one would stay: make another Registry"
type ZooKeeperRegistry struct {
	// Servers are the ensemble's members, each as host:port.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=260
	// +kubebuilder:validation:items:Pattern=`^[^/@,\s]+:[0-9]{1,5}$`
	// +listType=set
	Servers []string `json:"servers"`
	// Layout is Curator, for Curator's service discovery, or Dubbo, for Dubbo's
	// providers. It is immutable. Default: Curator.
	// +kubebuilder:default=Curator
	// +optional
	Layout ZooKeeperLayout `json:"layout,omitempty"`
	// Path is the path of all services, without leading or trailing slashes. Default:
	// services in the Curator layout, dubbo in the Dubbo layout.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$`
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(part, part == '.' || part == '..' || part == 'zookeeper')",message="the path cannot have the parts . and .. nor zookeeper, which is ZooKeeper's own"
	// +optional
	Path string `json:"path,omitempty"`
	// TLS encrypts the connections, to the servers' secure ports. It is verified by each
	// server's name. Default: false, which needs spec.insecure.
	// +kubebuilder:default=false
	// +optional
	TLS bool `json:"tls,omitempty"`
	// CredentialsSecret names a Secret with the keys username and password, for the
	// digest scheme, and for TLS ca.crt, tls.crt and tls.key.
	// +optional
	CredentialsSecret *SecretReference `json:"credentialsSecret,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// Namespace is the namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// RegistryStatus is the last observed state of the registry.
type RegistryStatus struct {
	// ObservedGeneration is the spec's generation that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Kind is the kind that the spec sets, for display.
	// +kubebuilder:validation:MaxLength=32
	Kind string `json:"kind,omitempty"`
	// Conditions show whether the last call to the registry succeeded (Reachable).
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastOutage is the last time that the registry did not answer. Absent if no outage
	// is known.
	// +optional
	LastOutage *Outage `json:"lastOutage,omitempty"`
	// Users are the Registrations that may have entries in this registry, one item per
	// service. Each is recorded before its first entry is written. If someone removes a
	// Registration's finalizer and it disappears, Users shows what to clean up. All together
	// have at most 1 MiB, and those of one namespace 128 KiB.
	// +kubebuilder:validation:MaxItems=32768
	// +listType=atomic
	// +optional
	Users []RegistryUser `json:"users,omitempty"`
}

// RegistryUser is a Registration that may have entries in a service.
type RegistryUser struct {
	// Namespace is the namespace of the Registration.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Registration is the name of the Registration.
	// +kubebuilder:validation:MaxLength=253
	Registration string `json:"registration"`
	// Prefix is where the Registry kept its services, as in status.targets of a
	// Registration.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// Service is the service name that callers look up.
	// +kubebuilder:validation:MaxLength=253
	Service string `json:"service"`
	// ByApplication means that the Registration's applications register themselves. Such a record does not say
	// whose the service is.
	// +optional
	ByApplication bool `json:"byApplication,omitempty"`
}

// Outage is a period in which a registry did not answer. Two outages in quick
// succession count as one.
type Outage struct {
	// From is the last known answer before the outage.
	From metav1.Time `json:"from"`
	// To is when the registry answered again. Absent during the outage.
	// +optional
	To *metav1.Time `json:"to,omitempty"`
}

// ConditionReachable is True while the registry answers.
const ConditionReachable = "Reachable"

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Registration registers Pods in registries and drains them before they leave.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=usher
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="SERVICE",type=string,JSONPath=`.spec.instance.service`
// +kubebuilder:printcolumn:name="PODS",type=integer,JSONPath=`.status.pods`
// +kubebuilder:printcolumn:name="REGISTERED",type=integer,JSONPath=`.status.registered`
// +kubebuilder:printcolumn:name="DRAINING",type=integer,JSONPath=`.status.draining`
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="REGISTRIES",type=string,priority=1,JSONPath=`.spec.registries`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="WAITING",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Waiting")].message`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Registration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RegistrationSpec   `json:"spec"`
	Status RegistrationStatus `json:"status,omitempty"`
}

// RegistrationList is a list of Registrations.
//
// +kubebuilder:object:root=true
type RegistrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Registration `json:"items"`
}

// RegistrationSpec selects the Pods, the registries they belong in, and the hooks that
// the Registration answers.
//
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || !has(self.drain.application) || self.instance.registeredBy == 'Application'",message="only an application that registers itself can be asked to leave: set instance.registeredBy: Application, or remove drain.application",fieldPath=".drain.application"
// +kubebuilder:validation:XValidation:rule="!has(self.scaleInOrder) || (has(self.drain) && has(self.drain.until) && (has(self.drain.until.http) || has(self.drain.until.metrics)))",message="scaleInOrder asks Pods what is under way, as drain.until says: set drain.until.http or drain.until.metrics, or remove scaleInOrder",fieldPath=".scaleInOrder"
// +kubebuilder:validation:XValidation:rule="(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)",message="selector cannot be empty: it would register every Pod of the namespace; set selector.matchLabels",fieldPath=".selector"
type RegistrationSpec struct {
	// Selector matches Pods in the Registration's namespace.
	Selector LabelSelector `json:"selector"`
	// Registries names the Registries. A hook is released when all of them have
	// confirmed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	// +listType=set
	Registries []string `json:"registries"`
	// Instance describes the entry that callers find.
	Instance Instance `json:"instance"`
	// Hooks are the label keys or finalizers that this Registration answers. Default:
	// those keys in the hooks of the owning CloneSet that begin with <name of the
	// Registration>.usher.dev/.
	// +optional
	Hooks Hooks `json:"hooks,omitempty"`
	// OnInPlaceUpdate decides what happens to a Pod's entries before an in-place
	// update. Deregister removes them, and writes them again when the updated Pod is
	// Ready. FailOver keeps them, out of service, in registries that can hold an entry
	// back: Consul, Eureka, HAProxy, Nacos, Services and xDS; elsewhere it acts as
	// Deregister.
	// Stay keeps them in service and releases the hook at once: use it for updates that
	// do not interrupt the Pod. Default: Deregister.
	// +kubebuilder:default=Deregister
	// +optional
	OnInPlaceUpdate InPlaceUpdatePolicy `json:"onInPlaceUpdate,omitempty"`
	// Drain controls how a Pod leaves its registries.
	// +kubebuilder:default={}
	// +optional
	Drain Drain `json:"drain,omitempty"`
	// ScaleInOrder decides which Pods go first when a CloneSet or a ReplicaSet is scaled in. With idle-first, Pods in
	// service are asked every 10s, or less often if there are more than 100, how much is under way, as drain.until
	// says. The busier they are, the higher is the deletion cost that Usher writes to them:
	// controller.kubernetes.io/pod-deletion-cost. A cost that somebody else has set stays. Default: the Pods' owner
	// decides without Usher.
	// +optional
	ScaleInOrder ScaleInOrder `json:"scaleInOrder,omitempty"`
	// Deadlines limit how long registries may keep Pods waiting at each hook.
	// +optional
	Deadlines Deadlines `json:"deadlines,omitempty"`
	// NodeFailure controls when Pods on unresponsive nodes leave their registries.
	// +kubebuilder:default={}
	// +optional
	NodeFailure *NodeFailure `json:"nodeFailure,omitempty"`
}

// ScaleInOrder decides which Pods go first when their owner is scaled in.
//
// +kubebuilder:validation:Enum=idle-first
type ScaleInOrder string

// ScaleInIdleFirst has Pods go first that have nothing under way, and then those with the least.
const ScaleInIdleFirst ScaleInOrder = "idle-first"

// InPlaceUpdatePolicy decides what happens to a Pod's entries before an in-place
// update.
//
// +kubebuilder:validation:Enum=Deregister;FailOver;Stay
type InPlaceUpdatePolicy string

const (
	// InPlaceUpdateDeregister removes them, and writes them again when the updated Pod
	// is Ready.
	InPlaceUpdateDeregister InPlaceUpdatePolicy = "Deregister"
	// InPlaceUpdateFailOver keeps them, out of service, in registries that can hold an
	// entry back: Consul, Eureka, HAProxy, Nacos and xDS. Elsewhere it acts as
	// Deregister.
	InPlaceUpdateFailOver InPlaceUpdatePolicy = "FailOver"
	// InPlaceUpdateStay keeps them in service until the updated Pod is Ready, and
	// releases the hook at once. It is for updates that do not interrupt the Pod.
	InPlaceUpdateStay InPlaceUpdatePolicy = "Stay"
)

// NodeFailure controls when Pods on unresponsive nodes leave their registries.
// Kubernetes marks such Pods not Ready about 50 seconds after it last heard from the
// node, while their containers still report ready.
type NodeFailure struct {
	// Grace is how long such Pods stay registered after they become not Ready. Default:
	// 15s.
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Grace *metav1.Duration `json:"grace,omitempty"`
	// MaxPercent is the largest share of the Pods, in percent and rounded down, that
	// may leave at one time for this reason. The last Pod always stays. When many nodes
	// become silent together, only the API server may have lost contact with them.
	// Default: 50.
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxPercent *int32 `json:"maxPercent,omitempty"`
}

// Hooks names the key of the label, or the finalizer, that holds a Pod at each gate.
// The values to write come from spec.lifecycle of the owning CloneSet.
//
// For a gate without a name here, the Registration answers those keys of the CloneSet's
// hook that begin with <name of the Registration>.usher.dev/, such as
// web.usher.dev/drained for a Registration called web.
//
// +kubebuilder:validation:XValidation:rule="!has(self.created) || !((has(self.preNormal) && self.preNormal == self.created) || (has(self.inPlaceUpdate) && self.inPlaceUpdate == self.created) || (has(self.preDelete) && self.preDelete == self.created))",message="created needs a key of its own: it stays \"false\" for good, and would release the other hook"
type Hooks struct {
	// Created is a label of the Pod template with the value "true". It becomes "false"
	// when the Pod is Normal, Ready and registered. Default: <name of the
	// Registration>.usher.dev/created.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/') && !(self in ['foregroundDeletion', 'orphan'])",message="this key is Kubernetes' own, and releasing it would end what it protects: choose one of your own domain, such as example.com/drained"
	// +optional
	Created string `json:"created,omitempty"`
	// PreNormal is set when the new Pod is Ready and registered.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/') && !(self in ['foregroundDeletion', 'orphan'])",message="this key is Kubernetes' own, and releasing it would end what it protects: choose one of your own domain, such as example.com/drained"
	// +optional
	PreNormal string `json:"preNormal,omitempty"`
	// InPlaceUpdate is released when the Pod is drained, and set again when the updated
	// Pod is Ready and registered.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/') && !(self in ['foregroundDeletion', 'orphan'])",message="this key is Kubernetes' own, and releasing it would end what it protects: choose one of your own domain, such as example.com/drained"
	// +optional
	InPlaceUpdate string `json:"inPlaceUpdate,omitempty"`
	// PreDelete is released when the Pod is drained.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/') && !(self in ['foregroundDeletion', 'orphan'])",message="this key is Kubernetes' own, and releasing it would end what it protects: choose one of your own domain, such as example.com/drained"
	// +optional
	PreDelete string `json:"preDelete,omitempty"`
}

// DeadlinePolicy decides what happens when a hook misses its deadline.
//
// +kubebuilder:validation:Enum=Block;Proceed
type DeadlinePolicy string

const (
	// DeadlineBlock keeps waiting and reports it.
	DeadlineBlock DeadlinePolicy = "Block"
	// DeadlineProceed releases the hook with a warning. Requests may be lost.
	DeadlineProceed DeadlinePolicy = "Proceed"
)

// Deadlines limit how long registries may keep Pods waiting at each hook. The time
// before a Pod becomes ready does not count.
type Deadlines struct {
	// Created counts from when the Pod is Normal and ready. Default: no deadline.
	// +optional
	Created *HookDeadline `json:"created,omitempty"`
	// PreNormal counts from when the new Pod is ready. Default: no deadline.
	// +optional
	PreNormal *HookDeadline `json:"preNormal,omitempty"`
	// InPlaceUpdate counts from the start of the drain, and again from when the updated
	// Pod is ready. Default: as in spec.drain for the drain, no deadline
	// after it.
	// +optional
	InPlaceUpdate *HookDeadline `json:"inPlaceUpdate,omitempty"`
	// PreDelete counts from the start of the drain, or from when someone other than its
	// controller deleted the Pod, or somebody the Registration. Default: as in spec.drain.
	// +optional
	PreDelete *HookDeadline `json:"preDelete,omitempty"`
}

// HookDeadline limits how long registries may keep a Pod waiting at a hook.
type HookDeadline struct {
	// After is the time limit, propagation included, as a duration such as 30s, 5m or
	// 1h30m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="the deadline has to be longer than 0s"
	After metav1.Duration `json:"after"`
	// OnDeadline decides what happens at the deadline. Block keeps waiting and reports
	// it. Proceed releases the hook with a warning, and requests may be lost. Default:
	// Proceed at preDelete, Block at the others.
	// +optional
	OnDeadline DeadlinePolicy `json:"onDeadline,omitempty"`
}

// Drain controls how a Pod leaves its registries.
//
// +kubebuilder:validation:XValidation:rule="!has(self.propagation) || !has(self.deadline) || duration(self.propagation) < duration(self.deadline)",message="the deadline has to be longer than the propagation, or no drain would meet it",fieldPath=".deadline"
type Drain struct {
	// Propagation is how long callers may keep using an entry after it is gone from the
	// registry, for example their cache time. The hook is released only after this
	// time. Default: 5s.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Propagation *metav1.Duration `json:"propagation,omitempty"`
	// AfterOutage limits the extra time that callers get to reconnect to a registry
	// after an outage. That time is as long as the outage, up to this limit; a drain
	// counts the propagation from its end. gRPC clients may need up to two and a half
	// minutes. Maximum: 10m. Default: 30s.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10m')",message="a duration is a number with a unit, as in 30s, 5m or 1m30s, and here at most 10m"
	// +optional
	AfterOutage *metav1.Duration `json:"afterOutage,omitempty"`
	// RequestTimeout is how long a Pod stays out of its registries after a person or an
	// unknown program asked to delete it and did not come back, counted from the end of the
	// drain. Then it is registered again. What a controller of Kubernetes asks for, and an
	// eviction that was allowed, last as long as their reason. Default: 2m.
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) >= duration('1m') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 90s, 5m or 1h30m, and here at least 1m: clients repeat a request as rarely as every 30 s"
	// +optional
	RequestTimeout *metav1.Duration `json:"requestTimeout,omitempty"`
	// Deadline is how long a drain may take, propagation included. Default: 5m.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// OnDeadline decides what happens at the deadline of every drain. Block keeps waiting
	// and reports it. Proceed lets the Pod go with a warning, and requests may be lost.
	// Default: Block for updates in place; Proceed for Pods, and Registrations, that are
	// being deleted, so that a registry that never comes back keeps no node and no
	// namespace from going.
	// +optional
	OnDeadline DeadlinePolicy `json:"onDeadline,omitempty"`
	// Until keeps a Pod that has left its registries until it says that nothing is under way: long requests, streams
	// and jobs outlast the propagation. Default: the Pod is not asked.
	// +optional
	Until *Until `json:"until,omitempty"`
	// Application has the Pod's application take itself out of its registries when the Pod leaves, and come back when it
	// stays: for registries where nobody else can, such as ZooKeeper and etcd. It needs registeredBy: Application.
	// Default: Usher has the registry take the entry out.
	// +optional
	Application *AskedApplication `json:"application,omitempty"`
}

// RegistrationStatus is the last observed state of the Registration's Pods.
type RegistrationStatus struct {
	// ObservedGeneration is the spec's generation that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Pods is the number of Pods that the selector matches.
	// +kubebuilder:default=0
	// +optional
	Pods int32 `json:"pods"`
	// Registered is the number of Pods that are listed in every registry.
	// +kubebuilder:default=0
	// +optional
	Registered int32 `json:"registered"`
	// Draining is the number of Pods that are leaving.
	// +kubebuilder:default=0
	// +optional
	Draining int32 `json:"draining"`
	// Registries shows the same for each registry, sorted by name: those in the spec,
	// and others that may still have entries.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=name
	// +optional
	Registries []RegistryPods `json:"registries,omitempty"`
	// Targets are the services in which the Registration may have entries. Each is
	// recorded before its first entry is written, so that a change of service, prefix
	// or registries leaves no entry behind.
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	// +optional
	Targets []Target `json:"targets,omitempty"`
	// Conditions show whether the Registration can do its work (Ready), which Pods wait
	// and for what (Waiting), whether its hooks match those of the CloneSets
	// (HooksMatched), and whether the values it takes from Pods are usable
	// (InstancesValid).
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RegistryPods is the last observed state of the Pods in one registry.
type RegistryPods struct {
	// Name is the name of the Registry.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Registered is the number of Pods that callers find in this registry.
	// +kubebuilder:default=0
	// +optional
	Registered int32 `json:"registered"`
	// Draining is the number of Pods that are leaving this registry, propagation
	// included.
	// +kubebuilder:default=0
	// +optional
	Draining int32 `json:"draining"`
	// Waiting is the number of Pods that wait for this registry for any reason.
	// +kubebuilder:default=0
	// +optional
	Waiting int32 `json:"waiting"`
	// Error is why the registry cannot be used, or why it refuses a Pod. Empty if there
	// is no error.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Error string `json:"error,omitempty"`
	// Entries is how many entries of the Registration the registry listed when it was last
	// read, those on their way out included. Absent if it was not read yet.
	// +optional
	Entries *int32 `json:"entries,omitempty"`
	// Differing is how many entries were not as they should be then.
	// +optional
	Differing int32 `json:"differing,omitempty"`
	// Differences are the first ten of them, sorted by Pod.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Differences []EntryDifference `json:"differences,omitempty"`
}

// EntryDifference is an entry that a registry does not list as it should be.
type EntryDifference struct {
	// Pod is the name of the entry's Pod.
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// Entry is the id of the entry in the registry.
	// +kubebuilder:validation:MaxLength=512
	Entry string `json:"entry"`
	// Reason is why: Orphan, if the entry's Pod or Registration is gone; otherwise the reason
	// for which the Pod waits, such as NotListedYet, StillListed or RegistryRefuses.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
}

// Target is a service in a registry.
type Target struct {
	// Registry is the name of the Registry.
	// +kubebuilder:validation:MaxLength=253
	Registry string `json:"registry"`
	// Prefix is where the Registry kept its services when the target was recorded: the
	// prefix in etcd, the datacenter in Consul, the zone in DNS, the path in ZooKeeper,
	// the namespace of EndpointSlices or Services, or the namespace, group and cluster in
	// Nacos.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// Service is the service name that callers look up.
	// +kubebuilder:validation:MaxLength=253
	Service string `json:"service"`
}

// Conditions of a Registration.
const (
	// ConditionReady is True while every registry can be used.
	ConditionReady = "Ready"
	// ConditionWaiting is True while Pods wait for a registry.
	ConditionWaiting = "Waiting"
	// ConditionHooksMatched is False while no CloneSet of the Pods uses a hook that the
	// Registration answers, or while nothing answers a hook of such a CloneSet.
	ConditionHooksMatched = "HooksMatched"
	// ConditionInstancesValid is False while a Pod's weight, tag or metadata is
	// unusable and a default replaces it.
	ConditionInstancesValid = "InstancesValid"
	// ConditionScaleInOrdered is there only with spec.scaleInOrder, and False while Pods in service do not say how much
	// is under way.
	ConditionScaleInOrdered = "ScaleInOrdered"
)

const (
	// Finalizer keeps a Pod until it has left every registry, a Registration until its
	// entries are gone, and a Registry until no Registration has entries in it.
	Finalizer = "usher.dev/registration"
	// LabelGuarded is on a Pod while Finalizer is, and comes and goes in the same write: a
	// webhook can select Pods by a label, not by a finalizer.
	LabelGuarded = "usher.dev/guarded"
	// EvictionResponder is the name by which Pods name Usher among their spec.evictionResponders.
	EvictionResponder = "usher.dev/drain"
	// HookDomain follows the Registration's name in the hook keys that it answers by
	// default, such as web.usher.dev/drained.
	HookDomain = ".usher.dev/"
	// HookCreated follows HookDomain in the label of the created hook.
	HookCreated = "created"
	// LabelInService is the label by which Pods enter and leave Services, unless a Registry names another
	// one.
	LabelInService = "usher.dev/in-service"
	// OutOfService is the value of such a label on Pods that are out of service.
	OutOfService = "false"
	// AnnotationDrain holds the progress of a Pod's drain, as JSON.
	AnnotationDrain = "usher.dev/drain"
	// AnnotationRegistrations names the Registrations that may have entries of a Pod,
	// separated by commas. If a Pod has the finalizer and no such annotation, any may. The
	// annotation goes with the finalizer, unless a deadline released the Pod.
	AnnotationRegistrations = "usher.dev/registrations"
	// AnnotationAsked names the Registrations that have asked the Pod's application to leave its registries
	// (drain.application), separated by commas, until it is in service again.
	AnnotationAsked = "usher.dev/asked"
	// AnnotationScaleIn holds the deletion cost that Usher has written to a Pod (scaleInOrder), and when, as JSON.
	AnnotationScaleIn = "usher.dev/scale-in"
	// ConditionRegistered is True on a Pod while every registry lists it. A Pod can use
	// it as a readiness gate. For a Registry of the kind service it is the entry itself: it
	// stays True until the Pod is to leave.
	ConditionRegistered corev1.PodConditionType = "usher.dev/registered"
)

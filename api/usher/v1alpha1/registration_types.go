// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Registration brings Pods into registries and sees them out again.
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

// RegistrationSpec says which Pods belong where, and which hooks that answers.
//
// +kubebuilder:validation:XValidation:rule="(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)",message="selector cannot be empty: it would register every Pod of the namespace; set selector.matchLabels",fieldPath=".selector"
type RegistrationSpec struct {
	// Selector finds the Pods in the namespace.
	Selector metav1.LabelSelector `json:"selector"`
	// Registries names the Registries; a hook is released when all of them
	// have confirmed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Registries []string `json:"registries"`
	// Instance is what callers find.
	Instance Instance `json:"instance"`
	// Hooks are the label keys or finalizers that this Registration answers: by
	// default those of the owning CloneSet that are named after it.
	// +optional
	Hooks Hooks `json:"hooks,omitempty"`
	// OnInPlaceUpdate says what becomes of a Pod's entries when the Pod is about to
	// be updated in place.
	// +kubebuilder:default=Deregister
	// +optional
	OnInPlaceUpdate InPlaceUpdatePolicy `json:"onInPlaceUpdate,omitempty"`
	// Drain says how a Pod leaves.
	// +kubebuilder:default={}
	// +optional
	Drain Drain `json:"drain,omitempty"`
	// Deadlines of single hooks.
	// +optional
	Deadlines Deadlines `json:"deadlines,omitempty"`
	// NodeFailure says what becomes of Pods whose node does not answer.
	// +kubebuilder:default={}
	// +optional
	NodeFailure *NodeFailure `json:"nodeFailure,omitempty"`
}

// InPlaceUpdatePolicy says what becomes of a Pod's entries when the Pod is about
// to be updated in place.
//
// +kubebuilder:validation:Enum=Deregister;FailOver;Stay
type InPlaceUpdatePolicy string

const (
	// InPlaceUpdateDeregister removes them, and writes them anew when the updated
	// Pod is Ready.
	InPlaceUpdateDeregister InPlaceUpdatePolicy = "Deregister"
	// InPlaceUpdateFailOver keeps them, out of service, where the registry can:
	// Consul, Eureka, HAProxy, Nacos and xDS. Elsewhere it is Deregister.
	InPlaceUpdateFailOver InPlaceUpdatePolicy = "FailOver"
	// InPlaceUpdateStay keeps them in service until the updated Pod is Ready, and
	// releases the hook at once: for updates that do not interrupt the Pod.
	InPlaceUpdateStay InPlaceUpdatePolicy = "Stay"
)

// NodeFailure says what becomes of Pods whose node does not answer: Kubernetes
// makes them not Ready, some 50 seconds after it last heard of the node, while
// their containers claim to be ready.
type NodeFailure struct {
	// Grace is how long they stay listed after that.
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Grace *metav1.Duration `json:"grace,omitempty"`
	// MaxPercent is how many of the Pods may leave for this reason at a time, in
	// percent, rounded down; the last one stays whatever it says. Many nodes that
	// fall silent together may be out of the API server's reach alone.
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxPercent *int32 `json:"maxPercent,omitempty"`
}

// Hooks names what holds a Pod at each gate: the key of a label, or a finalizer.
// The values to write are those of the owning CloneSet's spec.lifecycle.
//
// A gate for which none is named has those keys of the CloneSet's hook that begin
// with <name of the Registration>.usher.dev/, such as web.usher.dev/drained for a
// Registration called web.
//
// +kubebuilder:validation:XValidation:rule="!has(self.created) || !((has(self.preNormal) && self.preNormal == self.created) || (has(self.inPlaceUpdate) && self.inPlaceUpdate == self.created) || (has(self.preDelete) && self.preDelete == self.created))",message="created needs a key of its own: it stays \"false\" for good, and would release the other hook"
type Hooks struct {
	// Created is a label of the Pod template with the value "true". When the
	// Pod is Normal, Ready and registered, it becomes "false". Absent:
	// <name of the Registration>.usher.dev/created.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +optional
	Created string `json:"created,omitempty"`
	// PreNormal is set when the new Pod is Ready and registered.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +optional
	PreNormal string `json:"preNormal,omitempty"`
	// InPlaceUpdate is released when the Pod is drained, and set again when the
	// updated Pod is Ready and registered.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +optional
	InPlaceUpdate string `json:"inPlaceUpdate,omitempty"`
	// PreDelete is released when the Pod is drained.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.startsWith('usher.dev/')",message="a hook is the key of a label, or a finalizer, such as example.com/drained; those of usher.dev are Usher's own"
	// +optional
	PreDelete string `json:"preDelete,omitempty"`
}

// DeadlinePolicy says what happens when a hook misses its deadline.
//
// +kubebuilder:validation:Enum=Block;Proceed
type DeadlinePolicy string

const (
	// DeadlineBlock goes on waiting, and says so.
	DeadlineBlock DeadlinePolicy = "Block"
	// DeadlineProceed releases the hook with a warning: requests may be lost.
	DeadlineProceed DeadlinePolicy = "Proceed"
)

// Deadlines says for how long registries may keep Pods waiting at each hook. The
// time that a Pod takes to get ready does not count.
type Deadlines struct {
	// Created counts from when the Pod is Normal and ready. Absent: none.
	// +optional
	Created *HookDeadline `json:"created,omitempty"`
	// PreNormal counts from when the new Pod is ready. Absent: none.
	// +optional
	PreNormal *HookDeadline `json:"preNormal,omitempty"`
	// InPlaceUpdate counts from the beginning of the drain, and once more from when
	// the updated Pod is ready. Absent: spec.drain for the first, none for the
	// second.
	// +optional
	InPlaceUpdate *HookDeadline `json:"inPlaceUpdate,omitempty"`
	// PreDelete counts from the beginning of the drain, or from when somebody
	// deleted the Pod past its controller. Absent: spec.drain.
	// +optional
	PreDelete *HookDeadline `json:"preDelete,omitempty"`
}

// HookDeadline is how long registries may keep a Pod waiting at a hook.
type HookDeadline struct {
	// After is that time, propagation included.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="the deadline has to be longer than 0s"
	After metav1.Duration `json:"after"`
	// OnDeadline says what happens then.
	// +kubebuilder:default=Block
	// +optional
	OnDeadline DeadlinePolicy `json:"onDeadline,omitempty"`
}

// Drain says how a Pod leaves its registries.
//
// +kubebuilder:validation:XValidation:rule="!has(self.propagation) || !has(self.deadline) || duration(self.propagation) < duration(self.deadline)",message="the deadline has to be longer than the propagation, or no drain would meet it",fieldPath=".deadline"
type Drain struct {
	// Propagation is how long callers may go on using an entry that is gone
	// from the registry: their cache time. The hook is released after it.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Propagation *metav1.Duration `json:"propagation,omitempty"`
	// AfterOutage bounds how long callers may take to find a registry again that was
	// away: a drain counts the propagation anew from when it answers, and as long
	// again as it was away, but no longer than this. Clients of gRPC may take up to
	// two and a half minutes.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10m')",message="a duration is a number with a unit, as in 30s, 5m or 1m30s, and here at most 10m"
	// +optional
	AfterOutage *metav1.Duration `json:"afterOutage,omitempty"`
	// Deadline is how long a drain may take, propagation included.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +optional
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// OnDeadline says what happens then.
	// +kubebuilder:default=Block
	// +optional
	OnDeadline DeadlinePolicy `json:"onDeadline,omitempty"`
}

// RegistrationStatus is what Usher last saw of the Pods.
type RegistrationStatus struct {
	// ObservedGeneration is the generation of the spec that the rest speaks of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Pods is the number of Pods that the selector matches.
	// +kubebuilder:default=0
	// +optional
	Pods int32 `json:"pods"`
	// Registered is the number of Pods that every registry lists.
	// +kubebuilder:default=0
	// +optional
	Registered int32 `json:"registered"`
	// Draining is the number of Pods that are leaving.
	// +kubebuilder:default=0
	// +optional
	Draining int32 `json:"draining"`
	// Registries says the same of each registry by itself, sorted by name: of those
	// that the spec names, and of others that may still have entries.
	// +listType=map
	// +listMapKey=name
	// +optional
	Registries []RegistryPods `json:"registries,omitempty"`
	// Targets are where the Registration may have entries. They are written
	// before the first entry is, so that a changed service, prefix or list of
	// registries leaves none behind.
	// +listType=atomic
	// +optional
	Targets []Target `json:"targets,omitempty"`
	// Conditions: Ready says whether the Registration can do its work, Waiting
	// whom it waits for, HooksMatched whether its hooks fit the CloneSets,
	// InstancesValid whether what it takes from Pods can be used.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RegistryPods is what Usher last saw of the Pods in one registry.
type RegistryPods struct {
	// Name of the Registry.
	Name string `json:"name"`
	// Registered is the number of Pods that callers find there.
	// +kubebuilder:default=0
	// +optional
	Registered int32 `json:"registered"`
	// Draining is the number of Pods that are leaving it, propagation included.
	// +kubebuilder:default=0
	// +optional
	Draining int32 `json:"draining"`
	// Waiting is the number of Pods that wait for it, whichever way.
	// +kubebuilder:default=0
	// +optional
	Waiting int32 `json:"waiting"`
	// Error says why it cannot be used, or why it refuses a Pod; empty if all is
	// well.
	// +optional
	Error string `json:"error,omitempty"`
}

// Target is a service in a registry.
type Target struct {
	// Registry is the name of the Registry.
	Registry string `json:"registry"`
	// Prefix is where the Registry kept its services when the target was
	// recorded: the prefix of etcd, the datacenter of Consul, the zone of DNS,
	// the path of ZooKeeper, the namespace of EndpointSlices, the namespace, group
	// and cluster of Nacos.
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// Service is the name that callers ask for.
	Service string `json:"service"`
}

// Conditions of a Registration.
const (
	// ConditionReady is True while every registry can be used.
	ConditionReady = "Ready"
	// ConditionWaiting is True while Pods wait for a registry.
	ConditionWaiting = "Waiting"
	// ConditionHooksMatched is False while a hook that the Registration answers
	// is used by no CloneSet of its Pods, or a hook of theirs is answered by nobody.
	ConditionHooksMatched = "HooksMatched"
	// ConditionInstancesValid is False while a Pod has a weight, a tag or metadata
	// that cannot be used, so that a default stands in for it.
	ConditionInstancesValid = "InstancesValid"
)

const (
	// Finalizer keeps a Pod until it has left every registry, a Registration
	// until its entries are gone, and a Registry until no Registration has
	// entries there.
	Finalizer = "usher.dev/registration"
	// HookDomain follows the name of a Registration in the keys of the hooks that
	// it answers without being told to: web.usher.dev/drained.
	HookDomain = ".usher.dev/"
	// HookCreated is what follows that in the label of the created hook.
	HookCreated = "created"
	// AnnotationDrain holds the progress of a Pod's drain, as JSON.
	AnnotationDrain = "usher.dev/drain"
	// ConditionRegistered is True on a Pod while every registry lists it. It can
	// serve as a readiness gate.
	ConditionRegistered corev1.PodConditionType = "usher.dev/registered"
)

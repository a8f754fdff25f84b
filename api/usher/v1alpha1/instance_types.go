// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Instance describes a Pod's entry in a registry.
//
// +kubebuilder:validation:XValidation:rule="self.registeredBy == oldSelf.registeredBy",message="registeredBy cannot change: delete the Registration, wait until it is gone, and create it anew",fieldPath=".registeredBy"
// +kubebuilder:validation:XValidation:rule="self.registeredBy != 'Application' || has(self.port)",message="with registeredBy: Application set instance.port to the port that the application registers: Usher finds its entry by the Pod's address and this port",fieldPath=".port"
// +kubebuilder:validation:XValidation:rule="self.registeredBy != 'Application' || !(self.weight != 1 || has(self.weightFrom) || has(self.tags) || has(self.tagsFrom) || has(self.metadata) || has(self.metadataFrom))",message="with registeredBy: Application the application writes its entry: remove weight, weightFrom, tags, tagsFrom, metadata and metadataFrom from instance"
type Instance struct {
	// RegisteredBy says who registers the Pods. With Usher, Usher writes their entries. With Application, each
	// application registers itself, with the client of its registry. Usher then creates no entry: it waits until the
	// entry at the Pod's address and instance.port is in service, takes it out of service before the Pod goes or is
	// updated, and brings it back when it stays. Of the kinds that have entries, eureka, nacos and consul (with
	// agents) can do so; see docs/self-registered.md. Default: Usher.
	// +kubebuilder:default=Usher
	// +optional
	RegisteredBy Registrant `json:"registeredBy,omitempty"`
	// Service is the service name that callers look up.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Service string `json:"service"`
	// Port is a port number, or the name of a container port. Every kind of registry needs
	// it except service.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 && self < 65536 : self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$') && !self.matches('^[0-9]+$')",message="port is a number from 1 to 65535, without quotes, or the name of a container port"
	// +optional
	Port intstr.IntOrString `json:"port,omitzero"`
	// IPFamily is the family of the address that registries list for a Pod with addresses of both: IPv4 or
	// IPv6. A Pod without an address of the family is not registered, and waits with the reason
	// AddressNotFound. Kubernetes chooses the addresses of a Service: the kind service ignores it. Default: the
	// Pod's first address, status.podIP.
	// +kubebuilder:validation:Enum=IPv4;IPv6
	// +optional
	IPFamily corev1.IPFamily `json:"ipFamily,omitempty"`
	// Weight is the instance's share of requests, relative to other instances, from 1
	// to 65535. Default: 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Weight int32 `json:"weight,omitempty"`
	// WeightFrom takes the weight from each Pod: a whole number from 1 to 65535. A Pod
	// without the field gets instance.weight. So does a Pod with any other value, with
	// an event InstanceInvalid. Default: instance.weight for every Pod.
	// +optional
	WeightFrom *PodSource `json:"weightFrom,omitempty"`
	// Tags are published with the entry: as Consul's own tags in Consul; elsewhere as
	// the metadata key tags, sorted and separated by commas.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^[!-+\--~]+$`
	// +listType=set
	// +optional
	Tags []string `json:"tags,omitempty"`
	// TagsFrom adds tags from each Pod. A value with commas is several tags; an empty
	// value is none.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	TagsFrom []PodSource `json:"tagsFrom,omitempty"`
	// Metadata is published with the entry if the registry supports it. The keys
	// weight, tags and usher are reserved for Usher. A key has at most 128 bytes, a value 512.
	// +kubebuilder:validation:MaxProperties=24
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(bytes(key)) <= 128)",message="a metadata key has at most 128 bytes"
	// +kubebuilder:validation:XValidation:rule="!('weight' in self) && !('tags' in self) && !('usher' in self)",message="the metadata keys weight, tags and usher are written by Usher itself: use instance.weight, instance.tags, or another key"
	// +optional
	Metadata map[string]MetadataValue `json:"metadata,omitempty"`
	// MetadataFrom adds metadata from each Pod. A Pod without the field gets the key's
	// value in instance.metadata, or nothing.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=key
	// +optional
	MetadataFrom []MetadataSource `json:"metadataFrom,omitempty"`
}

// Registrant is who registers Pods.
//
// +kubebuilder:validation:Enum=Usher;Application
type Registrant string

const (
	// RegisteredByUsher means that Usher writes the entries.
	RegisteredByUsher Registrant = "Usher"
	// RegisteredByApplication means that each application writes its own entry.
	RegisteredByApplication Registrant = "Application"
)

// MetadataValue is a value that is published with an entry.
//
// +kubebuilder:validation:MaxLength=512
// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 512",message="a metadata value has at most 512 bytes"
type MetadataValue string

// PodSource is the source of a value.
type PodSource struct {
	// FieldRef names a field of the Pod.
	FieldRef FieldRef `json:"fieldRef"`
}

// MetadataSource takes the value of a metadata key from each Pod.
type MetadataSource struct {
	// Key is the metadata key.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 128",message="a metadata key has at most 128 bytes"
	// +kubebuilder:validation:XValidation:rule="!(self in ['weight', 'tags', 'usher'])",message="the metadata keys weight, tags and usher are written by Usher itself: use instance.weightFrom, instance.tagsFrom, or another key"
	Key string `json:"key"`
	// FieldRef names a field of the Pod. A value longer than 512 bytes, or with control
	// characters, is left out, with an event InstanceInvalid.
	FieldRef FieldRef `json:"fieldRef"`
}

// FieldRef names a field of a Pod, as in the downward API.
type FieldRef struct {
	// FieldPath is metadata.name, metadata.namespace, metadata.uid,
	// metadata.labels['<key>'], metadata.annotations['<key>'], spec.nodeName,
	// spec.serviceAccountName, status.podIP or status.hostIP.
	// +kubebuilder:validation:MaxLength=345
	// +kubebuilder:validation:XValidation:rule=`self.matches("^(metadata[.](name|namespace|uid|(labels|annotations)[[]'[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?'[]])|spec[.](nodeName|serviceAccountName)|status[.](podIP|hostIP))$")`,message="fieldPath is metadata.name, metadata.namespace, metadata.uid, metadata.labels['<key>'], metadata.annotations['<key>'], spec.nodeName, spec.serviceAccountName, status.podIP or status.hostIP"
	FieldPath string `json:"fieldPath"`
}

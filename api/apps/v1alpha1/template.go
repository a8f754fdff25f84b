// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodTemplate is a Pod template just as its author wrote it. It keeps the raw
// JSON, so that a field of a newer Kubernetes than the one this program was
// built for reaches the Pods. The fields declared here are those that the
// validation rules of the CloneSet read; Decode gives the whole.
//
// +kubebuilder:object:generate=false
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="has(self.spec)",message="template.spec is missing: give the Pods at least one container in template.spec.containers; if they are under template.metadata, mend the indentation"
type PodTemplate struct {
	// Metadata holds the labels and annotations of the Pods.
	// +optional
	Metadata PodTemplateMetadata `json:"metadata,omitempty"`
	// Spec is the PodSpec.
	// +optional
	Spec PodTemplateSpec `json:"spec,omitempty"`

	raw []byte `json:"-"`
}

// PodTemplateMetadata is the part of a template's metadata that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateMetadata struct {
	// Labels of the Pods.
	// +optional
	Labels Labels `json:"labels,omitempty"`
	// Annotations of the Pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodTemplateSpec is the part of a template's PodSpec that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="!has(self.restartPolicy) || self.restartPolicy == 'Always'",message="restartPolicy must be Always: a CloneSet keeps its Pods running; remove the field",fieldPath=".restartPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.activeDeadlineSeconds)",message="activeDeadlineSeconds is for Pods that end; a CloneSet keeps its Pods running; remove the field"
// +kubebuilder:validation:XValidation:rule="!has(self.hostNetwork) || !self.hostNetwork || self.containers.all(c, !has(c.ports) || c.ports.all(p, !has(p.hostPort) || p.hostPort == 0 || p.hostPort == p.containerPort))",message="with hostNetwork each hostPort must be its containerPort: remove hostPort",fieldPath=".containers"
type PodTemplateSpec struct {
	// RestartPolicy must be Always, which is the default.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	RestartPolicy string `json:"restartPolicy,omitempty"`
	// ActiveDeadlineSeconds must be absent.
	// +optional
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// Containers of the Pods.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	Containers []PodTemplateContainer `json:"containers"`
	// InitContainers run before the containers.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	InitContainers []PodTemplateContainer `json:"initContainers,omitempty"`
	// Volumes that containers can mount, beside those of volumeClaimTemplates.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []PodTemplateVolume `json:"volumes,omitempty"`
	// HostNetwork gives the Pods the network of their node.
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// PodTemplateContainer is the part of a container that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateContainer struct {
	// Name of the container, unique in the Pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Image that the container runs.
	// +kubebuilder:validation:MinLength=1
	Image string `json:"image"`
	// Ports that the container listens on.
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	// +optional
	Ports []PodTemplatePort `json:"ports,omitempty"`
	// VolumeMounts are where the container sees volumes.
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	// +optional
	VolumeMounts []PodTemplateVolumeMount `json:"volumeMounts,omitempty"`
}

// PodTemplatePort is the part of a container's port that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplatePort struct {
	// ContainerPort is the port in the Pod.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ContainerPort int32 `json:"containerPort"`
	// HostPort is the port on the node; with hostNetwork it is containerPort.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HostPort int32 `json:"hostPort,omitempty"`
}

// PodTemplateVolumeMount is the part of a volumeMount that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateVolumeMount struct {
	// Name of a volume, or of one of volumeClaimTemplates.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// PodTemplateVolume is the part of a volume that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateVolume struct {
	// Name of the volume, unique in the Pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// ClaimTemplate is a PersistentVolumeClaim just as its author wrote it.
//
// +kubebuilder:object:generate=false
// +kubebuilder:pruning:PreserveUnknownFields
type ClaimTemplate struct {
	// Metadata holds the name of the volume and the labels and annotations of
	// the claims.
	Metadata ClaimTemplateMetadata `json:"metadata"`

	raw []byte `json:"-"`
}

// ClaimTemplateMetadata is the part of a claim template's metadata that
// validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ClaimTemplateMetadata struct {
	// Name of the volume in the Pod.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}

// NewPodTemplate makes a PodTemplate from the typed form. It panics if the
// template has no JSON form, which no value of that type lacks.
func NewPodTemplate(template corev1.PodTemplateSpec) PodTemplate {
	data, err := json.Marshal(template)
	if err != nil {
		panic(fmt.Errorf("encode Pod template: %w", err))
	}
	var out PodTemplate
	if err := out.UnmarshalJSON(data); err != nil {
		panic(fmt.Errorf("decode Pod template: %w", err))
	}
	return out
}

// Raw is the template's JSON. The caller must not change it.
func (t *PodTemplate) Raw() []byte { return t.raw }

// Decode gives the template in its typed form, without fields that this
// program's Kubernetes libraries do not know.
func (t *PodTemplate) Decode() (*corev1.PodTemplateSpec, error) {
	var out corev1.PodTemplateSpec
	if err := json.Unmarshal(t.raw, &out); err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	return &out, nil
}

// MarshalJSON returns the raw template.
func (t PodTemplate) MarshalJSON() ([]byte, error) { return rawOrEmpty(t.raw), nil }

// UnmarshalJSON keeps data and reads the declared fields from it.
func (t *PodTemplate) UnmarshalJSON(data []byte) error {
	type declared PodTemplate
	var fields declared
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	*t = PodTemplate(fields)
	t.raw = bytes.Clone(data)
	return nil
}

// DeepCopyInto copies the template. The raw JSON never changes and is shared.
func (t *PodTemplate) DeepCopyInto(out *PodTemplate) {
	*out = *t
	t.Metadata.DeepCopyInto(&out.Metadata)
	t.Spec.DeepCopyInto(&out.Spec)
}

// Raw is the claim template's JSON. The caller must not change it.
func (t *ClaimTemplate) Raw() []byte { return t.raw }

// Decode gives the claim in its typed form.
func (t *ClaimTemplate) Decode() (*corev1.PersistentVolumeClaim, error) {
	var out corev1.PersistentVolumeClaim
	if err := json.Unmarshal(t.raw, &out); err != nil {
		return nil, fmt.Errorf("spec.volumeClaimTemplates: %w", err)
	}
	return &out, nil
}

// MarshalJSON returns the raw claim.
func (t ClaimTemplate) MarshalJSON() ([]byte, error) { return rawOrEmpty(t.raw), nil }

// UnmarshalJSON keeps data and reads the declared fields from it.
func (t *ClaimTemplate) UnmarshalJSON(data []byte) error {
	type declared ClaimTemplate
	var fields declared
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	*t = ClaimTemplate(fields)
	t.raw = bytes.Clone(data)
	return nil
}

// DeepCopyInto copies the claim. The raw JSON never changes and is shared.
func (t *ClaimTemplate) DeepCopyInto(out *ClaimTemplate) { *out = *t }

// AsMeta gives the selector in its usual type.
func (s *LabelSelector) AsMeta() *metav1.LabelSelector {
	out := &metav1.LabelSelector{}
	if len(s.MatchLabels) > 0 {
		out.MatchLabels = make(map[string]string, len(s.MatchLabels))
		for key, value := range s.MatchLabels {
			out.MatchLabels[key] = string(value)
		}
	}
	for _, e := range s.MatchExpressions {
		requirement := metav1.LabelSelectorRequirement{Key: e.Key, Operator: e.Operator}
		for _, value := range e.Values {
			requirement.Values = append(requirement.Values, string(value))
		}
		out.MatchExpressions = append(out.MatchExpressions, requirement)
	}
	return out
}

// IntOrString gives the count in its usual type.
func (c *Count) IntOrString() *intstr.IntOrString { return (*intstr.IntOrString)(c) }

// MarshalJSON encodes a number or a string.
func (c Count) MarshalJSON() ([]byte, error) { return intstr.IntOrString(c).MarshalJSON() }

// UnmarshalJSON decodes a number or a string.
func (c *Count) UnmarshalJSON(data []byte) error {
	return (*intstr.IntOrString)(c).UnmarshalJSON(data)
}

func rawOrEmpty(raw []byte) []byte {
	if len(raw) == 0 {
		return []byte("{}")
	}
	return raw
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodTemplate is a Pod template exactly as its author wrote it. It keeps the raw JSON,
// so that fields from a newer Kubernetes version than the controller was built for
// still reach the Pods. Only the fields that the CloneSet's validation rules read are
// declared here.
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

// PodTemplateMetadata declares the template metadata that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateMetadata struct {
	// Labels are set on the Pods.
	// +optional
	Labels Labels `json:"labels,omitempty"`
	// Annotations are set on the Pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodTemplateSpec declares the PodSpec fields that validation reads.
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
	// Containers are the Pod's containers.
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
	// Volumes are volumes that containers can mount, in addition to those of
	// volumeClaimTemplates.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []PodTemplateVolume `json:"volumes,omitempty"`
	// HostNetwork runs the Pods in their node's network namespace. Default: false.
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// PodTemplateContainer declares the container fields that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateContainer struct {
	// Name is the container's name, unique in the Pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Image is the image that the container runs.
	// +kubebuilder:validation:MinLength=1
	Image string `json:"image"`
	// Ports are the ports that the container listens on.
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	// +optional
	Ports []PodTemplatePort `json:"ports,omitempty"`
	// VolumeMounts are the paths at which the container mounts volumes.
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	// +optional
	VolumeMounts []PodTemplateVolumeMount `json:"volumeMounts,omitempty"`
}

// PodTemplatePort declares the container port fields that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplatePort struct {
	// ContainerPort is the port in the Pod.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ContainerPort int32 `json:"containerPort"`
	// HostPort is the port on the node. With hostNetwork it equals containerPort.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HostPort int32 `json:"hostPort,omitempty"`
}

// PodTemplateVolumeMount declares the volumeMount fields that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateVolumeMount struct {
	// Name is the name of a volume or of one of volumeClaimTemplates.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// PodTemplateVolume declares the volume fields that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PodTemplateVolume struct {
	// Name is the volume's name, unique in the Pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// ClaimTemplate is a PersistentVolumeClaim exactly as its author wrote it.
//
// +kubebuilder:object:generate=false
// +kubebuilder:pruning:PreserveUnknownFields
type ClaimTemplate struct {
	// Metadata holds the volume's name and the labels and annotations of the claims.
	Metadata ClaimTemplateMetadata `json:"metadata"`

	raw []byte `json:"-"`
}

// ClaimTemplateMetadata declares the claim template metadata that validation reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ClaimTemplateMetadata struct {
	// Name is the volume's name in the Pod.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}

// NewPodTemplate converts a typed template to a PodTemplate. It panics if the template
// cannot be encoded as JSON, which no value of that type can cause.
func NewPodTemplate(template corev1.PodTemplateSpec) PodTemplate {
	var out PodTemplate
	data, err := json.Marshal(template)
	if err := errors.Join(err, out.UnmarshalJSON(data)); err != nil {
		panic(fmt.Errorf("convert Pod template: %w", err))
	}
	return out
}

// Raw returns the template's JSON. The caller must not modify it.
func (t *PodTemplate) Raw() []byte { return t.raw }

// Decode returns the typed template, without the fields that this program's Kubernetes
// libraries do not know.
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
	*t = PodTemplate{raw: bytes.Clone(data)}
	return json.Unmarshal(data, (*declared)(t))
}

// DeepCopyInto copies the template. The raw JSON is immutable and shared.
func (t *PodTemplate) DeepCopyInto(out *PodTemplate) {
	*out = *t
	t.Metadata.DeepCopyInto(&out.Metadata)
	t.Spec.DeepCopyInto(&out.Spec)
}

// Raw returns the claim template's JSON. The caller must not modify it.
func (t *ClaimTemplate) Raw() []byte { return t.raw }

// MarshalJSON returns the raw claim.
func (t ClaimTemplate) MarshalJSON() ([]byte, error) { return rawOrEmpty(t.raw), nil }

// UnmarshalJSON keeps data and reads the declared fields from it.
func (t *ClaimTemplate) UnmarshalJSON(data []byte) error {
	type declared ClaimTemplate
	*t = ClaimTemplate{raw: bytes.Clone(data)}
	return json.Unmarshal(data, (*declared)(t))
}

// DeepCopyInto copies the claim. The raw JSON is immutable and shared.
func (t *ClaimTemplate) DeepCopyInto(out *ClaimTemplate) { *out = *t }

// AsMeta converts the selector to a metav1.LabelSelector.
func (s *LabelSelector) AsMeta() *metav1.LabelSelector {
	out := &metav1.LabelSelector{MatchLabels: make(map[string]string, len(s.MatchLabels))}
	for key, value := range s.MatchLabels {
		out.MatchLabels[key] = string(value)
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

// IntOrString converts the count to an intstr.IntOrString.
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

// Condition returns a condition of the status; nil if it lacks it.
func (s *CloneSetStatus) Condition(kind CloneSetConditionType) *CloneSetCondition {
	at := slices.IndexFunc(s.Conditions, func(c CloneSetCondition) bool { return c.Type == kind })
	if at < 0 {
		return nil
	}
	return &s.Conditions[at]
}

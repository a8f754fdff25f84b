// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// CloneSet keeps a number of identical Pods running. It updates Pods in place where
// possible, and holds each Pod at the gates of its lifecycle until the hooks in
// spec.lifecycle release it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=clone,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.scaleReplicas,selectorpath=.status.labelSelector
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.spec.replicas`,description="The desired number of Pods."
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedReplicas`,description="The number of Pods of the update revision."
// +kubebuilder:printcolumn:name="UPDATED_READY",type=integer,JSONPath=`.status.updatedReadyReplicas`,description="The number of those that are ready."
// +kubebuilder:printcolumn:name="UPDATED_AVAILABLE",type=integer,JSONPath=`.status.updatedAvailableReplicas`,description="The number of those that are available."
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.readyReplicas`,description="The number of ready Pods."
// +kubebuilder:printcolumn:name="TOTAL",type=integer,JSONPath=`.status.replicas`,description="The number of Pods."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CONTAINERS",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].name`
// +kubebuilder:printcolumn:name="IMAGES",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].image`
// +kubebuilder:printcolumn:name="SELECTOR",type=string,priority=1,JSONPath=`.status.labelSelector`
// +kubebuilder:printcolumn:name="WAITING",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Blocked")].message`,description="What the set waits for."
type CloneSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CloneSetSpec   `json:"spec"`
	Status CloneSetStatus `json:"status,omitempty"`
}

// CloneSetList is a list of CloneSets.
//
// +kubebuilder:object:root=true
type CloneSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CloneSet `json:"items"`
}

// CloneSetSpec is the desired state of a CloneSet.
//
// +kubebuilder:validation:XValidation:rule="self.selector == oldSelf.selector",message="selector cannot change once the CloneSet exists: Pods would be orphaned; create a new CloneSet instead",fieldPath=".selector"
// +kubebuilder:validation:XValidation:rule="!has(self.selector.matchLabels) || (has(self.template.metadata) && has(self.template.metadata.labels) && self.selector.matchLabels.all(k, k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k]))",message="selector.matchLabels must all be among template.metadata.labels: add the missing labels to the template",fieldPath=".selector"
// +kubebuilder:validation:XValidation:rule="!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels ? (e.operator == 'Exists' || (e.operator == 'In' && has(e.values) && self.template.metadata.labels[e.key] in e.values) || (e.operator == 'NotIn' && !(has(e.values) && self.template.metadata.labels[e.key] in e.values))) : e.operator in ['DoesNotExist', 'NotIn'])",message="selector.matchExpressions must match template.metadata.labels: change the template's labels or the expressions",fieldPath=".selector"
// +kubebuilder:validation:XValidation:rule="!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds == 2147483647 || self.progressDeadlineSeconds > (has(self.minReadySeconds) ? self.minReadySeconds : 0)",message="progressDeadlineSeconds must be larger than minReadySeconds, else no rollout can ever make its deadline; 2147483647 is no deadline",fieldPath=".progressDeadlineSeconds"
// +kubebuilder:validation:XValidation:rule="self.replicas == 0 || !((type(self.updateStrategy.maxUnavailable) == int ? self.updateStrategy.maxUnavailable == 0 : self.updateStrategy.maxUnavailable.matches('^0+%$')) && (type(self.updateStrategy.maxSurge) == int ? self.updateStrategy.maxSurge == 0 : self.updateStrategy.maxSurge.matches('^0+%$')))",message="updateStrategy.maxUnavailable and updateStrategy.maxSurge cannot both be 0: no Pod could ever be updated; raise one of them",fieldPath=".updateStrategy"
// +kubebuilder:validation:XValidation:rule="self.replicas == 0 || self.updateStrategy.type != 'InPlaceOnly' || (type(self.updateStrategy.maxSurge) == int ? self.updateStrategy.maxSurge == 0 : self.updateStrategy.maxSurge.matches('^0+%$'))",message="maxSurge must be 0 with type InPlaceOnly, which never creates a Pod for an update; remove maxSurge or choose InPlaceIfPossible",fieldPath=".updateStrategy.maxSurge"
// +kubebuilder:validation:XValidation:rule="!has(self.volumeClaimTemplates) || !has(self.template.spec) || !has(self.template.spec.volumes) || [self.volumeClaimTemplates.map(t, t.metadata.name)].all(claims, self.template.spec.volumes.all(v, !(v.name in claims)))",message="a volume of template.spec.volumes has the name of one of volumeClaimTemplates, which is a volume of every Pod: remove it or rename one of them",fieldPath=".template.spec.volumes"
// +kubebuilder:validation:XValidation:rule="!has(self.template.spec) || [(has(self.template.spec.volumes) ? self.template.spec.volumes.map(v, v.name) : []) + (has(self.volumeClaimTemplates) ? self.volumeClaimTemplates.map(t, t.metadata.name) : [])].all(names, self.template.spec.containers.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m, m.name in names)))",message="each of volumeMounts must name a volume: add it to template.spec.volumes or volumeClaimTemplates, or correct its name",fieldPath=".template.spec.containers"
// +kubebuilder:validation:XValidation:rule="!has(self.template.spec) || !has(self.template.spec.initContainers) || [(has(self.template.spec.volumes) ? self.template.spec.volumes.map(v, v.name) : []) + (has(self.volumeClaimTemplates) ? self.volumeClaimTemplates.map(t, t.metadata.name) : [])].all(names, self.template.spec.initContainers.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m, m.name in names)))",message="each of volumeMounts must name a volume: add it to template.spec.volumes or volumeClaimTemplates, or correct its name",fieldPath=".template.spec.initContainers"
type CloneSetSpec struct {
	// Replicas is the desired number of Pods. Default: 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// Selector matches the set's Pods within its namespace. It must match the
	// template's labels and is immutable.
	Selector LabelSelector `json:"selector"`

	// Template describes the Pods to create. Fields that this version of the controller
	// does not know are passed to the Pods unchanged.
	Template PodTemplate `json:"template"`

	// VolumeClaimTemplates are the PersistentVolumeClaims that each Pod gets for
	// itself, named "<template>-<cloneset>-<instance id>". Changing only these creates
	// no new revision: existing claims stay as they are, and new Pods get claims from
	// the current templates.
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.metadata.name == b.metadata.name))",message="each of volumeClaimTemplates needs a metadata.name of its own: it names the volume in the Pod"
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	VolumeClaimTemplates []ClaimTemplate `json:"volumeClaimTemplates,omitempty"`

	// ScaleStrategy controls how Pods are added and removed.
	// +optional
	ScaleStrategy CloneSetScaleStrategy `json:"scaleStrategy,omitempty"`

	// UpdateStrategy controls how Pods change to a new template.
	// +kubebuilder:default={type: "ReCreate", partition: 0, maxUnavailable: "20%", maxSurge: 0}
	// +optional
	UpdateStrategy CloneSetUpdateStrategy `json:"updateStrategy,omitempty"`

	// RevisionHistoryLimit is the number of unused revisions to keep for a rollback.
	// Default: 10.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +optional
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`

	// MinReadySeconds is how long, in seconds, a Pod must be ready before it counts as
	// available. Default: 0.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`

	// ProgressDeadlineSeconds is how long, in seconds, a rollout may make no progress
	// before the condition Progressing becomes False. The rollout continues. Default:
	// no deadline.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`

	// Lifecycle names the hooks that hold Pods at the gates of their lifecycle.
	// Default: no hooks.
	// +optional
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// LabelSelector is metav1.LabelSelector with the size bounds that the CloneSet's
// validation rules need.
//
// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="selector cannot be empty: it would select every Pod of the namespace; set selector.matchLabels to labels of the template"
type LabelSelector struct {
	// MatchLabels are labels that a Pod must have.
	// +optional
	MatchLabels Labels `json:"matchLabels,omitempty"`
	// MatchExpressions are requirements that a Pod's labels must meet.
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	// +optional
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// Labels maps label keys to values.
//
// +kubebuilder:validation:MaxProperties=1024
// +kubebuilder:validation:XValidation:rule="self.all(key, !format.qualifiedName().validate(key).hasValue())",message="each key must be a label key such as \"app\" or \"example.com/app\": 63 letters, digits, '-', '_' and '.' at most, behind an optional DNS name and a slash"
type Labels map[string]LabelValue

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// LabelSelectorRequirement is metav1.LabelSelectorRequirement with size bounds.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="the operators In and NotIn need values, Exists and DoesNotExist take none",fieldPath=".values"
type LabelSelectorRequirement struct {
	// Key is the label's key.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator relates the key to the values: In, NotIn, Exists or DoesNotExist.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// Values are the values for In and NotIn. Exists and DoesNotExist take none.
	// +kubebuilder:validation:MaxItems=4096
	// +listType=atomic
	// +optional
	Values []LabelValue `json:"values,omitempty"`
}

// CloneSetScaleStrategy controls how Pods are added and removed.
type CloneSetScaleStrategy struct {
	// PodsToDelete names Pods to delete first. If replicas stays the same, they are
	// replaced. The controller removes the names of deleted Pods from the list.
	// +listType=set
	// +optional
	PodsToDelete []string `json:"podsToDelete,omitempty"`
	// MaxUnavailable limits how many Pods may be unavailable while Pods are added: a
	// number, or a percentage of replicas, rounded up. Default: no limit.
	// +optional
	MaxUnavailable *Count `json:"maxUnavailable,omitempty"`
	// DisablePVCReuse deletes the claims of a Pod that failed, or that someone other
	// than the controller deleted, so that its replacement starts with new ones.
	// Default: false, the replacement takes over the instance id and the claims.
	// +optional
	DisablePVCReuse bool `json:"disablePVCReuse,omitempty"`
}

// Count is a number of Pods (5) or a percentage of them ("20%").
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 2147483647 : self.matches('^[0-9]+%$')",message="must be a number of Pods such as 5, without quotes, or a percentage such as \"20%\""
type Count intstr.IntOrString

// UpdateStrategyType is how Pods change to a new template. Empty means ReCreate.
//
// +kubebuilder:validation:Enum="";ReCreate;InPlaceIfPossible;InPlaceOnly;OnDelete
type UpdateStrategyType string

const (
	// UpdateReCreate deletes the old Pod and creates a new one.
	UpdateReCreate UpdateStrategyType = "ReCreate"
	// UpdateInPlaceIfPossible updates in place where possible, and recreates otherwise.
	UpdateInPlaceIfPossible UpdateStrategyType = "InPlaceIfPossible"
	// UpdateInPlaceOnly never recreates a Pod.
	UpdateInPlaceOnly UpdateStrategyType = "InPlaceOnly"
	// UpdateOnDelete waits for someone to delete the Pod.
	UpdateOnDelete UpdateStrategyType = "OnDelete"
)

// CloneSetUpdateStrategy controls how Pods change to a new template.
type CloneSetUpdateStrategy struct {
	// Type is how Pods are updated: ReCreate deletes the Pod and creates a new one,
	// InPlaceIfPossible updates in place where possible and recreates otherwise,
	// InPlaceOnly never recreates, and OnDelete waits for someone to delete the Pod.
	// Default: ReCreate.
	// +kubebuilder:default=ReCreate
	// +optional
	Type UpdateStrategyType `json:"type,omitempty"`
	// Partition is the number of Pods that keep the old revision: a number, or a
	// percentage of replicas, rounded up. Default: 0.
	// +kubebuilder:default=0
	// +optional
	Partition *Count `json:"partition,omitempty"`
	// MaxUnavailable is how many Pods may be unavailable during an update: a number, or
	// a percentage of replicas, rounded up if maxSurge is 0 and down otherwise.
	// Default: 20%.
	// +kubebuilder:default="20%"
	// +optional
	MaxUnavailable *Count `json:"maxUnavailable,omitempty"`
	// MaxSurge is how many Pods above replicas may exist during an update: a number, or
	// a percentage of replicas, rounded up. Default: 0.
	// +kubebuilder:default=0
	// +optional
	MaxSurge *Count `json:"maxSurge,omitempty"`
	// Paused stops updates. The controller still maintains the number of replicas.
	// Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// PriorityStrategy sets the order in which Pods are updated.
	// +optional
	PriorityStrategy *UpdatePriorityStrategy `json:"priorityStrategy,omitempty"`
	// ScatterStrategy spreads the Pods with these labels evenly over the rollout.
	// +listType=map
	// +listMapKey=key
	// +listMapKey=value
	// +optional
	ScatterStrategy []UpdateScatterTerm `json:"scatterStrategy,omitempty"`
	// InPlaceUpdateStrategy tunes in-place updates.
	// +optional
	InPlaceUpdateStrategy *InPlaceUpdateStrategy `json:"inPlaceUpdateStrategy,omitempty"`
}

// InPlaceUpdateStrategy tunes in-place updates.
type InPlaceUpdateStrategy struct {
	// GracePeriodSeconds is how long, in seconds, a Pod stays out of its endpoints
	// before its containers change. Default: 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	GracePeriodSeconds int32 `json:"gracePeriodSeconds,omitempty"`
}

// UpdatePriorityStrategy sets the order in which Pods are updated, either by weight or
// by the trailing number of a label's value.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.orderPriority) && size(self.orderPriority) > 0 && has(self.weightPriority) && size(self.weightPriority) > 0)",message="orderPriority and weightPriority exclude each other: remove one"
type UpdatePriorityStrategy struct {
	// OrderPriority lists label keys. The first key that a Pod has decides: a larger
	// trailing number in the label's value is updated earlier.
	// +listType=atomic
	// +optional
	OrderPriority []UpdatePriorityOrderTerm `json:"orderPriority,omitempty"`
	// WeightPriority lists selectors with weights. The Pod with the larger sum is
	// updated earlier.
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	// +optional
	WeightPriority []UpdatePriorityWeightTerm `json:"weightPriority,omitempty"`
}

// UpdatePriorityOrderTerm names a label that orders Pods.
type UpdatePriorityOrderTerm struct {
	// OrderedKey is the label's key.
	// +kubebuilder:validation:MinLength=1
	OrderedKey string `json:"orderedKey"`
}

// UpdatePriorityWeightTerm gives matching Pods a weight.
type UpdatePriorityWeightTerm struct {
	// Weight is added to the weight of each matching Pod, from 0 to 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`
	// MatchSelector matches the Pods.
	MatchSelector LabelSelector `json:"matchSelector"`
}

// UpdateScatterTerm selects the Pods to spread by a label.
type UpdateScatterTerm struct {
	// Key is the label's key.
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
	// Value is the label's value.
	Value string `json:"value"`
}

// Lifecycle names the hooks that hold Pods at the gates of their lifecycle.
type Lifecycle struct {
	// PreNormal holds a new Pod in PreparingNormal until the Pod has all the hook's
	// labels and finalizers.
	// +optional
	PreNormal *LifecycleHook `json:"preNormal,omitempty"`
	// PreDelete holds a Pod in PreparingDelete while the Pod has any of the hook's
	// labels or finalizers.
	// +optional
	PreDelete *LifecycleHook `json:"preDelete,omitempty"`
	// InPlaceUpdate holds a Pod in PreparingUpdate while the Pod has any of the hook's
	// labels or finalizers, and in Updated until it has all of them again.
	// +optional
	InPlaceUpdate *LifecycleHook `json:"inPlaceUpdate,omitempty"`
}

// LifecycleHook is a set of labels and finalizers with which an external component
// holds a Pod.
type LifecycleHook struct {
	// LabelsHandler are labels that hold the Pod while it has them with these values.
	// +optional
	LabelsHandler map[string]string `json:"labelsHandler,omitempty"`
	// FinalizersHandler are finalizers that hold the Pod while it has them.
	// +listType=atomic
	// +optional
	FinalizersHandler []string `json:"finalizersHandler,omitempty"`
	// MarkPodNotReady makes the Pod not ready while the hook holds it. Only preDelete
	// and inPlaceUpdate use it. Default: false.
	// +optional
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

// CloneSetStatus is the last observed state of a CloneSet.
type CloneSetStatus struct {
	// ObservedGeneration is the spec's generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`
	// Replicas is the number of Pods.
	// +optional
	Replicas int32 `json:"replicas"`
	// ReadyReplicas is the number of ready Pods.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// AvailableReplicas is the number of Pods that have been ready, in the state
	// Normal, for minReadySeconds.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`
	// UpdatedReplicas is the number of Pods at the update revision.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// UpdatedReadyReplicas is the number of ready Pods at the update revision.
	// +optional
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas"`
	// UpdatedAvailableReplicas is the number of available Pods at the update revision.
	// +optional
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas"`
	// ExpectedUpdatedReplicas is how many Pods should be at the update revision:
	// replicas minus the partition.
	// +optional
	ExpectedUpdatedReplicas int32 `json:"expectedUpdatedReplicas"`
	// UpdateRevision names the template's ControllerRevision.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// CurrentRevision names the ControllerRevision at which the last rollout finished.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// CollisionCount counts hash collisions of revisions.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Conditions show what the set is doing and what it waits for: FailedScale,
	// FailedUpdate, Progressing and Blocked.
	// +listType=map
	// +listMapKey=type
	Conditions []CloneSetCondition `json:"conditions,omitempty"`
	// ScaleReplicas is the number of Pods, and at most spec.replicas: the scale subresource
	// has it as status.replicas, so that an autoscaler does not take surge Pods and Pods that
	// drain for Pods that are wanted.
	// +optional
	ScaleReplicas int32 `json:"scaleReplicas"`
	// LabelSelector selects the Pods that an autoscaler counts, for the scale subresource:
	// the selector as a string. While there are more Pods than replicas, it leaves out the
	// lifecycle states of those that are out of service.
	LabelSelector string `json:"labelSelector,omitempty"`
}

// CloneSetConditionType names a condition of a CloneSet.
type CloneSetConditionType string

const (
	// ConditionFailedScale is True while Pods cannot be created or deleted.
	ConditionFailedScale CloneSetConditionType = "FailedScale"
	// ConditionFailedUpdate is True while Pods cannot be updated.
	ConditionFailedUpdate CloneSetConditionType = "FailedUpdate"
	// ConditionProgressing shows whether the rollout makes progress.
	ConditionProgressing CloneSetConditionType = "Progressing"
	// ConditionBlocked is True while Pods wait for a hook, or for a container that
	// cannot start or keeps exiting. Its message names the Pod that has waited longest,
	// what it waits for, and since when.
	ConditionBlocked CloneSetConditionType = "Blocked"
)

// CloneSetCondition is one observation about a CloneSet.
type CloneSetCondition struct {
	// Type names the condition.
	Type CloneSetConditionType `json:"type"`
	// Status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// LastTransitionTime is when the status last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// LastUpdateTime is when any part of the condition last changed.
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitempty"`
	// Reason is a single word for programs.
	Reason string `json:"reason,omitempty"`
	// Message is a sentence for people.
	Message string `json:"message,omitempty"`
}

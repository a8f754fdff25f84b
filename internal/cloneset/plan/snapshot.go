// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
)

// Snapshot is the input of a plan. It must not change while a plan is made, and the plan shares its
// Pods.
type Snapshot struct {
	// Now is the time of the decision.
	Now time.Time
	// Set is the name of the CloneSet.
	Set string
	// Deletion says what becomes of the set's Pods if it is being deleted.
	Deletion Deletion
	// ExcludePreparingDelete leaves Pods in PreparingDelete out of the replica count, so
	// that their replacements are created at once.
	ExcludePreparingDelete bool
	// Spec is what the user wants.
	Spec Spec
	// Current is the revision of the last finished rollout, Update that of the template.
	Current, Update *revision.Revision
	// UpdateRefused is why the API server refuses Pods of the update revision; "" if it
	// does not. While refused, no Pod is created in it or updated to it.
	UpdateRefused string
	// RefusedUntil is when the API server is asked again; zero if it is not.
	RefusedUntil time.Time
	// NoResize means that the API server resizes no Pods: other cpu or memory needs a new
	// Pod.
	NoResize bool
	// Revisions are all known revisions by hash, including Current and Update.
	Revisions map[string]*revision.Revision
	// Changes caches the changes that earlier plans with the same revisions computed; a plan adds its
	// own. Optional.
	Changes Changes
	// Drained is since when Pods are known to be out of service for an update: later than
	// their conditions say, if the API server was slow. For a Pod that is missing here,
	// its condition counts.
	Drained map[types.UID]time.Time
	// Pods are the set's own Pods in name order.
	Pods []*corev1.Pod
	// PodInfos are those of the Pods, by index; a Pod without one is read.
	PodInfos []*PodInfo
	// Failures are those of the previous plan, by the hash of the revision.
	Failures map[string]Failure
	// Deferred are the deletions that the API server has deferred, by the Pod's UID.
	Deferred map[types.UID]Deferral
	// Nodes are the labels of the Pods' nodes, if Spec.Spread names one, by node.
	Nodes map[string]map[string]string
	// GoingNodes are the nodes that Pods are to leave, and the taints that ask for it.
	GoingNodes map[string][]corev1.Taint
	// Pulls are the images that nodes pull before Pods leave service.
	Pulls Pulls
	// Trials are the API server's answers about updates in place, by the class of Pods; see Attempt. If
	// the map is nil, all updates count as accepted.
	Trials map[string]Trial
	// Claims are the set's own claims in name order.
	Claims []*corev1.PersistentVolumeClaim
	// DeletedInstances are the ids of instances whose claims are still to be deleted. This controller
	// has deleted their Pods, or may have done so if the answer was lost.
	DeletedInstances map[string]bool
	// ReleasedInstances are the ids of instances whose Pod exists but does not belong to the set:
	// it was released, and its claims are in use for as long as it runs.
	ReleasedInstances map[string]bool
	// ClaimsRefused is why the API server refuses claims of the templates; "" if it does
	// not. While refused, no Pod is created that needs one, and none is recreated.
	ClaimsRefused string
	// ClaimsRefusedUntil is when the API server is asked again; zero if it is not.
	ClaimsRefusedUntil time.Time
	// NamespaceEnds means that the namespace is being deleted: nothing can be created there.
	NamespaceEnds bool
	// Starts bounds how many Pods one pass takes out of service or creates, so that
	// finished Pods never wait behind a long queue of new starts. Half as many may be
	// updates. 0 means no bound.
	Starts int
}

// WithTrials returns the snapshot with other answers to trials.
func (s *Snapshot) WithTrials(trials map[string]Trial) *Snapshot {
	next := *s
	next.Trials = trials
	return &next
}

// After returns the snapshot with the Pods and the deferred deletions as a pass left them.
func (s *Snapshot) After(pods []*corev1.Pod, deferred map[types.UID]Deferral) *Snapshot {
	next := *s
	next.Pods, next.PodInfos, next.Deferred = pods, ReadPods(pods, s.PodInfos), deferred
	return &next
}

// Changes are the changes that lead to the update revision, by the hash of the old one.
type Changes map[string]func() (*inplace.Change, error)

// DefaultStarts is Snapshot.Starts of a controller that does not know its API server yet.
const DefaultStarts = 32

// Spec is what the user wants: defaults filled in, percentages not yet computed, and
// independent of any API version.
type Spec struct {
	Replicas int
	// ScaleMaxUnavailable bounds unavailable Pods while Pods are added; nil means no
	// bound.
	ScaleMaxUnavailable *Count
	// PodsToDelete names Pods to be deleted first.
	PodsToDelete []string
	// ClaimTemplates are the names of the claims that each Pod gets.
	ClaimTemplates []string
	// DisableClaimReuse deletes the claims with their Pod, even if somebody else deleted that.
	DisableClaimReuse bool
	// Method is how Pods change to a new revision.
	Method apps.UpdateStrategyType
	// Partition is how many Pods keep the old revision.
	Partition      Count
	MaxUnavailable Count
	MaxSurge       Count
	Paused         bool
	// Weights, or the trailing numbers of the labels OrderKeys, and Scatter order the update.
	Weights   []WeightTerm
	OrderKeys []apps.UpdatePriorityOrderTerm
	Scatter   []apps.UpdateScatterTerm
	// Grace is how long a Pod is not ready before its containers change.
	Grace time.Duration
	// MinReady is how long a Pod must be ready to be available.
	MinReady time.Duration
	// ProgressDeadline is how long a rollout may stall; 0 means forever.
	ProgressDeadline time.Duration
	// Spread decides which Pods share a domain; without it, a node is one.
	Spread []SpreadTerm
	Pull   PullSpec
	Hooks  lifecycle.Hooks
}

// WeightTerm gives matching Pods a weight.
type WeightTerm struct {
	Weight   int
	Selector labels.Selector
}

// beginsNone reports whether the set begins no update.
func (s *Spec) beginsNone() bool { return s.Method == apps.UpdateOnDelete || s.Paused }

// SpecOf reads a CloneSet. Admission refuses illegal values; for an object older than those rules
// SpecOf returns an error that names the field.
func SpecOf(set *apps.CloneSet) (Spec, error) {
	in := &set.Spec
	spec := Spec{
		Replicas:       int(ptr.Deref(in.Replicas, 1)),
		PodsToDelete:   in.ScaleStrategy.PodsToDelete,
		Method:         cmp.Or(in.UpdateStrategy.Type, apps.UpdateReCreate),
		Paused:         in.UpdateStrategy.Paused,
		MinReady:       time.Duration(in.MinReadySeconds) * time.Second,
		Hooks:          lifecycle.FromSpec(in.Lifecycle),
		Spread:         readSpread(&in.Template),
		Scatter:        in.UpdateStrategy.ScatterStrategy,
		Pull:           readPull(set.Annotations),
		ClaimTemplates: list.Map(in.VolumeClaimTemplates, func(t apps.ClaimTemplate) string { return t.Metadata.Name }),

		MaxUnavailable:    Count{Value: 20, Percent: true},
		DisableClaimReuse: in.ScaleStrategy.DisablePVCReuse,
	}

	if in.ProgressDeadlineSeconds != nil && *in.ProgressDeadlineSeconds != math.MaxInt32 { // as for a Deployment, this means none
		spec.ProgressDeadline = time.Duration(*in.ProgressDeadlineSeconds) * time.Second
	}
	if in.UpdateStrategy.InPlaceUpdateStrategy != nil {
		spec.Grace = time.Duration(in.UpdateStrategy.InPlaceUpdateStrategy.GracePeriodSeconds) * time.Second
	}
	if err := readCounts(in, &spec); err != nil {
		return Spec{}, err
	}
	return spec, readPriority(in.UpdateStrategy.PriorityStrategy, &spec)
}

func readCounts(in *apps.CloneSetSpec, spec *Spec) error {
	if in.ScaleStrategy.MaxUnavailable != nil {
		spec.ScaleMaxUnavailable = new(Count)
	}
	for _, field := range []struct {
		name  string
		value *apps.Count
		to    *Count
	}{
		{"updateStrategy.partition", in.UpdateStrategy.Partition, &spec.Partition},
		{"updateStrategy.maxUnavailable", in.UpdateStrategy.MaxUnavailable, &spec.MaxUnavailable},
		{"updateStrategy.maxSurge", in.UpdateStrategy.MaxSurge, &spec.MaxSurge},
		{"scaleStrategy.maxUnavailable", in.ScaleStrategy.MaxUnavailable, spec.ScaleMaxUnavailable},
	} {
		if field.value == nil {
			continue
		}
		count, err := readCount(*field.value)
		if err != nil {
			return fmt.Errorf("spec.%s: %w", field.name, err)
		}
		*field.to = count
	}
	return nil
}

func readCount(value apps.Count) (Count, error) {
	switch {
	case value.Type == intstr.String:
		return parsePercent(value.StrVal)
	case value.IntVal < 0:
		return Count{}, fmt.Errorf("%d is negative", value.IntVal)
	}
	return Count{Value: int(value.IntVal)}, nil
}

func readPriority(in *apps.UpdatePriorityStrategy, spec *Spec) error {
	if in == nil {
		return nil
	}
	spec.OrderKeys = in.OrderPriority
	for i := range in.WeightPriority {
		selector, err := metav1.LabelSelectorAsSelector(in.WeightPriority[i].MatchSelector.AsMeta())
		if err != nil {
			return fmt.Errorf("spec.updateStrategy.priorityStrategy.weightPriority[%d].matchSelector: %w", i, err)
		}
		spec.Weights = append(spec.Weights, WeightTerm{
			Weight: int(in.WeightPriority[i].Weight), Selector: selector,
		})
	}
	return nil
}

// readPull reads the annotations about images. An unreadable one counts as missing: it is no reason to
// stop.
func readPull(annotations map[string]string) PullSpec {
	pull := PullSpec{Off: annotations[apps.AnnotationImagesFirst] == "false", Timeout: DefaultPullTimeout}
	if count, err := readCount(apps.Count(intstr.Parse(annotations[apps.AnnotationPullParallelism]))); err == nil {
		pull.Parallel = &count
	}
	if ready, err := strconv.Atoi(annotations[apps.AnnotationPullMinUpdatedReady]); err == nil {
		pull.Ready = ready
	}
	if seconds, err := strconv.ParseInt(annotations[apps.AnnotationPullTimeout], 10, 32); err == nil && seconds > 0 { // a deadline has 32 bits
		pull.Timeout = time.Duration(seconds) * time.Second
	}
	return pull
}

// readSpread reads the template's topologySpreadConstraints. It skips what cannot be
// read: the API server refuses the template for it, and says why.
func readSpread(template *apps.PodTemplate) []SpreadTerm {
	if !bytes.Contains(template.Raw(), []byte(`"topologySpreadConstraints"`)) {
		return nil // most sets need no decoding
	}
	var declared struct {
		Spec struct {
			Constraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints"`
		} `json:"spec"`
	}
	if json.Unmarshal(template.Raw(), &declared) != nil {
		return nil
	}
	var out []SpreadTerm
	for _, c := range declared.Spec.Constraints {
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil || c.LabelSelector == nil { // without a selector it counts no Pod
			continue
		}
		out = append(out, SpreadTerm{TopologyKey: c.TopologyKey, Selector: selector, MatchLabelKeys: c.MatchLabelKeys})
	}
	return out
}

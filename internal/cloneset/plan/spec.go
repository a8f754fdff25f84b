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
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/list"
)

// SpecOf reads a CloneSet. Admission refuses illegal values; an object older than those
// rules is refused here, with an error that names the field, and never read as something
// else.
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

// readPull reads what annotations say of images. An unreadable one counts as missing: what it
// asks for is no reason to stop.
func readPull(annotations map[string]string) PullSpec {
	pull := PullSpec{Off: annotations[apps.AnnotationImagesFirst] == "false", Timeout: DefaultPullTimeout}
	if text := annotations[apps.AnnotationPullParallelism]; text != "" {
		if count, err := readCount(apps.Count(intstr.Parse(text))); err == nil {
			pull.Parallel = &count
		}
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
		return nil // spares most sets the decoding
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

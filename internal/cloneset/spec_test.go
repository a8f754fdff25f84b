// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// TestLargePercentages: more than all Pods is read as more than all, however many digits
// it has. What is no percentage stays an error.
func TestLargePercentages(t *testing.T) {
	set := web()
	for text, want := range map[string]int{
		"150%": 150, "9999%": 9999, "10000%": 9999, "99999999999999999999%": 9999, "0000000%": 0, "000020%": 20,
	} {
		set.Spec.UpdateStrategy.Partition = (*apps.Count)(&intstr.IntOrString{Type: intstr.String, StrVal: text})
		spec, err := specOf(set)
		if err != nil || spec.Partition != (plan.Count{Value: want, Percent: true}) {
			t.Errorf("partition %q is read as %+v, %v", text, spec.Partition, err)
		}
	}
	for _, text := range []string{"1.5%", "10000", "-10000%", "10 000%", "10000%%"} {
		set.Spec.UpdateStrategy.Partition = (*apps.Count)(&intstr.IntOrString{Type: intstr.String, StrVal: text})
		if spec, err := specOf(set); err == nil || !strings.HasPrefix(err.Error(), "spec.updateStrategy.partition: ") {
			t.Errorf("partition %q is read as %+v, %v", text, spec.Partition, err)
		}
	}
}

// TestTypes: the empty type is ReCreate.
func TestTypes(t *testing.T) {
	for kind, want := range map[apps.UpdateStrategyType]plan.Method{
		"": plan.Recreate, apps.UpdateReCreate: plan.Recreate, apps.UpdateInPlaceOnly: plan.InPlaceOnly, apps.UpdateOnDelete: plan.OnDelete,
	} {
		set := web()
		set.Spec.UpdateStrategy.Type = kind
		if spec, err := specOf(set); err != nil || spec.Method != want {
			t.Errorf("type %q is read as %q, %v", kind, spec.Method, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
)

// A missing image holds the rollout, and the set reports it although it has no
// progressDeadlineSeconds; with a good image the rollout continues, and the report goes
// away.
func TestAMissingImageIsTold(t *testing.T) {
	for _, kind := range []string{"InPlaceIfPossible", "ReCreate"} {
		t.Run(kind, func(t *testing.T) {
			s := begin(t)
			s.create(plain, "spec.updateStrategy.type", kind)
			s.settled(3)
			s.image("example.test/missing:v1")
			s.until("the condition Blocked to name the container", func() bool {
				c := s.condition(apps.ConditionBlocked)
				return c.Status == corev1.ConditionTrue && c.Reason == cloneset.ReasonContainerStuck &&
					strings.Contains(c.Message, "its container main with image example.test/missing:v1 cannot be started (ImagePullBackOff) since ")
			})
			s.image("example.test/web:v2")
			s.settled(3)
			s.until("nothing to be blocked", func() bool { return s.condition(apps.ConditionBlocked).Status == corev1.ConditionFalse })
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/e2e"
)

// standstill is how long a rollout that cannot continue is watched.
const standstill = 8 * time.Second

// wantStandstill waits until one Pod is down for a reason and the set reports it, and
// checks that the others keep serving the old version.
func wantStandstill(s *e2e.Scene, reasons ...string) {
	s.Step("the rollout stands still")
	s.Await("a Pod that is down", func(now e2e.State) string {
		for _, pod := range now.Pods {
			if slices.Contains(reasons, waitingFor(&pod)) {
				return ""
			}
		}
		return "none waits for any of " + fmt.Sprint(reasons)
	})
	awaitCondition(s, appsv1alpha1.ConditionBlocked, corev1.ConditionTrue, "ContainerStuck", "container main")
	s.Hold("two of three Pods go on serving v1", standstill, func(now e2e.State) string {
		if n := serving(now, "v1"); n != 2 {
			return fmt.Sprintf("%d do", n)
		}
		return ""
	})
}

var failures = []e2e.Story{
	{
		Name:  "missing-image",
		About: "an image that does not exist, in place: the rollout stops at one Pod, says why, fails its progressDeadlineSeconds, and goes on when the image is corrected",
		Takes: 30 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {progressDeadlineSeconds: 10}`)
			before := s.State()
			s.Image("missing")
			wantStandstill(s, "ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff")
			awaitCondition(s, appsv1alpha1.ConditionProgressing, corev1.ConditionFalse, "ProgressDeadlineExceeded", "timed out progressing")
			s.Image("v2")
			after := s.Settle()
			wantVersion(s, after, "v2")
			wantSame(s, before, after)
			awaitCondition(s, appsv1alpha1.ConditionBlocked, corev1.ConditionFalse, "", "")
		},
	},
	{
		Name:  "crash-loop",
		About: "a new version that crashes: the rollout stops at one Pod, says why, fails its progressDeadlineSeconds, and is rolled back",
		Takes: 25 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {progressDeadlineSeconds: 10}`)
			s.Image(images.Broken)
			wantStandstill(s, "CrashLoopBackOff")
			awaitCondition(s, appsv1alpha1.ConditionProgressing, corev1.ConditionFalse, "ProgressDeadlineExceeded", "timed out progressing")
			update(s, "v1")
			awaitCondition(s, appsv1alpha1.ConditionBlocked, corev1.ConditionFalse, "", "")
		},
	},
}

// awaitCondition waits for a condition of the set, with a reason and a part of a message.
func awaitCondition(s *e2e.Scene, kind appsv1alpha1.CloneSetConditionType, status corev1.ConditionStatus, reason, message string) {
	s.Await(fmt.Sprintf("the condition %s=%s", kind, status), func(now e2e.State) string {
		c := now.Condition(kind)
		if c.Status != status || !strings.Contains(c.Reason, reason) || !strings.Contains(c.Message, message) {
			return fmt.Sprintf("it is %+v", c)
		}
		return ""
	})
}

// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/stage"
)

// The labels of the hook preNormal: Usher answers one, the story the other.
const (
	labelRegistered = "example.com/registered"
	labelWarm       = "example.com/warm"
)

// coldTime is how long each new Pod is kept waiting.
const coldTime = 2 * time.Second

var joining = []e2e.Story{
	{
		Name:  "prenormal-two",
		About: "new Pods wait for two labels, of Usher and of somebody else; until then no old one goes",
		Play: func(s *e2e.Scene) {
			hook := `spec: {lifecycle: {preNormal: {labelsHandler: {%s: "true"}}}, updateStrategy: {type: ReCreate, maxSurge: 1, maxUnavailable: 0}}`
			s.OpenWith(fmt.Sprintf(`spec: {hooks: {created: null, preNormal: %s}}`, labelRegistered), fmt.Sprintf(hook, labelRegistered))
			old := s.State()
			s.Change(fmt.Sprintf(hook, labelWarm))
			s.Image("v2")
			for range old.Pods {
				waiting := s.Await("a new Pod that waits for the story alone", func(now e2e.State) string {
					few(s, len(old.Pods))
					return notCold(s, now, len(old.Pods)+1)
				})
				s.Hold("a new Pod that waits", coldTime, func(now e2e.State) string { return changed(waiting, now) })
				warm(s, coldPod(waiting).Name)
			}
			after := s.Settle()
			wantVersion(s, after, "v2")
			wantOthers(s, old, after)
		},
	},
}

// notCold returns what is missing until there are that many Pods, all Normal except one
// that callers already find and that lacks the story's label.
func notCold(s *e2e.Scene, now e2e.State, pods int) string {
	cold := coldPod(now)
	switch {
	case cold == nil:
		return "there is none"
	case len(now.Pods) != pods || now.In(appsv1alpha1.StateNormal) != pods-1:
		return fmt.Sprintf("%d Pods, %d of them Normal", len(now.Pods), now.In(appsv1alpha1.StateNormal))
	case !stage.Ready(cold) || cold.Labels[labelRegistered] != "true" || !slices.Contains(s.Callers().Known(), cold.Status.PodIP+":8080"):
		return "it is not registered yet"
	}
	return ""
}

func coldPod(now e2e.State) *corev1.Pod {
	for i := range now.Pods {
		pod := &now.Pods[i]
		if pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StatePreparingNormal) && pod.Labels[labelWarm] == "" {
			return pod
		}
	}
	return nil
}

// few ends the story if callers know fewer Pods.
func few(s *e2e.Scene, pods int) {
	if n := len(s.Callers().Known()); n < pods {
		s.Fatalf("callers know %d Pods, want at least %d", n, pods)
	}
}

// changed reports Pods that came, went or changed their lifecycle state.
func changed(before, now e2e.State) string {
	if names(before) != names(now) {
		return fmt.Sprintf("want the Pods %s, have %s", names(before), names(now))
	}
	for _, pod := range now.Pods {
		was, is := before.Pod(pod.Name).Labels[appsv1alpha1.LabelLifecycleState], pod.Labels[appsv1alpha1.LabelLifecycleState]
		if is != was {
			return fmt.Sprintf("%s was %s and is %s", pod.Name, was, is)
		}
	}
	return ""
}

// warm sets the story's label, and waits until the Pod proceeds.
func warm(s *e2e.Scene, name string) {
	s.Step("%s is warm", name)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace(), Name: name}}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, labelWarm)
	s.Check(s.Kube().Patch(s.Context(), pod, client.RawPatch(types.MergePatchType, []byte(patch))))
	s.Await(name+" to be Normal", func(now e2e.State) string {
		if pod := now.Pod(name); pod == nil || pod.Labels[appsv1alpha1.LabelLifecycleState] != string(appsv1alpha1.StateNormal) {
			return "it is not"
		}
		return ""
	})
}

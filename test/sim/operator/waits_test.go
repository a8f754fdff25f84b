// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/view"
	"github.com/usher-dev/usher/test/model"
)

// usherIsNext reports whether the Pod is Usher's to bring on: a Registration selects it, or Usher holds it, and
// its hook is not answered. Otherwise its CloneSet's controller is next, and says what it waits for.
func (s *simulation) usherIsNext(pod *corev1.Pod) bool {
	selects := func(r *usher.Registration) bool { return r.DeletionTimestamp == nil && r.Selects(pod.Labels) }
	known := slices.ContainsFunc(model.List[*usher.Registration](s.server.Objects), selects)
	return (known || controllerutil.ContainsFinalizer(pod, usher.Finalizer)) && !answered(pod)
}

// answered reports whether the hook of the Pod's state is answered.
func answered(pod *corev1.Pod) bool {
	switch plan.StateOf(pod) {
	case apps.StatePreparingNormal:
		return pod.Labels[keyPreNormal] == "true"
	case apps.StatePreparingUpdate:
		return pod.Labels[keyInPlace] == "false"
	case apps.StateUpdating: // the kubelet is next
		return true
	case apps.StateUpdated:
		return pod.Labels[keyInPlace] == "true"
	case apps.StatePreparingDelete:
		return pod.Labels[keyDelete] == "false"
	case apps.StateNormal: // no hook holds it
	}
	return false
}

// standStill lets more than a minute pass in which nobody acts but the operator, whatever has failed by then. Of
// each Pod that is short of its goal, the plugin then says what it waits for.
func (s *simulation) standStill() {
	s.log("everybody but Usher stands still")
	s.process.left = unlimited
	end := s.clock.Now().Add(75 * time.Second)
	for written := true; written || s.clock.Now().Before(end); {
		before := s.server.Version
		s.refresh()
		s.probe()
		s.pass()
		s.check()
		s.wait(3 * time.Second)
		written = s.server.Version > before && s.clock.Now().Before(end.Add(time.Minute)) // the next pass goes on
	}
	s.refresh()
	var all []metav1.Object
	for _, objects := range s.cached {
		for _, object := range objects {
			all = append(all, object)
		}
	}
	for _, pod := range s.pods() {
		seen := view.Of(view.Gather(s.clock.Now(), pod, all)).Members[0]
		s.told += len(seen.Waits)
		s.checkMissed(pod, seen.Trouble)
		if what := unfinished(pod); what != "" && s.usherIsNext(pod) && len(seen.Waits) == 0 {
			s.fail("%s: %s, and nothing says what it waits for: %s, ready %t", pod.Name, what, seen.State, seen.Ready)
		}
	}
}

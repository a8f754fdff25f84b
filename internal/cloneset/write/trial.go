// SPDX-License-Identifier: Apache-2.0

package write

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/encode"
)

// Trial returns the patch for a dry run of an update in place on a subresource of the Pod as it is; no
// data if the update writes nothing there. It differs from the later patch: the Pod is in service, and
// none of its containers waits for others. The patch of the status also changes the Pod's state, as the
// last write of an update does.
func Trial(subresource string, pod *corev1.Pod, update *plan.Action, keepRecord bool, now time.Time) (kind types.PatchType, data []byte) {
	switch {
	case subresource == "status" && len(update.Conditions) > 0:
		move := plan.Action{Verb: plan.Move, To: update.To, Conditions: update.Conditions}
		return types.StrategicMergePatchType, status(pod, &move, now)
	case subresource == "":
		return types.JSONPatchType, tryUpdate(pod, update, keepRecord, now)
	case subresource == "resize":
		if wanted := update.Change.ResizesOf(pod); len(wanted) > 0 {
			p := basis(pod)
			p.testSpec(pod)
			inContainers(&p, pod, "add", "resources", wanted)
			return types.JSONPatchType, encode.JSON(p)
		}
	}
	return types.JSONPatchType, nil
}

func tryUpdate(pod *corev1.Pod, update *plan.Action, keepRecord bool, now time.Time) []byte {
	p := basis(pod)
	labels, annotations := updated(update, now)
	step := inplace.Whole(pod, update.Change, update.Revision.Name, now)
	annotations[apps.AnnotationInPlaceUpdateState] = new(step.State.String())
	p.testSpec(pod)
	inContainers(&p, pod, "replace", "image", step.Images)
	p.metadata(pod, update, labels, annotations)
	if !keepRecord {
		p.dropRecord(pod)
	}
	return encode.JSON(p)
}

// updated returns the labels and annotations that an update changes, besides its record.
func updated(a *plan.Action, now time.Time) (labels, annotations map[string]*string) {
	labels, annotations = state(a, now)
	maps.Copy(labels, a.Change.Labels)
	maps.Copy(annotations, a.Change.Annotations)
	maps.Copy(labels, inplace.Values(revisionLabels(a.Revision)))
	annotations[apps.AnnotationInPlaceUpdateGrace] = nil // the update that waited there is this one, or outdated
	return labels, annotations
}

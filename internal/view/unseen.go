// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// Unseen is a change of an object's spec that its controller has not seen: the status still describes
// the object before the change.
type Unseen struct {
	Generation int64 `json:"generation"`
	Observed   int64 `json:"observed"`
	// Since is when the spec was changed last; zero if the object does not show that.
	Since time.Time `json:"since,omitzero"`
}

const (
	// ReasonUnseen is the problem of a change that its controller has not seen for unseenFor.
	ReasonUnseen = "ChangeNotSeen"
	// unseenFor is how long a healthy controller may take to see a change.
	unseenFor = 30 * time.Second
)

// UnseenOf returns the change that an object's controller has not seen; nil if it has seen all. A
// deletion increases the generation too, but needs no status any more.
func UnseenOf(object metav1.Object) *Unseen {
	observed, ok := observedGeneration(object)
	if !ok || observed >= object.GetGeneration() || object.GetDeletionTimestamp() != nil {
		return nil
	}
	return &Unseen{Generation: object.GetGeneration(), Observed: observed, Since: specChanged(object)}
}

// observedGeneration returns the generation that an object's status describes.
func observedGeneration(object metav1.Object) (observed int64, ok bool) {
	switch o := object.(type) {
	case *apps.CloneSet:
		return o.Status.ObservedGeneration, true
	case *usherv1alpha1.Registration:
		return o.Status.ObservedGeneration, true
	case *usherv1alpha1.Registry:
		return o.Status.ObservedGeneration, true
	case *appsv1.Deployment:
		return o.Status.ObservedGeneration, true
	case *appsv1.StatefulSet:
		return o.Status.ObservedGeneration, true
	case *appsv1.DaemonSet:
		return o.Status.ObservedGeneration, true
	case *appsv1.ReplicaSet:
		return o.Status.ObservedGeneration, true
	}
	return 0, false
}

// specChanged returns when a field manager that owns fields of the spec last wrote the object; the zero
// time if the object does not show that.
func specChanged(object metav1.Object) (at time.Time) {
	for _, entry := range object.GetManagedFields() {
		ofSpec := entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:spec"`)
		if ofSpec && entry.Subresource != "status" && entry.Time != nil {
			at = list.Latest(at, entry.Time.Time)
		}
	}
	return at
}

// Lasts reports whether the change has been unseen for longer than a healthy controller takes.
func (u *Unseen) Lasts(now time.Time) bool {
	return u != nil && !u.Since.IsZero() && now.Sub(u.Since) > unseenFor
}

// problem returns the change as a Problem. of names the object if that is not the workload itself.
func (u *Unseen) problem(of string) Problem {
	message := fmt.Sprintf("its controller has seen generation %d, and not %d: kubectl usher doctor says why", u.Observed, u.Generation)
	return Problem{Reason: ReasonUnseen, Since: u.Since, Message: of + message}
}

// unseenRegistrations returns the unseen changes of Registrations that select Pods of the workload.
func (o *Objects) unseenRegistrations() (out []Problem) {
	for _, r := range o.Registrations {
		if unseen := UnseenOf(r); unseen.Lasts(o.Now) && o.selectsAny(r) {
			out = append(out, unseen.problem("Registration "+r.Name+": "))
		}
	}
	return out
}

func (o *Objects) selectsAny(r *usherv1alpha1.Registration) bool {
	for _, pod := range o.Pods {
		if r.Selects(pod.Labels) {
			return true
		}
	}
	return false
}

// noteUnseen adds a change that the workload's controller, or that of a Registration of its Pods, has
// not seen.
func (o *Objects) noteUnseen(w *Workload) {
	if w.Unseen.Lasts(o.Now) {
		w.Problems = append(w.Problems, w.Unseen.problem(""))
	}
	w.Problems = append(w.Problems, o.unseenRegistrations()...)
}

// unseen checks that the controllers of the objects have seen their last change.
func (e *examination) unseen() {
	for _, object := range e.all {
		unseen, kind := UnseenOf(object), ""
		if !unseen.Lasts(e.now) {
			continue
		}
		switch object.(type) {
		case *apps.CloneSet:
			kind = "cloneset"
		case *usherv1alpha1.Registration:
			if unseen.Observed == 0 { // answered reports it
				continue
			}
			kind = "registration"
		case *usherv1alpha1.Registry:
			kind = "registry"
		default: // Usher is not their controller
			continue
		}
		e.wrong(named(kind, object), "Usher has not seen its last change, made %s (generation %d, seen %d): "+
			"does its half run (--controllers), and what does its log say?", e.clock.Ago(unseen.Since), unseen.Generation, unseen.Observed)
	}
}

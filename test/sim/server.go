// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Kind names a kind of object on the server.
type Kind string

// The kinds.
const (
	Pods      Kind = "Pod"
	Sets      Kind = "CloneSet"
	Revisions Kind = "ControllerRevision"
	Claims    Kind = "PersistentVolumeClaim"
)

// kinds lists the kinds in the order in which a run processes them.
var kinds = []Kind{Sets, Revisions, Claims, Pods}

func kindOf(object any) (Kind, error) {
	switch object.(type) {
	case *corev1.Pod, *corev1.PodList:
		return Pods, nil
	case *apps.CloneSet, *apps.CloneSetList:
		return Sets, nil
	case *appsv1.ControllerRevision, *appsv1.ControllerRevisionList:
		return Revisions, nil
	case *corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList:
		return Claims, nil
	}
	return "", fmt.Errorf("the simulated API server keeps no %T", object)
}

func (k Kind) resource() schema.GroupResource {
	switch k {
	case Sets:
		return schema.GroupResource{Group: apps.GroupVersion.Group, Resource: "clonesets"}
	case Revisions:
		return schema.GroupResource{Group: appsv1.GroupName, Resource: "controllerrevisions"}
	case Claims:
		return schema.GroupResource{Resource: "persistentvolumeclaims"}
	}
	return schema.GroupResource{Resource: "pods"}
}

// Commit is one change of one object. The objects must not be changed.
type Commit struct {
	At    time.Time
	Actor string
	Kind  Kind
	// Old is nil for a create, New for a removal.
	Old, New client.Object
	// Version orders the commits.
	Version int64
}

// object is the object of the commit.
func (c *Commit) object() client.Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// Server is an API server in memory. Its objects are never changed, only replaced, so
// that readers can keep what they have read.
type Server struct {
	now     func() time.Time
	objects map[Kind]map[types.NamespacedName]client.Object
	log     map[Kind][]*Commit
	version int64
	uids    int
	// committed is called for every commit, before the writer gets its answer.
	committed []func(*Commit)
	// noResize refuses every resize of a Pod.
	noResize bool
}

func newServer(now func() time.Time) *Server {
	s := &Server{
		now: now, version: 100,
		objects: map[Kind]map[types.NamespacedName]client.Object{}, log: map[Kind][]*Commit{},
	}
	for _, kind := range kinds {
		s.objects[kind] = map[types.NamespacedName]client.Object{}
	}
	return s
}

// get reads an object.
func (s *Server) get(kind Kind, key types.NamespacedName) (client.Object, error) {
	if object, ok := s.objects[kind][key]; ok {
		return object, nil
	}
	return nil, apierrors.NewNotFound(kind.resource(), key.Name)
}

// list reads all objects of a kind, by name.
func (s *Server) list(kind Kind) []client.Object {
	return sorted(s.objects[kind])
}

func sorted(objects map[types.NamespacedName]client.Object) []client.Object {
	out := make([]client.Object, 0, len(objects))
	for _, object := range objects {
		out = append(out, object)
	}
	slices.SortFunc(out, func(a, b client.Object) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return out
}

// create adds an object.
func (s *Server) create(actor string, kind Kind, object client.Object, dryRun bool) (client.Object, error) {
	key := client.ObjectKeyFromObject(object)
	if _, ok := s.objects[kind][key]; ok {
		return nil, apierrors.NewAlreadyExists(kind.resource(), key.Name)
	}
	if pod, ok := object.(*corev1.Pod); ok {
		if err := validPod(pod); err != nil {
			return nil, err
		}
	}
	fresh := clone(object)
	s.uids++
	fresh.SetUID(types.UID(fmt.Sprintf("uid-%04d", s.uids)))
	fresh.SetCreationTimestamp(metav1.NewTime(s.now().Truncate(time.Second)))
	fresh.SetGeneration(1)
	fresh.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: actor, Operation: metav1.ManagedFieldsOperationUpdate}})
	if pod, ok := fresh.(*corev1.Pod); ok {
		defaultPod(pod)
	}
	if kind == Claims {
		fresh.SetFinalizers([]string{protection})
	}
	if dryRun {
		return fresh, nil
	}
	return s.commit(actor, kind, nil, fresh), nil
}

func defaultPod(pod *corev1.Pod) {
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		grace := int64(30)
		pod.Spec.TerminationGracePeriodSeconds = &grace
	}
}

// commit stores the next version of an object and notifies all observers.
func (s *Server) commit(actor string, kind Kind, old, next client.Object) client.Object {
	s.version++
	next.SetResourceVersion(strconv.FormatInt(s.version, 10))
	key := client.ObjectKeyFromObject(next)
	c := &Commit{At: s.now(), Actor: actor, Kind: kind, Old: old, New: next, Version: s.version}
	if gone(next) {
		delete(s.objects[kind], key)
		c.New = nil
	} else {
		s.objects[kind][key] = next
	}
	s.log[kind] = append(s.log[kind], c)
	for _, tell := range s.committed {
		tell(c)
	}
	return next
}

// gone reports whether nothing holds back a deleted object any longer.
func gone(object client.Object) bool {
	if object.GetDeletionTimestamp() == nil || len(object.GetFinalizers()) > 0 {
		return false
	}
	grace := object.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

// update replaces an object with a copy that change has changed. The subresource
// decides which part of it can change; "" is the object itself.
func (s *Server) update(actor string, kind Kind, key types.NamespacedName, subresource string, change func(client.Object) error) (client.Object, error) {
	old, err := s.get(kind, key)
	if err != nil {
		return nil, err
	}
	next := clone(old)
	if err := change(next); err != nil {
		return nil, err
	}
	if err := s.preconditions(kind, old, next.GetUID(), next.GetResourceVersion()); err != nil {
		return nil, err
	}
	if subresource == "resize" && s.noResize {
		return nil, invalid(old, "spec", "", "Pod running on node without support for resize")
	}
	if err := confine(old, next, subresource); err != nil {
		return nil, err
	}
	if same(old, next) {
		return old, nil // a write that changes nothing creates no new version
	}
	return s.commit(actor, kind, old, next), nil
}

// preconditions checks a writer's preconditions for an object; "" is none.
func (s *Server) preconditions(kind Kind, live client.Object, uid types.UID, version string) error {
	if uid != "" && uid != live.GetUID() {
		return apierrors.NewConflict(kind.resource(), live.GetName(),
			fmt.Errorf("the UID in the precondition (%s) is not the UID of the object (%s)", uid, live.GetUID()))
	}
	if version != "" && version != live.GetResourceVersion() {
		return apierrors.NewConflict(kind.resource(), live.GetName(),
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// remove deletes an object at once, or a running Pod gracefully.
func (s *Server) remove(actor string, kind Kind, key types.NamespacedName, options removal) error {
	old, err := s.get(kind, key)
	if err != nil {
		return err
	}
	if err := s.preconditions(kind, old, options.uid, options.version); err != nil {
		return err
	}
	next := clone(old)
	grace := graceOf(old)
	if options.now {
		grace = 0
	}
	known := old.GetDeletionGracePeriodSeconds()
	if old.GetDeletionTimestamp() == nil {
		at := metav1.NewTime(s.now().Add(time.Duration(grace) * time.Second).Truncate(time.Second))
		next.SetDeletionTimestamp(&at)
		next.SetGeneration(old.GetGeneration() + 1)
	} else if known == nil || *known <= grace {
		return nil // already on its way out
	}
	next.SetDeletionGracePeriodSeconds(&grace)
	s.commit(actor, kind, old, next)
	return nil
}

// removal holds the options of a delete.
type removal struct {
	uid     types.UID
	version string
	// now deletes a Pod without grace, as its kubelet finally does.
	now bool
}

// graceOf is a Pod's grace period in seconds: none if it does not run.
func graceOf(object client.Object) int64 {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Spec.TerminationGracePeriodSeconds == nil ||
		pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	return *pod.Spec.TerminationGracePeriodSeconds
}

func clone(object client.Object) client.Object {
	out, ok := object.DeepCopyObject().(client.Object)
	if !ok { // every kind on the server is a client.Object
		return object
	}
	return out
}

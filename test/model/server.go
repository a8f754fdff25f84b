// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/podread"
)

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

// Object returns the last version of the commit's object.
func (c *Commit) Object() client.Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// Pods returns the Pod before and after; nil if it did not exist, or is no Pod.
func (c *Commit) Pods() (old, pod *corev1.Pod) {
	old, _ = c.Old.(*corev1.Pod)
	pod, _ = c.New.(*corev1.Pod)
	return old, pod
}

// Deletes reports whether the commit deletes an object, at once or eventually.
func (c *Commit) Deletes() bool {
	return c.Old != nil && c.Old.GetDeletionTimestamp() == nil && (c.New == nil || c.New.GetDeletionTimestamp() != nil)
}

// Server is an API server in memory. Its objects are never changed, only replaced, so
// that readers can keep what they have read.
type Server struct {
	Objects Objects
	Log     map[Kind][]*Commit
	// Observers see every commit before the writer gets its answer.
	Observers []func(*Commit)
	// Version is the latest version, UIDs counts the objects created.
	Version int64
	UIDs    int
	// RefuseResizes refuses every resize of a Pod.
	RefuseResizes bool
	// Refuses decides by content on changes of objects, like a policy, also in a dry run; nil if there
	// is none.
	Refuses func(actor string, old, next client.Object) error
	// Admit decides on requests to delete or evict a Pod, like a webhook; nil if there is none.
	Admit func(*admissionv1.AdmissionRequest) error

	now func() time.Time
}

// NewServer returns a server without objects.
func NewServer(now func() time.Time) *Server {
	return &Server{now: now, Version: 100, Objects: Objects{}, Log: map[Kind][]*Commit{}}
}

// History returns the commits of one object.
func (s *Server) History(kind Kind, uid types.UID) []*Commit {
	return slices.DeleteFunc(slices.Clone(s.Log[kind]), func(c *Commit) bool { return c.Object().GetUID() != uid })
}

// Get reads an object.
func (s *Server) Get(kind Kind, at types.NamespacedName) (client.Object, error) {
	if object, ok := s.Objects[kind][at]; ok {
		return object, nil
	}
	return nil, apierrors.NewNotFound(kind.Resource(), at.Name)
}

// Create adds an object.
func (s *Server) Create(actor string, object client.Object, dryRun bool) (client.Object, error) {
	kind := KindOf(object)
	if _, ok := s.Objects[kind][client.ObjectKeyFromObject(object)]; ok {
		return nil, apierrors.NewAlreadyExists(kind.Resource(), object.GetName())
	}
	fresh := Clone(object)
	s.UIDs++
	fresh.SetUID(types.UID(fmt.Sprintf("uid-%04d", s.UIDs)))
	fresh.SetCreationTimestamp(metav1.NewTime(s.now().Truncate(time.Second)))
	fresh.SetGeneration(1)
	fresh.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: actor, Operation: metav1.ManagedFieldsOperationUpdate}})
	switch o := fresh.(type) {
	case *corev1.Pod:
		if err := admit(o); err != nil {
			return nil, err
		}
	case *corev1.PersistentVolumeClaim:
		o.Finalizers = []string{ClaimProtection}
	}
	if dryRun {
		return fresh, nil
	}
	return s.commit(actor, kind, nil, fresh), nil
}

// commit stores the next version of an object and notifies all observers.
func (s *Server) commit(actor string, kind Kind, old, next client.Object) client.Object {
	s.Version++
	next.SetResourceVersion(strconv.FormatInt(s.Version, 10))
	c := &Commit{At: s.now(), Actor: actor, Kind: kind, Old: old, New: next, Version: s.Version}
	if released(next) {
		delete(s.Objects[kind], client.ObjectKeyFromObject(next))
		c.New = nil
	} else {
		s.Objects.Put(kind, next)
	}
	s.Log[kind] = append(s.Log[kind], c)
	for _, observe := range s.Observers {
		observe(c)
	}
	return next
}

// released reports whether nothing holds a deleted object any more.
func released(object client.Object) bool {
	grace := object.GetDeletionGracePeriodSeconds()
	return object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

// Update replaces an object with a copy that change has changed. The subresource
// decides which part of it can change; "" is the object itself.
func (s *Server) Update(actor string, kind Kind, at types.NamespacedName, subresource string, change func(client.Object) error) (client.Object, error) {
	return s.replace(actor, kind, at, subresource, false, func(old client.Object) (client.Object, error) {
		next := Clone(old)
		return next, change(next)
	})
}

func (s *Server) replace(
	actor string, kind Kind, at types.NamespacedName, subresource string, dryRun bool, by func(client.Object) (client.Object, error),
) (client.Object, error) {
	old, err := s.Get(kind, at)
	if err != nil {
		return nil, err
	}
	next, err := by(old)
	if err != nil {
		return nil, err
	}
	if err := preconditions(old, &metav1.Preconditions{UID: new(next.GetUID()), ResourceVersion: new(next.GetResourceVersion())}); err != nil {
		return nil, err
	}
	if subresource == "resize" && s.RefuseResizes {
		return nil, invalid(old, "spec", "", "Pod running on node without support for resize")
	}
	if err := confine(old, next, subresource); err != nil {
		return nil, err
	}
	if s.Refuses != nil {
		if err := s.Refuses(actor, old, next); err != nil {
			return nil, err
		}
	}
	if Same(old, next) {
		return old, nil // a write that changes nothing creates no new version
	}
	if dryRun {
		return next, nil
	}
	return s.commit(actor, kind, old, next), nil
}

// Change changes an object, or a subresource of it. It does nothing if the object is gone.
func Change[T client.Object](s *Server, actor string, at types.NamespacedName, subresource string, change func(T)) {
	var none T
	_, _ = s.Update(actor, KindOf(none), at, subresource, func(object client.Object) error {
		change(object.(T))
		return nil
	})
}

// preconditions checks a writer's preconditions for an object; those that are "" do not count.
func preconditions(live client.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if uid := ptr.Deref(p.UID, ""); uid != "" && uid != live.GetUID() {
		return apierrors.NewConflict(KindOf(live).Resource(), live.GetName(),
			fmt.Errorf("the UID in the precondition (%s) is not the UID of the object (%s)", uid, live.GetUID()))
	}
	if version := ptr.Deref(p.ResourceVersion, ""); version != "" && version != live.GetResourceVersion() {
		return apierrors.NewConflict(KindOf(live).Resource(), live.GetName(),
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// Delete deletes the object of that name at once, or a running Pod gracefully.
func (s *Server) Delete(actor string, object client.Object, options ...client.DeleteOption) error {
	o := (&client.DeleteOptions{}).ApplyOptions(options)
	kind, at := KindOf(object), client.ObjectKeyFromObject(object)
	old, err := s.Get(kind, at)
	if err != nil {
		return err
	}
	if err := preconditions(old, o.Preconditions); err != nil {
		return err
	}
	if kind == Pods {
		request := admissionv1.AdmissionRequest{Operation: admissionv1.Delete}
		if err := s.admit(actor, at, request, old, nil, o.AsDeleteOptions()); err != nil {
			return err
		}
		if old, err = s.Get(kind, at); err != nil { // the webhook may have changed it
			return err
		}
	}
	s.delete(actor, old, o)
	return nil
}

func (s *Server) delete(actor string, old client.Object, o *client.DeleteOptions) {
	next := Clone(old)
	grace := ptr.Deref(o.GracePeriodSeconds, graceOf(old))
	propagated := propagate(next, ptr.Deref(o.PropagationPolicy, metav1.DeletePropagationBackground))
	known := old.GetDeletionGracePeriodSeconds()
	if old.GetDeletionTimestamp() == nil {
		at := metav1.NewTime(s.now().Add(time.Duration(grace) * time.Second).Truncate(time.Second))
		next.SetDeletionTimestamp(&at)
		next.SetGeneration(old.GetGeneration() + 1)
	} else if (known == nil || *known <= grace) && !propagated {
		return // its deletion is already under way
	} else if known != nil { // its grace period counts from the first deletion
		at := metav1.NewTime(old.GetDeletionTimestamp().Add(time.Duration(grace-*known) * time.Second))
		next.SetDeletionTimestamp(&at)
	}
	next.SetDeletionGracePeriodSeconds(&grace)
	s.commit(actor, KindOf(old), old, next)
}

// propagate sets the finalizer with which the garbage collector handles the dependents, and reports
// whether it is new.
func propagate(object client.Object, how metav1.DeletionPropagation) bool {
	finalizer := map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationOrphan: metav1.FinalizerOrphanDependents, metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents,
	}[how]
	if finalizer == "" || slices.Contains(object.GetFinalizers(), finalizer) {
		return false
	}
	kept := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	object.SetFinalizers(append(kept, finalizer))
	return true
}

// graceOf returns a Pod's grace period in seconds: none if it does not run.
func graceOf(object client.Object) int64 {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Spec.TerminationGracePeriodSeconds == nil ||
		pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	return *pod.Spec.TerminationGracePeriodSeconds
}

// disruptedFor is how long the disruption controller waits for the deletion of a Pod whose
// eviction was granted.
const disruptedFor = 2 * time.Minute

// admit asks the webhook, if there is one, about the deletion or the eviction of a Pod.
func (s *Server) admit(actor string, at types.NamespacedName, r admissionv1.AdmissionRequest, old, object, options any) error {
	if s.Admit == nil {
		return nil
	}
	r.Namespace, r.Name, r.UserInfo = at.Namespace, at.Name, authenticationv1.UserInfo{Username: actor}
	for into, from := range map[*runtime.RawExtension]any{&r.OldObject: old, &r.Object: object, &r.Options: options} {
		into.Raw, _ = json.Marshal(from) // API types always encode
	}
	return s.Admit(&r)
}

// Evict deletes a Pod, unless a PodDisruptionBudget refuses.
func (s *Server) Evict(actor string, at types.NamespacedName, eviction *policyv1.Eviction, dryRun bool) error {
	request := admissionv1.AdmissionRequest{Operation: admissionv1.Create, SubResource: "eviction", DryRun: &dryRun}
	if err := s.admit(actor, at, request, nil, eviction, &metav1.CreateOptions{}); err != nil {
		return err
	}
	object, err := s.Get(Pods, at)
	if err != nil {
		return err
	}
	pod, _ := object.(*corev1.Pod) // objects are kept by their kind
	if o := eviction.DeleteOptions; o != nil {
		if err := preconditions(pod, o.Preconditions); err != nil {
			return err
		}
	}
	if Active(pod) && pod.Status.Phase != corev1.PodPending {
		err = s.disrupt(pod, dryRun)
	}
	if err != nil || dryRun {
		return err
	}
	s.delete(actor, pod, &client.DeleteOptions{})
	return nil
}

// disrupt subtracts an eviction from the budget of the Pod.
func (s *Server) disrupt(pod *corev1.Pod, dryRun bool) error {
	for _, budget := range List[*policyv1.PodDisruptionBudget](s.Objects) {
		status := budget.Status
		switch {
		case !Covers(budget, pod):
		case !podread.IsTrue(pod, corev1.PodReady) && status.DesiredHealthy > 0 && status.CurrentHealthy >= status.DesiredHealthy:
		case status.DisruptionsAllowed <= 0:
			err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause})
			return err
		case !dryRun:
			Change(s, "apiserver", client.ObjectKeyFromObject(budget), "status", func(b *policyv1.PodDisruptionBudget) {
				b.Status.DisruptionsAllowed--
				if b.Status.DisruptedPods == nil {
					b.Status.DisruptedPods = map[string]metav1.Time{}
				}
				b.Status.DisruptedPods[pod.Name] = metav1.NewTime(s.now())
			})
		}
	}
	return nil
}

// Covers reports whether the budget applies to the Pod.
func Covers(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	return err == nil && budget.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels))
}

// CountBudgets makes a pass of the disruption controller over budgets with spec.minAvailable.
func (s *Server) CountBudgets() {
	for _, budget := range List[*policyv1.PodDisruptionBudget](s.Objects) {
		next := policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: budget.Generation, DesiredHealthy: budget.Spec.MinAvailable.IntVal, DisruptedPods: map[string]metav1.Time{},
		}
		for _, pod := range List[*corev1.Pod](s.Objects) {
			if !Covers(budget, pod) {
				continue
			}
			next.ExpectedPods++
			granted, disrupted := budget.Status.DisruptedPods[pod.Name]
			switch disrupted = disrupted && s.now().Sub(granted.Time) < disruptedFor; {
			case pod.DeletionTimestamp != nil:
			case disrupted:
				next.DisruptedPods[pod.Name] = granted
			case podread.IsTrue(pod, corev1.PodReady):
				next.CurrentHealthy++
			}
		}
		next.DisruptionsAllowed = max(next.CurrentHealthy-next.DesiredHealthy, 0)
		Change(s, "disruption-controller", client.ObjectKeyFromObject(budget), "status", func(b *policyv1.PodDisruptionBudget) {
			b.Status = next
		})
	}
}

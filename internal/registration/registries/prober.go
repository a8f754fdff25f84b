// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
)

// BuiltIn is the name of the Registry of the kind service that Usher makes.
const BuiltIn = "service"

// LogKey is the key of a Registry's name in the log.
const LogKey = "registry"

// conflictRetry is when the next probe follows one that somebody else's write overtook.
const conflictRetry = time.Second

// Reasons of the condition Reachable, and of events.
const (
	reasonReachable = "Reachable"
	reasonInUse     = "InUse"
)

// Journal is where a Prober says what it has found.
type Journal interface {
	// Fails says that a registry does not answer; first means that it did before.
	Fails(ctx context.Context, object *usherv1alpha1.Registry, err error, first bool)
	// Warn sends an event about a Registry, with its reason and what Usher was about to do.
	Warn(about client.Object, reason, action, message string)
	// Forget drops what was said of a Registry that is gone.
	Forget(name string)
}

// Prober finds out whether registries answer, one Registry at a time, and writes that into their statuses. All of its
// fields are needed.
type Prober struct {
	// Client reads Registries, from a cache, and creates the built-in one.
	Client client.Client
	Pool   *Pool
	// Answers bounds what registries' answers may take of the memory.
	Answers *registry.Answers
	Clock   clock.PassiveClock
	Journal Journal
	// Users returns the Registrations that may have entries in a Registry, as "namespace/name".
	Users func(ctx context.Context, registry string) ([]string, error)
	// Write writes what is new in a Registry, or in its status, unless somebody else has changed it since.
	Write func(ctx context.Context, what string, old, next client.Object, status bool) error
	// Back is called with a Registry that answers again. It must not wait.
	Back func(*usherv1alpha1.Registry)

	// builtIn means that there is a Registry of the kind service, or that Usher has made one. Nobody else uses it: it is
	// for one name, and so for one reconciliation at a time.
	builtIn bool
}

// Reconcile probes one Registry, and writes into its status whether it answers. The next probe follows when the back-off
// is over, otherwise with the next comparison of entries.
func (p *Prober) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &usherv1alpha1.Registry{}
	if err := p.Client.Get(ctx, request.NamespacedName, object); apierrors.IsNotFound(err) {
		return ctrl.Result{}, p.forget(ctx, request.Name)
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("read Registry %s: %w", request.Name, err)
	}
	if object.DeletionTimestamp != nil {
		free, err := p.free(ctx, object)
		if err != nil || free {
			return ctrl.Result{}, err
		}
	}
	if err := p.Pool.Recall(ctx, object.Name); err != nil {
		return ctrl.Result{}, err
	}
	next, failure := RepairOf(object), p.ping(ctx, object)
	switch {
	case ctx.Err() != nil:
		return ctrl.Result{}, ctx.Err()
	case failure != nil:
		back, first := p.Pool.BeginBackOff(object, failure)
		p.Journal.Fails(ctx, object, failure, first)
		next = back
	case p.Pool.EndBackOff(object.Name):
		log.FromContext(ctx).Info("Registry answers again", LogKey, object.Name)
		p.Back(object)
	}
	err := p.writeStatus(ctx, object, failure)
	if apierrors.IsConflict(err) {
		// The cache does not show the last write yet, perhaps one of a pass.
		return ctrl.Result{RequeueAfter: min(next, conflictRetry)}, nil
	}
	return ctrl.Result{RequeueAfter: next}, err
}

// forget forgets a Registry that does not exist, or makes the built-in one.
func (p *Prober) forget(ctx context.Context, name string) error {
	p.Pool.Forget(name)
	p.Journal.Forget(name)
	if name == BuiltIn {
		return p.makeBuiltIn(ctx)
	}
	return nil
}

func (p *Prober) ping(ctx context.Context, object *usherv1alpha1.Registry) error {
	// A probe belongs to no Registration; Ping needs no namespace.
	_, settings := kinds.Of(object, "")
	c, err := p.Pool.Get(ctx, object, settings.Root, true)
	if err != nil {
		return err
	}
	ctx, release := p.Answers.Share(ctx)
	defer release()
	err = c.Ping(ctx)
	p.Pool.RecordCall(ctx, object.Name, err)
	return err
}

func (p *Prober) writeStatus(ctx context.Context, object *usherv1alpha1.Registry, failure error) error {
	next := object.DeepCopy()
	next.Status.ObservedGeneration = object.Generation
	kind, _ := kinds.Of(object, "")
	next.Status.Kind = kind.Name
	c := metav1.Condition{
		Type: usherv1alpha1.ConditionReachable, Status: metav1.ConditionTrue, Reason: reasonReachable,
		Message: "The registry answers.", ObservedGeneration: object.Generation,
		LastTransitionTime: metav1.NewTime(p.Clock.Now()),
	}
	if failure != nil {
		c.Status, c.Reason = metav1.ConditionFalse, string(plan.ReasonOf(failure))
		c.Message = plan.Shorten(failure.Error(), plan.MaxCondition)
	}
	meta.SetStatusCondition(&next.Status.Conditions, c)
	next.Status.LastOutage = p.Pool.Outage(object.Name).Status()
	if equality.Semantic.DeepEqual(next.Status, object.Status) {
		return nil
	}
	return client.IgnoreNotFound(p.Write(ctx, "write the status of Registry", object, next, true))
}

// free removes the finalizer of a Registry that is being deleted, unless a Registration has
// entries there: nobody could remove them afterwards.
func (p *Prober) free(ctx context.Context, object *usherv1alpha1.Registry) (bool, error) {
	users, err := p.Users(ctx, object.Name)
	if err != nil {
		return false, err
	}
	for _, u := range object.Status.Users {
		users = append(users, u.Namespace+"/"+u.Registration)
	}
	next := object.DeepCopy()
	switch {
	case !controllerutil.RemoveFinalizer(next, usherv1alpha1.Finalizer):
		return true, nil
	case len(users) > 0:
		users = slices.Compact(slices.Sorted(slices.Values(users)))
		p.Journal.Warn(object, reasonInUse, "Delete", fmt.Sprintf(
			"Registrations still have entries there: %s. Delete them, or take the Registry out of their spec.registries.",
			strings.Join(users, ", ")))
		return false, nil
	}
	err = client.IgnoreNotFound(p.Write(ctx, "remove the finalizer from Registry", object, next, false))
	return err == nil, err
}

// IsGated reports whether the Registry is of the kind service.
func IsGated(object *usherv1alpha1.Registry) bool {
	kind, _ := kinds.Of(object, "")
	return kind.Gated
}

// turnsGates reports whether the Registry is of the kind service, and Pods leave its Services by the readiness gate.
func turnsGates(object *usherv1alpha1.Registry) bool {
	return IsGated(object) && plan.LabelOf(object.Spec.Service) == plan.ServiceLabel{}
}

// makeBuiltIn makes the Registry of the kind service once in the life of a process, unless
// there is one of that kind that turns the readiness gate, whatever its name.
func (p *Prober) makeBuiltIn(ctx context.Context) error {
	if p.builtIn {
		return nil
	}
	objects, err := List(ctx, p.Client)
	if err != nil {
		return err
	}
	if p.builtIn = slices.ContainsFunc(objects, turnsGates); p.builtIn {
		return nil
	}
	made := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: BuiltIn}}
	made.Spec.Service = &usherv1alpha1.ServiceRegistry{}
	switch err = p.Client.Create(ctx, made); {
	case apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).Info("A Registry of another kind has the name of the built-in one: "+
			"make one of the kind service yourself", LogKey, BuiltIn)
	case err != nil:
		return fmt.Errorf("make the built-in Registry %s: %w", BuiltIn, err)
	}
	p.builtIn = true
	return nil
}

// List lists all Registries.
func List(ctx context.Context, from client.Reader) ([]*usherv1alpha1.Registry, error) {
	return kube.List[*usherv1alpha1.Registry](ctx, from, "Registries", &usherv1alpha1.RegistryList{})
}

// Leaving are the Registries that are being deleted, and may be without users now.
func Leaving(ctx context.Context, from client.Reader) ([]*usherv1alpha1.Registry, error) {
	objects, err := List(ctx, from)
	return list.Only(objects, func(r *usherv1alpha1.Registry) bool { return r.DeletionTimestamp != nil }), err
}

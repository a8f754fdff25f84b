// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
)

// snapshot is what the page is made of.
type snapshot struct {
	pods          corev1.PodList
	sets          apps.CloneSetList
	revisions     appsv1.ControllerRevisionList
	registrations usherv1alpha1.RegistrationList
	deployments   appsv1.DeploymentList
	replicaSets   appsv1.ReplicaSetList
	statefulSets  appsv1.StatefulSetList
	daemonSets    appsv1.DaemonSetList
}

// lists has Pods first: without them there is nothing to show.
func (o *snapshot) lists() []client.ObjectList {
	return []client.ObjectList{
		&o.pods, &o.sets, &o.revisions, &o.registrations, &o.deployments, &o.replicaSets, &o.statefulSets, &o.daemonSets,
	}
}

// cluster is what watches show of a namespace.
type cluster struct {
	cache     cache.Cache
	namespace string
	// readable says which lists can be read; missing says what cannot.
	readable  []bool
	missing   []string
	mayChange bool
	// changed has an element after a change.
	changed chan struct{}
	// failed is when a watch last failed, and why; nil if none did.
	failed atomic.Pointer[failure]
}

type failure struct {
	at  time.Time
	err error
}

// failedFor is how long a watch that failed counts: it is tried again before that.
const failedFor = 45 * time.Second

// note is what somebody who looks at the cluster has to know.
func (c *cluster) note(now time.Time) string {
	texts := c.missing
	if f := c.failed.Load(); f != nil && now.Sub(f.at) < failedFor {
		texts = append([]string{"What is shown may be old: " + f.err.Error() + "."}, texts...)
	}
	return strings.Join(texts, " ")
}

// fail is called when a watch ends with an error, and begins anew.
func (c *cluster) fail(_ context.Context, _ *toolscache.Reflector, err error) {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, io.EOF) {
		c.failed.Store(&failure{time.Now(), err})
		telling(c.changed).OnAdd(nil, false)
	}
}

// observe watches what the caller may watch in the session's namespace, and returns when it
// knows what is there.
func (s *session) observe(ctx context.Context) (*cluster, error) {
	c := &cluster{namespace: s.namespace, changed: make(chan struct{}, 1)}
	if err := s.rights(ctx, c); err != nil {
		return nil, err
	}
	var err error
	if c.cache, err = s.newCache(c.fail); err != nil {
		return nil, err
	}
	for i, list := range new(snapshot).lists() {
		if !c.readable[i] {
			continue
		}
		if err := c.watch(ctx, s.client.Scheme(), list); err != nil {
			return nil, fmt.Errorf("watch namespace %s: %w", s.namespace, err)
		}
	}
	go func() { _ = c.cache.Start(ctx) }() // it ends with ctx, and retries by itself before
	if !c.cache.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("watch namespace %s: %w", s.namespace, context.Cause(ctx))
	}
	return c, nil
}

// rights finds out what the caller may do.
func (s *session) rights(ctx context.Context, c *cluster) error {
	for _, list := range new(snapshot).lists() {
		kind, err := itemKind(list, s.client.Scheme())
		if err != nil {
			return err
		}
		may, why := false, fmt.Sprintf("This cluster has no %ss.", kind.Kind)
		mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err == nil {
			why = fmt.Sprintf("You may not list and watch %ss in this namespace: what they say is missing.", kind.Kind)
			may, err = s.may(ctx, mapping.Resource.Group, mapping.Resource.Resource, "list", "watch")
		}
		switch {
		case err != nil && !meta.IsNoMatchError(err):
			return fmt.Errorf("ask for your rights: %w", err)
		case !may && kind.Kind == "Pod":
			return fmt.Errorf("you may not list and watch Pods in namespace %s: ask for a Role with these verbs, or choose another namespace with -n", s.namespace)
		case !may:
			c.missing = append(c.missing, why)
		}
		c.readable = append(c.readable, may)
	}
	var err error
	c.mayChange, err = s.may(ctx, apps.GroupVersion.Group, "clonesets", "patch")
	return err
}

// itemKind is the kind of a list's items.
func itemKind(list client.ObjectList, scheme *runtime.Scheme) (schema.GroupVersionKind, error) {
	kind, err := apiutil.GVKForObject(list, scheme)
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	return kind, err
}

// may reports whether the caller may do all of that in the namespace.
func (s *session) may(ctx context.Context, group, resource string, verbs ...string) (bool, error) {
	for _, verb := range verbs {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: s.namespace, Verb: verb, Group: group, Resource: resource},
		}}
		if err := s.client.Create(ctx, review); err != nil {
			return false, fmt.Errorf("ask whether you may %s %s: %w", verb, resource, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// watch tells of changes of one kind.
func (c *cluster) watch(ctx context.Context, scheme *runtime.Scheme, list client.ObjectList) error {
	kind, err := itemKind(list, scheme)
	if err != nil {
		return err
	}
	informer, err := c.cache.GetInformerForKind(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(telling(c.changed))
	return err
}

// workloads are all that the page shows, by kind and name.
func (c *cluster) workloads(ctx context.Context, now time.Time) ([]view.Workload, error) {
	var o snapshot
	for i, list := range o.lists() {
		if !c.readable[i] {
			continue
		}
		if err := c.cache.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
			return nil, fmt.Errorf("read what was watched: %w", err)
		}
	}
	all := slices.DeleteFunc(o.workloads(now), func(w view.Workload) bool { return !shown(&w) })
	slices.SortFunc(all, func(a, b view.Workload) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// workloads makes views of CloneSets, and of others that nothing else controls.
func (o *snapshot) workloads(now time.Time) (all []view.Workload) {
	above := controllers(o.replicaSets.Items)
	pods, revisions := byOwner(pointers(o.pods.Items), above), byOwner(pointers(o.revisions.Items), nil)
	add := func(one view.Objects, uid types.UID) {
		one.Now, one.Pods, one.Revisions, one.Registrations = now, pods[uid], revisions[uid], pointers(o.registrations.Items)
		all = append(all, view.Of(one))
	}
	for _, set := range pointers(o.sets.Items) {
		add(view.Objects{Set: set}, set.UID)
	}
	for _, list := range o.lists()[4:] {
		_ = meta.EachListItem(list, func(item runtime.Object) error { // which fails only if the function does
			if other := item.(client.Object); above[other.GetUID()] == "" {
				add(view.Objects{Other: view.SummaryOf(other)}, other.GetUID())
			}
			return nil
		})
	}
	return all
}

// controllers are what controls ReplicaSets, by their UIDs.
func controllers(sets []appsv1.ReplicaSet) map[types.UID]types.UID {
	above := map[types.UID]types.UID{}
	for i := range sets {
		if owner := metav1.GetControllerOfNoCopy(&sets[i]); owner != nil {
			above[sets[i].UID] = owner.UID
		}
	}
	return above
}

// byOwner sorts objects by what controls them, or controls that.
func byOwner[T metav1.Object](all []T, above map[types.UID]types.UID) map[types.UID][]T {
	out := map[types.UID][]T{}
	for _, one := range all {
		if owner := metav1.GetControllerOfNoCopy(one); owner != nil {
			uid := cmp.Or(above[owner.UID], owner.UID)
			out[uid] = append(out[uid], one)
		}
	}
	return out
}

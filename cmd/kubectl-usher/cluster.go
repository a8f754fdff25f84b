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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
)

// shownKinds are those that the page is made of. Without Pods there is nothing to show.
var shownKinds = []schema.GroupVersionKind{
	kindPod, kindCloneSet, kindRevision, kindRegistration, kindDeployment, kindReplicaSet, kindStatefulSet, kindDaemonSet,
}

// cluster is what watches show of a namespace.
type cluster struct {
	*session
	// readable are the kinds that can be read; missing says what cannot.
	readable  []schema.GroupVersionKind
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
	c := &cluster{changed: make(chan struct{}, 1)}
	if err := s.rights(ctx, c); err != nil {
		return nil, err
	}
	var err error
	c.session, err = s.live(ctx, c.fail, c.changed, c.readable...)
	return c, err
}

// rights finds out what the caller may do.
func (s *session) rights(ctx context.Context, c *cluster) error {
	for _, kind := range shownKinds {
		may, why := false, fmt.Sprintf("This cluster has no %s.", plural(kind))
		mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err == nil {
			why = fmt.Sprintf("You may not list and watch %s in this namespace: what they say is missing.", plural(kind))
			may, err = s.may(ctx, mapping.Resource.Group, mapping.Resource.Resource, "list", "watch")
		}
		switch {
		case err != nil && !meta.IsNoMatchError(err):
			return fmt.Errorf("ask for your rights: %w", err)
		case may:
			c.readable = append(c.readable, kind)
		case kind == kindPod:
			return fmt.Errorf("you may not list and watch Pods in namespace %s: ask for a Role with these verbs, or choose another namespace with -n", s.namespace)
		default:
			c.missing = append(c.missing, why)
		}
	}
	var err error
	c.mayChange, err = s.may(ctx, apps.GroupVersion.Group, "clonesets", "patch")
	return err
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

// workloads are all that the page shows, by kind and name: CloneSets, and others with which
// Usher has to do.
func (c *cluster) workloads(ctx context.Context, now time.Time) (shown []view.Workload, err error) {
	objects, err := c.read(ctx, c.readable...)
	if err != nil {
		return nil, fmt.Errorf("read what was watched: %w", err)
	}
	for _, object := range objects {
		if !isWorkload(object) {
			continue
		}
		w := view.Of(view.Gather(now, object, objects))
		registered := func(p view.Pod) bool { return len(p.Entries) > 0 }
		if w.Kind == kindCloneSet.Kind || slices.ContainsFunc(w.Members, registered) {
			shown = append(shown, w)
		}
	}
	slices.SortFunc(shown, func(a, b view.Workload) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return shown, nil
}

// isWorkload reports whether Pods are shown below an object. Those of a ReplicaSet may belong
// to what controls it.
func isWorkload(object metav1.Object) bool {
	switch object.(type) {
	case *apps.CloneSet, *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet:
		return true
	case *appsv1.ReplicaSet:
		return metav1.GetControllerOfNoCopy(object) == nil
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/responder"
)

// This file connects passes with Kubernetes' own evictions, where the API server serves them: elsewhere nothing is
// watched, read or written.

// watchEvictions has a pass made over the namespace of an eviction that concerns Usher. No pass begins before they are
// known: one that did not know them would bring Pods back that have left.
func (r *Reconciler) watchEvictions(mgr ctrl.Manager, b *builder.Builder) error {
	if !r.options.Evictions {
		return nil
	}
	evictions, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultLabelSelector: responder.Selector(), DefaultTransform: responder.Strip,
	})
	if err != nil {
		return fmt.Errorf("make the cache of evictions: %w", err)
	}
	if err := mgr.Add(evictions); err != nil {
		return fmt.Errorf("start the cache of evictions: %w", err)
	}
	r.evictions = evictions
	kind := client.Object(&lifecyclev1alpha1.Eviction{})
	b.WatchesRawSource(source.Kind(evictions, kind, each(r.ofEviction), updates(goesOn)))
	return nil
}

// ofEviction lets all evictions through that name Usher: somebody waits for it, also where no Registration is.
func (r *Reconciler) ofEviction(_ context.Context, eviction client.Object, q queue) {
	r.hurry(eviction.GetNamespace())
	r.gather(q, eviction.GetNamespace())
}

// goesOn reports whether an eviction has changed otherwise than by what Usher itself says.
func goesOn(older, newer *lifecyclev1alpha1.Eviction) bool {
	before, after := responder.Read(older), responder.Read(newer)
	before.Response, after.Response = plan.Response{}, plan.Response{}
	return !reflect.DeepEqual(before, after)
}

// readEvictions are the evictions of a namespace, with what Usher has said last, which the cache may not show yet.
func (r *Reconciler) readEvictions(
	ctx context.Context, namespace string, said map[types.UID]plan.Response,
) ([]plan.Eviction, error) {
	if r.evictions == nil {
		return nil, nil
	}
	return evictionsIn(ctx, r.evictions, namespace, said)
}

// evictionsIn lists the evictions of a namespace. The cache has no others than those that name Usher, and no labels.
func evictionsIn(
	ctx context.Context, from client.Reader, namespace string, said map[types.UID]plan.Response,
	options ...client.ListOption,
) ([]plan.Eviction, error) {
	objects, err := kube.List[*lifecyclev1alpha1.Eviction](
		ctx, from, "evictions", &lifecyclev1alpha1.EvictionList{}, append(options, client.InNamespace(namespace))...)
	return list.Map(objects, func(object *lifecyclev1alpha1.Eviction) plan.Eviction {
		e := responder.Read(object)
		if last, known := said[e.UID]; known && e.Heartbeat.Before(last.Heartbeat) {
			e.Response = last
		}
		return e
	}), err
}

// respond says what the plan says of evictions. That of a drained Pod lets others evict it, so its Pod is read from the
// API server before.
func (r *Reconciler) respond(ctx context.Context, s stage) stage {
	responses := s.decided.Responses
	failed := registry.Each(ctx, len(responses), r.options.Workers, func(i int) error {
		return r.respondOne(ctx, s.seen.snapshot.Namespace, responses[i])
	})
	said := map[types.UID]plan.Response{}
	for i, err := range failed {
		if e := responses[i].Eviction; err == nil {
			said[e.UID] = responses[i].Response
		} else {
			s = s.with(r.responseFailed(e, err))
		}
	}
	return s.with(results{said: said})
}

// confirmEvictions reads the evictions from the API server before Pods join, once in a pass: by a stale cache,
// as just after a change of leader, one that has left for its eviction would come back.
func (r *Reconciler) confirmEvictions(
	ctx context.Context, o *observation, changes []plan.Changes,
) (next *observation, changed bool, err error) {
	joins := func(c plan.Changes) bool { return len(c.Joins) > 0 }
	if r.evictions == nil || o.evictionsRead || !slices.ContainsFunc(changes, joins) {
		return o, false, nil
	}
	said := map[types.UID]plan.Response{}
	for i := range o.snapshot.Evictions {
		said[o.snapshot.Evictions[i].UID] = o.snapshot.Evictions[i].Response
	}
	named := client.MatchingLabelsSelector{Selector: responder.Selector()}
	live, err := evictionsIn(ctx, r.reader, o.snapshot.Namespace, said, named)
	if err != nil {
		return o, false, err
	}
	next = o.with(o.snapshot.WithEvictions(live))
	next.evictionsRead = true
	return next, !reflect.DeepEqual(live, o.snapshot.Evictions), nil
}

// errNotFree: caches have shown a Pod without the finalizer that the API server has with it.
var errNotFree = errors.New("a registry may still have the Pod")

func (r *Reconciler) respondOne(ctx context.Context, namespace string, response plan.Responding) error {
	if !response.Completed.IsZero() {
		if free, err := r.isFree(ctx, namespace, response.Eviction); err != nil || !free {
			return cmp.Or(err, errNotFree)
		}
	}
	return responder.Write(ctx, r.client, namespace, response)
}

// isFree reports whether no registry may have the eviction's Pod, as the API server has it.
func (r *Reconciler) isFree(ctx context.Context, namespace string, e *plan.Eviction) (bool, error) {
	pod, err := read[corev1.Pod](ctx, r.reader, "Pod", types.NamespacedName{Namespace: namespace, Name: e.Pod})
	if err != nil {
		return false, err
	}
	return pod == nil || pod.UID != e.PodUID || !slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer), nil
}

// responseFailed says what it means that a response was not written: it holds up nothing else. One of an
// eviction that is gone is of no use any more, and one that has gone on is seen by the next pass.
func (r *Reconciler) responseFailed(e *plan.Eviction, err error) results {
	switch {
	case apierrors.IsNotFound(err):
		return results{}
	case errors.Is(err, errNotFree), apierrors.IsInvalid(err), apierrors.IsConflict(err):
		return r.setBack(overtaken)
	}
	told := trouble{message: "Cannot answer an eviction", err: fmt.Errorf("answer Eviction %s: %w", e.Name, err)}
	return r.setBack(refused).and(results{troubles: []trouble{told}})
}

// saidAfter is what Usher has said of the evictions that there are, after a pass.
func saidAfter(before map[types.UID]plan.Response, done stage) map[types.UID]plan.Response {
	after := map[types.UID]plan.Response{}
	for i := range done.seen.snapshot.Evictions {
		uid := done.seen.snapshot.Evictions[i].UID
		if last, known := before[uid]; known {
			after[uid] = last
		}
		if now, said := done.said[uid]; said {
			after[uid] = now
		}
	}
	return after
}

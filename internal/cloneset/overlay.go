// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/store"
)

// overlay has the API server's answers to this controller's own writes of objects of one kind, by the UID of their
// set. What the cache has contradicted for too long is looked up: listOwned.
type overlay[T client.Object] struct {
	*store.Store[types.UID, T]
}

// newOverlay is one without answers. Without keep it keeps them whole.
func newOverlay[T client.Object](keep func(T) T) overlay[T] {
	return overlay[T]{store.New[types.UID](keep)}
}

// noteCreated keeps an object that the cache may not show yet.
func (o overlay[T]) noteCreated(set *apps.CloneSet, object T, at time.Time) {
	o.Note(set.UID, store.Answer[T]{Object: object, Created: true, At: at})
}

// noteDeleted records that an object is gone, or no longer the set's.
func (o overlay[T]) noteDeleted(set *apps.CloneSet, object T, at time.Time) {
	o.Note(set.UID, store.Answer[T]{Object: object, Deleted: true, At: at})
}

// noteLive keeps an object as the API server has it, so that the next pass does not
// decide on a stale cache.
func (o overlay[T]) noteLive(set *apps.CloneSet, live T, at time.Time) {
	o.Note(set.UID, store.Answer[T]{Object: live, Deleted: !metav1.IsControlledBy(live, set), At: at})
}

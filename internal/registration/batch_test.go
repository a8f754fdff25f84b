// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// batches is a registry that notes the batches that it is given.
type batches struct {
	registry.Connector
	sizes  []int
	bounds []time.Time
	answer func(batch int, changes []registry.Change) error
}

func (b *batches) Apply(ctx context.Context, _ string, changes []registry.Change) error {
	bound, _ := ctx.Deadline()
	b.sizes, b.bounds = append(b.sizes, len(changes)), append(b.bounds, bound)
	return b.answer(len(b.sizes), changes)
}

// applied makes 1,200 changes, of which the first 600 leave.
func applied(t *testing.T, b *batches) (*pass, error) {
	t.Helper()
	object := &usherv1alpha1.Registry{}
	object.Name, object.UID = "discovery", "discovery"
	metrics, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{clock: clocktesting.NewFakePassiveClock(epoch), metrics: metrics}
	r.pool = newPool(nil, func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) { return b, nil }, r.clock)
	p := &pass{Reconciler: r, objects: map[string]*usherv1alpha1.Registry{object.Name: object}}
	c := plan.Changes{Target: plan.Target{Registry: object.Name, Prefix: "services", Service: "nginx"}}
	for n := range 600 {
		c.Leaves = append(c.Leaves, registry.Change{Op: registry.Remove, Entry: registry.Entry{ID: fmt.Sprintf("leaves-%d", n)}})
		c.Joins = append(c.Joins, registry.Change{Op: registry.Put, Entry: registry.Entry{ID: fmt.Sprintf("joins-%d", n)}})
	}
	return p, p.applyOne(t.Context(), c)
}

func TestManyChangesAreManyCalls(t *testing.T) {
	b := &batches{answer: func(_ int, changes []registry.Change) error {
		return &registry.ChangeError{ID: changes[0].Entry.ID, Err: registry.ErrConflict}
	}}
	_, err := applied(t, b)
	refused, rest := registry.ChangeErrors(err)
	if fmt.Sprint(b.sizes) != "[500 500 200]" || rest != nil || len(refused) != 3 ||
		refused["leaves-0"] == nil || refused["leaves-500"] == nil || refused["joins-400"] == nil {
		t.Errorf("batches of %v; refused %v, %v", b.sizes, refused, rest)
	}
	for i, bound := range b.bounds {
		if bound.IsZero() || i > 0 && !bound.After(b.bounds[i-1]) {
			t.Errorf("call %d is bounded by %s, the one before by %s", i, bound, b.bounds[max(i-1, 0)])
		}
	}
}

func TestAFailedBatchIsTheLast(t *testing.T) {
	down := errors.New("down")
	b := &batches{answer: func(batch int, changes []registry.Change) error {
		if batch == 2 {
			return registry.Transient(down)
		}
		return &registry.ChangeError{ID: changes[0].Entry.ID, Err: registry.ErrForeign}
	}}
	p, err := applied(t, b)
	refused, rest := registry.ChangeErrors(err)
	if len(b.sizes) != 2 || !errors.Is(rest, down) || len(refused) != 1 {
		t.Errorf("batches of %v; refused %v, %v", b.sizes, refused, rest)
	}
	if _, err := p.pool.down("discovery"); !errors.Is(err, down) {
		t.Errorf("the registry is down with %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// deletesPerSecond is the rate of deletions of Pods that the guard does not know. A round takes a
	// second.
	deletesPerSecond = 200
	// guardLimit is how many times longer such a deletion may take with the guard, by p99. It
	// leaves a tenth for chance.
	guardLimit = 1.1
	// Names that goals refer to.
	deleteGuarded, deleteUnguarded = "delete, with the guard", "delete, without it"
	// evaluations is the API server's metric of the match conditions that keep it from calling the
	// guard.
	evaluations = "apiserver_admission_match_condition_evaluation_seconds"
	// nowhere is a port without a server: the guard is never called.
	nowhere = 1
)

// guardTurns returns the rounds of each size: a second of deletions each. The Deployment follows.
func guardTurns(sizes []int) (turns []turn) {
	for _, n := range sizes {
		rounds := max(n/deletesPerSecond, 1)
		for round := range rounds {
			turns = append(turns, turn{size: min(n, deletesPerSecond), round: round, of: rounds})
		}
	}
	return append(turns, turn{size: deploymentPods, of: 1, deployment: true})
}

// guarded deletes Pods that the guard does not know, with its webhook and without, in an alternating
// order.
func (m *measurement) guarded(ctx context.Context) (results []*result, err error) {
	sides := []bool{true, false}
	if m.turn.round%2 > 0 {
		slices.Reverse(sides)
	}
	for _, there := range sides {
		r, err := m.deleteUnknown(ctx, there)
		if err != nil {
			return nil, fmt.Errorf("%s, the guard there: %t: %w", m.where(), there, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// deleteUnknown makes Pods and deletes them.
func (m *measurement) deleteUnknown(ctx context.Context, there bool) (*result, error) {
	remove := m.removal(deleteUnguarded)
	remove.perSecond = deletesPerSecond
	if there {
		remove.name = deleteGuarded
	}
	if _, err := m.request(ctx, request{image: plainImage(1), send: m.createPod}); err != nil {
		return nil, err
	}
	if err := m.placeGuard(ctx, there); err != nil {
		return nil, err
	}
	if err := m.warmUp(ctx); err != nil {
		return nil, err
	}
	before, err := m.evaluations(ctx)
	if err != nil {
		return nil, err
	}
	r, err := m.request(ctx, remove)
	if err != nil {
		return nil, err
	}
	after, err := m.evaluations(ctx)
	if found := after - before; err == nil && found > 0 {
		err = fmt.Errorf("the API server has evaluated the guard's conditions %d times, for Pods without its label", found)
	}
	return r, err
}

// placeGuard adds the guard's webhook or removes it, and waits until the API server knows.
func (m *measurement) placeGuard(ctx context.Context, there bool) error {
	if err := client.IgnoreNotFound(checkout.RemoveGuard(ctx, m.Kube)); err != nil {
		return err
	}
	if there {
		if _, err := checkout.InstallGuard(ctx, m.Kube, m.Root, stage.UsherUser, nowhere); err != nil {
			return err
		}
	}
	labelled := barePod("labelled")
	labelled.Labels = map[string]string{usherv1alpha1.LabelGuarded: "true"}
	labelled.Spec.Containers = []corev1.Container{{Name: "main", Image: image(1)}}
	if err := m.Kube.Create(ctx, labelled); err != nil {
		return err
	}
	err := stage.Poll(ctx, time.Minute, "the API server to know of the guard's webhook", func(ctx context.Context) (bool, error) {
		before, err := m.evaluations(ctx)
		if err != nil {
			return false, err
		}
		if err := m.Kube.Delete(ctx, labelled, client.DryRunAll); err != nil {
			return false, err
		}
		after, err := m.evaluations(ctx)
		return (after > before) == there, err
	})
	return errors.Join(err, m.Kube.Delete(ctx, labelled, client.GracePeriodSeconds(0)))
}

// evaluations returns how often the API server has evaluated conditions of webhooks.
func (m *measurement) evaluations(ctx context.Context) (n int, err error) {
	client, err := rest.HTTPClientFor(m.Cluster.RESTConfig())
	if err != nil {
		return 0, err
	}
	families, err := run.HTTP{Address: m.Cluster.Server(), Client: client}.Metrics(ctx, "/metrics")
	for _, metric := range families[evaluations].GetMetric() {
		n += int(metric.GetHistogram().GetSampleCount())
	}
	return n, err
}

// judgeGuard compares deletions with the guard and without it; nil if there are none.
func judgeGuard(results []*result) []goal {
	with, without := largest(results, deleteGuarded), largest(results, deleteUnguarded)
	if with == nil || without == nil {
		return nil
	}
	text := func(r *result) string {
		return fmt.Sprintf("p99 %s, p50 %s, and %s of the API server's CPU each", percentile(r.latency, 99), percentile(r.latency, 50),
			stage.Milliseconds(r.cpu[apiServer]/time.Duration(r.pods)))
	}
	times := with.latency.Percentile(99).Seconds() / without.latency.Percentile(99).Seconds()
	return []goal{{
		met: times <= guardLimit,
		what: fmt.Sprintf("deletions of Pods that the guard does not know, %d a second: p99 at most %g × that without the guard",
			deletesPerSecond, guardLimit),
		found: fmt.Sprintf("%.2f ×: %s; without it %s", times, text(with), text(without)),
	}}
}

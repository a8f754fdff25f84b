// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// deploymentPods is the size of the measured Deployment, and deploymentFew what it is scaled to.
	deploymentPods, deploymentFew = 100, 10
	// noticeTime is how long callers get to notice that a Pod leaves: the Registration's propagation,
	// or the time that a preStop hook sleeps.
	noticeTime = 5 * time.Second
	// scaleInLimit is how many times longer than with a preStop hook a scale-in may take.
	scaleInLimit = 1.2
	// waveLimit is how long one wave of a rollout may take.
	waveLimit = noticeTime + time.Second
	// Names that goals refer to.
	scaledIn, rolledOut = "scale in", "roll out"
)

// way is how callers learn that a Pod of the Deployment leaves.
type way struct {
	name string
	// usher means that Pods drain with a Registration and the guard, sleeps that they have a preStop
	// hook that waits.
	usher, sleeps bool
	// surge is spec.strategy.rollingUpdate.maxSurge, in per cent of the Pods.
	surge int
}

const usualSurge, usualUnavailable = 25, 25

var withUsher, withSleep = way{name: "Usher and its guard", usher: true, surge: usualSurge}, way{name: "a preStop sleep", sleeps: true, surge: usualSurge}

// ways are measured in this order, first those with Usher.
var ways = []way{
	withUsher,
	{name: "Usher, twice the surge", usher: true, surge: 2 * usualSurge},
	withSleep,
	{name: "neither: requests are lost", surge: usualSurge},
}

// waves returns how many waves a rollout takes if maxSurge and maxUnavailable together bound the Pods
// that are away at a time, draining ones included.
func (w way) waves() int {
	return (100 + w.surge + usualUnavailable - 1) / (w.surge + usualUnavailable)
}

// deployments measures the Deployment in each way.
func (m *measurement) deployments(ctx context.Context) (results []*result, err error) {
	if err := m.startGuard(ctx); err != nil {
		return nil, err
	}
	for _, w := range ways {
		if !w.usher && m.running {
			m.running = false
			if err := checkout.RemoveGuard(ctx, m.Kube); err != nil {
				return nil, err
			}
			if err := m.StopUsher(ctx); err != nil {
				return nil, err
			}
		}
		done, err := m.deployment(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("a Deployment, with %s: %w", w.name, err)
		}
		results = append(results, done...)
	}
	return results, nil
}

// startGuard starts Usher with the guard, and creates the Service and the Registration of the
// Deployment's Pods.
func (m *measurement) startGuard(ctx context.Context) error {
	if err := client.IgnoreNotFound(checkout.RemoveGuard(ctx, m.Kube)); err != nil {
		return err
	}
	ports, err := run.FreePorts(ctx, 1)
	if err != nil {
		return err
	}
	args, err := checkout.InstallGuard(ctx, m.Kube, m.Root, stage.UsherUser, ports[0])
	if err != nil {
		return err
	}
	for _, name := range []string{"service", "services", "in-service"} {
		o, err := object(name)
		if err == nil {
			err = m.Kube.Create(ctx, o)
		}
		if err != nil {
			return fmt.Errorf("create what manifests/%s.yaml has: %w", name, err)
		}
	}
	if err := m.StartCertificate(); err != nil {
		return err
	}
	if err := m.StartUsher(args...); err != nil {
		return err
	}
	m.running = true
	_, err = checkout.AwaitGuard(ctx, m.Kube)
	return err
}

// deployment brings the Deployment up in one way, scales it in, rolls it out, and deletes it.
func (m *measurement) deployment(ctx context.Context, w way) ([]*result, error) {
	ctx, cancel := m.bound(ctx)
	defer cancel()
	if err := m.createDeployment(ctx, w); err != nil {
		return nil, err
	}
	if err := m.settled(ctx, w, image(1)); err != nil {
		return nil, err
	}
	in, err := m.change(ctx, w, scaledIn, deploymentPods-deploymentFew, fmt.Sprintf(`{"spec":{"replicas":%d}}`, deploymentFew),
		func(ctx context.Context) error { return m.pods.await(ctx, deploymentFew, nil) })
	if err != nil {
		return nil, err
	}
	if err := m.patchDeployment(ctx, fmt.Sprintf(`{"spec":{"replicas":%d}}`, deploymentPods)); err != nil {
		return nil, err
	}
	if err := m.settled(ctx, w, image(1)); err != nil {
		return nil, err
	}
	next := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image(2))
	out, err := m.change(ctx, w, rolledOut, deploymentPods, next, func(ctx context.Context) error {
		return m.pods.await(ctx, deploymentPods, map[string]int{image(2): deploymentPods})
	})
	if err != nil {
		return nil, err
	}
	shop, err := object("deployment")
	if err != nil {
		return nil, err
	}
	if err := m.Kube.Delete(ctx, shop); err != nil {
		return nil, fmt.Errorf("delete the Deployment: %w", err)
	}
	return []*result{in, out}, m.pods.await(ctx, 0, nil)
}

// createDeployment creates the Deployment, with the additions of a way.
func (m *measurement) createDeployment(ctx context.Context, w way) error {
	shop, err := object("deployment")
	if err != nil {
		return err
	}
	spec := shop.Object["spec"].(map[string]any)
	spec["strategy"].(map[string]any)["rollingUpdate"].(map[string]any)["maxSurge"] = fmt.Sprintf("%d%%", w.surge)
	pod := spec["template"].(map[string]any)["spec"].(map[string]any)
	if w.usher {
		pod["readinessGates"] = []any{map[string]any{"conditionType": usherv1alpha1.ConditionRegistered}}
	}
	if w.sleeps {
		hook := map[string]any{"preStop": map[string]any{"sleep": map[string]any{"seconds": int64(noticeTime.Seconds())}}}
		pod["containers"].([]any)[0].(map[string]any)["lifecycle"] = hook
	}
	if err := m.Kube.Create(ctx, shop); err != nil {
		return fmt.Errorf("create the Deployment: %w", err)
	}
	return nil
}

func (m *measurement) patchDeployment(ctx context.Context, patch string) error {
	shop, err := object("deployment")
	if err != nil {
		return err
	}
	if err := m.Kube.Patch(ctx, shop, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("patch the Deployment: %w", err)
	}
	return nil
}

// settled waits until all Pods serve, and until Usher has made its writes about them.
func (m *measurement) settled(ctx context.Context, w way, image string) error {
	if err := m.pods.await(ctx, deploymentPods, map[string]int{image: deploymentPods}); err != nil {
		return err
	}
	err := stage.Poll(ctx, stepLimit, "the Pods to be registered", func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := m.Kube.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		for i := range pods.Items {
			if w.usher && !podread.IsTrue(&pods.Items[i], usherv1alpha1.ConditionRegistered) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	_, _, err = m.audit.untilQuiet(ctx)
	return err
}

// change measures one change of the Deployment, until done says that its Pods are as they should be.
func (m *measurement) change(ctx context.Context, w way, name string, pods int, patch string, done func(context.Context) error) (*result, error) {
	m.say("a Deployment of %d Pods, with %s: %s", deploymentPods, w.name, name)
	m.nodes.begin(containerDelay, 0)
	r := m.result(step{name: name, size: deploymentPods, pods: pods})
	r.alone, r.way = true, w.name
	before, err := m.refusals(ctx)
	if err != nil {
		return nil, err
	}
	spent, err := m.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := m.patchDeployment(ctx, patch); err != nil {
		return nil, err
	}
	if err := done(ctx); err != nil {
		return nil, err
	}
	r.wall = time.Since(began)
	r.done = r.wall
	if r.cpu, err = m.cpuSince(spent); err != nil {
		return nil, err
	}
	own, theirs, err := m.audit.untilQuiet(ctx)
	if err != nil {
		return nil, err
	}
	after, err := m.refusals(ctx)
	r.own, r.theirs, r.events, r.refused = own, sum(theirs.writes), events(own)+events(theirs), after-before
	return r, err
}

// events returns how many writes of events there are.
func events(of apiRequests) (n int) {
	for what, count := range of.writes {
		if verb, resource, _ := strings.Cut(what, " "); verb != "" && resource == "events" {
			n += count
		}
	}
	return n
}

// refusals returns how often events say that a controller could not delete a Pod.
func (m *measurement) refusals(ctx context.Context) (n int, err error) {
	var all corev1.EventList
	if err := m.Kube.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list events: %w", err)
	}
	for _, e := range all.Items {
		if e.Reason == "FailedDelete" {
			n += int(max(e.Count, 1))
		}
	}
	return n, nil
}

// deploymentColumns returns the columns of the table of the Deployment.
func deploymentColumns() []column {
	return []column{
		{"the Pods go with", true, func(r *result) string { return r.way }},
		{"change", true, func(r *result) string { return r.name }},
		{"wall", false, func(r *result) string { return stage.Seconds(r.perRound(r.wall)) }},
		{"Usher's writes per Pod", false, func(r *result) string { return decimal(r.perPod(float64(sum(r.own.writes))), 2) }},
		{"writes of others", false, func(r *result) string { return decimal(r.perPod(float64(r.theirs)), 2) }},
		{"of events", false, func(r *result) string { return decimal(r.perPod(float64(r.events)), 2) }},
		{"FailedDelete", false, func(r *result) string { return stage.Thousands(r.refused) }},
		{"Usher's CPU/Pod", false, func(r *result) string { return stage.Milliseconds(r.cpuPerPod()) }},
	}
}

// inWay returns the result of a change in a way; nil if there is none.
func inWay(results []*result, w way, name string) *result {
	for _, r := range results {
		if r.way == w.name && r.name == name {
			return r
		}
	}
	return nil
}

// judgeDeployments compares the ways; nil if they were not measured.
func judgeDeployments(results []*result) []goal {
	in, asleep, out := inWay(results, withUsher, scaledIn), inWay(results, withSleep, scaledIn), inWay(results, withUsher, rolledOut)
	if in == nil || asleep == nil || out == nil {
		return nil
	}
	limit := time.Duration(withUsher.waves()) * waveLimit
	return []goal{{
		met: in.wall.Seconds() <= scaleInLimit*asleep.wall.Seconds(),
		what: fmt.Sprintf("a Deployment of %d Pods scaled to %d, propagation %s: at most %g × the time with a preStop sleep of %s",
			deploymentPods, deploymentFew, noticeTime, scaleInLimit, noticeTime),
		found: fmt.Sprintf("%.2f ×: %s; with the sleep %s", in.wall.Seconds()/asleep.wall.Seconds(), stage.Seconds(in.wall), stage.Seconds(asleep.wall)),
	}, {
		met: out.wall <= limit,
		what: fmt.Sprintf("the same rolled out, maxSurge %d %%, maxUnavailable %d %%: at most %d waves of the propagation and a second",
			usualSurge, usualUnavailable, withUsher.waves()),
		found: fmt.Sprintf("%s of %s; with the sleep %s", stage.Seconds(out.wall), stage.Seconds(limit), stage.Seconds(inWay(results, withSleep, rolledOut).wall)),
	}}
}

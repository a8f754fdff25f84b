// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/servers"
)

const (
	normalHook = "measure.usher.dev/normal"
	// propagation is short, because it is not what is measured.
	propagation = 100 * time.Millisecond
	port        = 8080
)

// trial is the measurement with one registry on a stage.
type trial struct {
	*stage
	kind    string
	options Options
	say     func(format string, args ...any)
	fail    func(error)
	audit   *auditLog

	server  servers.Server
	crowd   *crowd
	witness *witness
	// past is the CPU time of the killed Ushers.
	past time.Duration
	peak float64 // MiB
}

// open starts the registry and watches it and the Pods until ctx ends. The returned
// function waits until the watches have ended.
func (t *trial) open(ctx context.Context) (func(), error) {
	dir, err := os.MkdirTemp(t.dir, t.kind+"-")
	if err != nil {
		return nil, err
	}
	t.say("%s starts", t.kind)
	if t.server, err = servers.Start(ctx, t.kind, servers.Where{Root: t.root, Dir: dir}); err != nil {
		return nil, err
	}
	t.witness = newWitness(time.Now)
	t.crowd = newCrowd(time.Now, t.witness.saw)
	var running sync.WaitGroup
	running.Go(func() { t.witness.run(ctx) })
	running.Go(func() {
		podWatch := cache.NewListWatchFromClient(t.pods.CoreV1().RESTClient(), "pods", namespace, fields.Everything())
		cache.NewReflector(podWatch, &corev1.Pod{}, t.crowd, 0).RunWithContext(ctx)
	})
	running.Go(func() {
		if err := t.server.Watch(ctx, t.witness.sighted); err != nil && ctx.Err() == nil {
			t.fail(err)
		}
	})
	return running.Wait, nil
}

// hookedSet is the measured CloneSet: a label holds its Pods at each gate until the
// operator answers.
func hookedSet() *unstructured.Unstructured {
	set := cloneSet()
	lifecycle := map[string]any{}
	for gate, key := range map[string]string{"preNormal": normalHook, "inPlaceUpdate": updateHook, "preDelete": deleteHook} {
		lifecycle[gate] = map[string]any{"labelsHandler": map[string]any{key: hooked}}
	}
	set.Object["spec"].(map[string]any)["lifecycle"] = lifecycle
	return set
}

// registration is what the operator has to do.
func (t *trial) registration() (*usherv1alpha1.Registry, *usherv1alpha1.Registration) {
	registry := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: setName}, Spec: t.server.Spec()}
	registry.Spec.RepairInterval = &metav1.Duration{Duration: t.options.Repair}
	return registry, &usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName},
		Spec: usherv1alpha1.RegistrationSpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{appLabel: setName}}, Registries: []string{setName},
			Instance: usherv1alpha1.Instance{Service: servers.Service, Port: intstr.FromInt32(port)},
			Hooks:    usherv1alpha1.Hooks{PreNormal: normalHook, InPlaceUpdate: updateHook, PreDelete: deleteHook},
			Drain:    usherv1alpha1.Drain{Propagation: &metav1.Duration{Duration: propagation}},
		},
	}
}

// bound gives a phase its deadline.
func (t *trial) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, t.options.PhaseLimit, fmt.Errorf("it took longer than %s", t.options.PhaseLimit))
}

// begin starts both halves of Usher with an empty CloneSet.
func (t *trial) begin(ctx context.Context) error {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	registry, registration := t.registration()
	for _, object := range []client.Object{registry, registration, hookedSet()} {
		if err := t.sets.Create(ctx, object); err != nil {
			return fmt.Errorf("create %s: %w", object.GetName(), err)
		}
	}
	if err := t.startUsher(t.fail); err != nil {
		return err
	}
	_, _, err := t.audit.untilQuiet(ctx)
	return err
}

// end deletes everything and stops Usher.
func (t *trial) end(ctx context.Context) error {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	registry, registration := t.registration()
	for _, object := range []client.Object{hookedSet(), registration, registry} {
		if err := t.sets.Delete(ctx, object); err != nil {
			return fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
		if err := t.awaitGone(ctx, object); err != nil {
			return err
		}
	}
	return t.stopUsher(ctx)
}

// awaitGone waits until an object is gone; Usher holds it while it is used.
func (t *trial) awaitGone(ctx context.Context, object client.Object) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := t.sets.Get(ctx, client.ObjectKeyFromObject(object), object)
		if ignoreNotFound(err) != nil {
			return fmt.Errorf("wait until %s is gone: %w", object.GetName(), err)
		}
		if err != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is gone: %w", object.GetName(), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// restart kills Usher, as a crash does, and starts it again.
func (t *trial) restart() error {
	spent, err := process.Table{}.CPU(t.usher.PID())
	if err != nil {
		return err
	}
	t.past += spent
	if err := errors.Join(t.notePeak(), t.usher.Kill()); err != nil {
		return err
	}
	return t.startUsher(t.fail)
}

func (t *trial) notePeak() error {
	peak, err := process.Table{}.PeakRSS(t.usher.PID())
	t.peak = max(t.peak, float64(peak)/(1<<20))
	return err
}

// cpu reads the CPU times of all processes.
func (t *trial) cpu() (times, error) {
	meter, err := t.meter()
	if err != nil {
		return times{}, err
	}
	meter[t.server.PID()] = roleRegistry
	now, err := meter.read(process.Table{})
	if err != nil {
		return now, err
	}
	now.byRole[roleUsher] += t.past
	return now, nil
}

// ask changes the CloneSet.
func (t *trial) ask(ctx context.Context, p move) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"replicas":       p.replicas,
		"updateStrategy": map[string]any{"partition": p.old},
		"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "main", "image": image(p.version)}},
		}},
	}})
	if err != nil {
		return fmt.Errorf("encode the change of the CloneSet: %w", err)
	}
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName}}
	if err := t.sets.Patch(ctx, set, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("change the CloneSet: %w", err)
	}
	return nil
}

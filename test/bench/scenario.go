// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
)

const namespace, setName, usherImage = "measure", "web", "example.test/usher:v1"

// The labels of the hooks.
const (
	normalHook = "measure.usher.dev/normal"
	updateHook = "measure.usher.dev/update"
	deleteHook = "measure.usher.dev/delete"
	hooked     = "true"
)

// manifests are the measured CloneSet and its Registration.
//
//go:embed manifests
var manifests embed.FS

func object(kind string) (*unstructured.Unstructured, error) {
	text, err := manifests.ReadFile("manifests/" + kind + ".yaml")
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	return o, yaml.Unmarshal(text, &o.Object)
}

// image returns a version of the image that the Pods run.
func image(version int) string { return fmt.Sprintf("example.test/web:v%d", version) }

// step is one change of the CloneSet, and how it is measured.
type step struct {
	name string
	size int // the number of Pods that its CloneSets have together, by default the turn's
	pods int // how many it changes, by default all of them
	// sets is how many CloneSets it changes at once, each in the same way; without sets it changes one:
	// set, which is setName by default. create means that they do not exist yet. others is how many Pods
	// there are in CloneSets that do not change then.
	sets   int
	set    string
	create bool
	others int
	// replicas, version and old are the values of the CloneSet after the step: old is the number of
	// Pods that keep the previous version.
	replicas, version, old int
	recreate               bool
	hooks                  []string // the gates that hold
	// restart is how long containers take to restart, default 50 ms, pull how long nodes pull an image,
	// and distance how much longer a round trip to the API server takes. timed means that the step is
	// about these times.
	restart, pull, distance time.Duration
	timed                   bool
	// bounded means that maxUnavailable bounds the step.
	bounded bool
	// hidden means that the step only prepares the next one, and is not reported.
	hidden bool
	// parts are measured in place of the step, one after another.
	parts []step
	// do replaces the change, and during is called after it, while Pods change.
	do, during func(context.Context, *measurement, step) error
}

// Names that goals refer to.
const (
	stepInPlace = "in place"
	stepSmall   = "in place, a small set alone"
	stepSets    = "in place, many sets at once"
	stepIdle    = "killed while idle"
	// These steps concern all Pods.
	stepRegister   = "register"
	stepFailOver   = "fail over"
	stepDeregister = "deregister"
	stepControl    = "control: one entry taken out by hand"
)

// cloneSetScenario returns the life of a CloneSet of n Pods. Each step begins where the previous one
// ended.
func cloneSetScenario(n int) []step {
	return []step{
		{name: "scale out", replicas: n, version: 1},
		{name: stepInPlace, replicas: n, version: 2, bounded: true},
		{name: "in place, hook", replicas: n, version: 3, bounded: true, hooks: []string{"inPlaceUpdate"}},
		{name: "recreate", replicas: n, version: 4, bounded: true, recreate: true},
		{name: "scale in, hook", version: 4, hooks: []string{"preDelete"}},
		{name: "scale out again", replicas: n, version: 4, hidden: true},
		{name: "scale in", version: 4},
	}
}

// timed reports whether only the times of updates in place are measured.
func (o Options) timed() bool { return len(o.Restarts)+len(o.Latencies) > 0 || o.Pull > 0 }

// scenario returns the steps of a turn.
func (o Options) scenario(t turn) []step {
	n := t.size
	restarts, latencies := o.Restarts, o.Latencies
	if len(restarts) == 0 {
		restarts = []time.Duration{containerDelay}
	}
	if len(latencies) == 0 {
		latencies = []time.Duration{0}
	}
	steps := cloneSetScenario(n)
	switch {
	case t.registry != "":
		return operatorScenario(n)
	case o.Many > 0:
		return manyScenario(o.Many)
	case o.Sets > 0:
		steps = setsScenario(n)
	case o.timed():
		return timedScenario(o.Sizes, restarts, latencies, o.Pull)
	}
	for i := range steps {
		steps[i].restart, steps[i].distance, steps[i].timed = restarts[0], latencies[0], o.timed()
	}
	return steps
}

// timedScenario creates a CloneSet of each size and updates them in turns, once for each restart and
// latency: the smallest one, and as many Pods of the others. So all of them are measured in the same
// cluster, on a machine of the same speed.
func timedScenario(sizes []int, restarts, latencies []time.Duration, pull time.Duration) (steps []step) {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	sets, pods := make([]*timedSet, len(sizes)), 0
	for i, n := range sizes {
		made := step{name: "scale out", set: fmt.Sprintf("of-%d", n), size: n, replicas: n, version: i * versions, others: pods, create: true, hidden: true}
		sets[i] = &timedSet{made: made, slices: min(n/sizes[0], maxRounds)}
		steps, pods = append(steps, made), pods+n
	}
	least, largest := sets[0], sets[len(sets)-1]
	for _, distance := range latencies {
		away := ""
		if distance > 0 { // an API server does not move away from a running Usher
			away = fmt.Sprintf(", API server %s away", distance)
			learn := least.next(step{name: "learn the distance", distance: distance, others: pods, hidden: true})
			learn.old = learn.size - learn.size/10
			steps = append(steps, learn)
		}
		for _, restart := range restarts {
			one := step{name: fmt.Sprintf("%s, restart %s", stepInPlace, restart), bounded: true, timed: true, restart: restart, pull: pull, distance: distance, others: pods}
			if pull > 0 {
				one.name += fmt.Sprintf(", pull %s", pull)
			}
			one.name += away
			all := one
			for range largest.slices {
				for _, set := range sets {
					all.parts = append(all.parts, set.next(one))
				}
				slices.Reverse(sets)
			}
			steps = append(steps, all)
		}
	}
	return steps
}

// versions is how many versions of the image a CloneSet of timedScenario may have: no two sets have a
// version in common.
const versions = 10_000

// timedSet is a CloneSet of timedScenario. It is updated slice by slice.
type timedSet struct {
	made         step
	slices, done int
}

// next returns an update, p, of the next slice. Nodes have pulled the image with the first one.
func (s *timedSet) next(p step) step {
	i, n := s.done%s.slices, s.made.size
	if i > 0 {
		p.pull = 0
	}
	p.set, p.size, p.replicas, p.others = s.made.set, n, n, p.others-n
	p.version, p.old = s.made.version+1+s.done/s.slices, n-(i+1)*n/s.slices
	p.pods = n - p.old - i*n/s.slices
	s.done++
	return p
}

// The sets of setsScenario.
const (
	// PodsPerSet is how many Pods each of many CloneSets has.
	PodsPerSet = 5
	smallSet   = "small"
	smallPods  = 3
)

// setsScenario updates one CloneSet of n Pods, a small one before and during that, and many with n Pods
// in all. Each has versions of its own.
func setsScenario(n int) []step {
	small := func(version int) step {
		return step{name: stepSmall, set: smallSet, pods: smallPods, replicas: smallPods, version: version, others: n}
	}
	first, sets := small(11), step{name: stepSets, sets: n / PodsPerSet, replicas: PodsPerSet, others: smallPods, version: 21}
	first.create, sets.create, first.hidden, sets.hidden = true, true, true, true
	updated := sets
	updated.version, updated.create, updated.hidden, updated.bounded = 22, false, false, true
	return []step{
		{name: "scale out", replicas: n, version: 1, hidden: true},
		first, small(12),
		{name: stepInPlace, replicas: n, version: 2, others: smallPods, bounded: true, during: updateBeside(small(13))},
		{name: "scale in", version: 2, others: smallPods, hidden: true},
		sets, updated,
	}
}

// fifth divides the Pods: one in five changes in the steps in which Usher is killed.
const fifth = 5

// operatorScenario returns the life of a CloneSet with both halves of Usher and a registry.
func operatorScenario(n int) []step {
	some := n / fifth
	steps := []step{
		{name: stepRegister, replicas: n, version: 1},
		{name: stepIdle, replicas: n, version: 1, do: killIdle},
		{name: stepFailOver, replicas: n, version: 2, during: deleteMeanwhile},
		{name: "deregister a fifth, killed twice", pods: some, replicas: n - some, version: 2, during: killTwice},
		{name: "register a fifth, killed twice", pods: some, replicas: n, version: 2, during: killTwice},
		{name: "fail over a fifth, killed twice", pods: some, replicas: n, version: 3, old: n - some, during: killTwice},
		{name: stepControl, pods: 1, replicas: n, version: 3, old: n - some, do: removeEntry},
		{name: stepDeregister, version: 3},
	}
	for i := range steps {
		steps[i].hooks = []string{"preNormal", "inPlaceUpdate", "preDelete"}
	}
	return steps
}

// names returns the names of the CloneSets that the step changes.
func (p step) names() []string {
	if p.sets == 0 {
		return []string{cmp.Or(p.set, setName)}
	}
	names := make([]string, p.sets)
	for i := range names {
		names[i] = fmt.Sprintf("many-%04d", i)
	}
	return names
}

// apply changes the CloneSets and returns the resulting generations.
func (p step) apply(ctx context.Context, kube client.Client) ([]int64, error) {
	patch, err := p.patch()
	if err != nil {
		return nil, fmt.Errorf("encode the change of a CloneSet: %w", err)
	}
	names := p.names()
	generations := make([]int64, len(names))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(plainWorkers)
	for i, name := range names {
		all.Go(func() error {
			if p.create {
				if err := createSet(ctx, kube, name); err != nil {
					return err
				}
			}
			set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			if err := kube.Patch(ctx, set, client.RawPatch(types.MergePatchType, patch)); err != nil {
				return fmt.Errorf("change CloneSet %s: %w", name, err)
			}
			generations[i] = set.Generation
			return nil
		})
	}
	return generations, all.Wait()
}

// createSet creates another CloneSet like the measured one.
func createSet(ctx context.Context, kube client.Client, name string) error {
	set, err := object("cloneset")
	if err == nil {
		set, err = stage.Merge(set, stage.CloneSet{}, fmt.Sprintf("{metadata: {name: %[1]s}, spec: {"+
			"selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}}}}", name))
	}
	if err != nil {
		return err
	}
	return kube.Create(ctx, set)
}

// patch returns the change of a CloneSet.
func (p step) patch() ([]byte, error) {
	kind := apps.UpdateInPlaceIfPossible
	if p.recreate {
		kind = apps.UpdateReCreate
	}
	labels := map[string]string{"preNormal": normalHook, "inPlaceUpdate": updateHook, "preDelete": deleteHook}
	lifecycle := map[string]any{}
	for gate := range labels {
		lifecycle[gate] = nil // removes it
	}
	for _, gate := range p.hooks {
		lifecycle[gate] = map[string]any{"labelsHandler": map[string]string{labels[gate]: hooked}}
	}
	return json.Marshal(map[string]any{"spec": map[string]any{
		"replicas":       p.replicas,
		"updateStrategy": map[string]any{"type": kind, "partition": p.old},
		"lifecycle":      lifecycle,
		"template":       map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": image(p.version)}}}},
	}})
}

// answerWorkers is how many hooks are answered concurrently.
const answerWorkers = 16

// answerHooks returns a function that confirms the hook of a Pod that has just reached a
// gate, and marks the Pod again after an update, like a hook operator that has nothing to
// wait for. Each hook is answered once: later events of the Pod may be older than the
// answer.
func answerHooks(ctx context.Context, kube client.Client, fail func(error)) func(*corev1.Pod, apps.LifecycleState) {
	free := make(chan struct{}, answerWorkers)
	return func(pod *corev1.Pod, before apps.LifecycleState) {
		patch := answerTo(pod, before)
		if patch == "" {
			return
		}
		go func() {
			free <- struct{}{}
			defer func() { <-free }()
			err := kube.Patch(ctx, barePod(pod.Name), client.RawPatch(types.MergePatchType, []byte(patch)))
			if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
				fail(fmt.Errorf("answer the hook of Pod %s: %w", pod.Name, err))
			}
		}()
	}
}

// answerTo returns the patch that answers a Pod's hook; "" if there is nothing new.
func answerTo(pod *corev1.Pod, before apps.LifecycleState) string {
	state := stateOf(pod)
	if pod.DeletionTimestamp != nil || state == before {
		return ""
	}
	switch {
	case state == apps.StatePreparingUpdate && pod.Labels[updateHook] != "":
		return labelPatch(updateHook, "null")
	case state == apps.StateUpdated && pod.Labels[updateHook] == "":
		return labelPatch(updateHook, `"`+hooked+`"`)
	case state == apps.StatePreparingDelete && pod.Labels[deleteHook] != "":
		return labelPatch(deleteHook, "null")
	}
	return ""
}

func labelPatch(label, value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, label, value)
}

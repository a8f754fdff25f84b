// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// hooks ask for a label and a finalizer at each gate.
func hooks(marking bool) Hooks {
	gate := func(key string) Hook {
		return Hook{LabelsHandler: map[string]string{key: "yes"}, FinalizersHandler: []string{key + "-f"}, MarkPodNotReady: marking}
	}
	return Hooks{PreNormal: gate("normal"), InPlaceUpdate: gate("update"), PreDelete: gate("delete")}
}

// podWords describe a Pod.
var podWords = map[string]func(*Pod, string){
	"unscheduled": func(p *Pod, _ string) { p.Scheduled = false },
	"done":        func(p *Pod, _ string) { p.UpdateDone = true },
	"wanted":      func(p *Pod, _ string) { p.UpdateWanted = true },
	"label": func(p *Pod, about string) {
		key, value, _ := strings.Cut(about, " ")
		p.Labels[key] = value
	},
	"finalizer": func(p *Pod, key string) { p.Finalizers = append(p.Finalizers, key+"-f") },
	// all is everything that gates ask for.
	"all": func(p *Pod, keys string) {
		for key := range strings.FieldsSeq(keys) {
			p.Labels[key], p.Finalizers = "yes", append(p.Finalizers, key+"-f")
		}
	},
}

// TestNext covers the rows of the transition table that a Pod takes by itself, and every
// wait.
func TestNext(t *testing.T) {
	scenariotest.Run(t, "testdata/next.txt", func(t *testing.T, lines []string) []string {
		all := hooks(false)
		asked := map[string]Hooks{"Hooks all": all, "Hooks preDelete": {PreDelete: all.PreDelete}}[lines[0]]
		state, about, _ := strings.Cut(strings.TrimPrefix(lines[1], "Pod "), ": ")
		pod := Pod{State: apps.LifecycleState(strings.TrimPrefix(state, "(none)")), Labels: map[string]string{}, Scheduled: true}
		checktest.NoError(t, scenariotest.Say(podWords, &pod, about))
		next, reason := Next(pod, asked)
		comes := strings.TrimSpace(cmp.Or(string(next), "(none)") + " " + reason)
		if gate, keys := Waiting(pod, asked); reason == "" && len(keys) > 0 {
			return []string{comes, fmt.Sprintf("waits at %s for %s", gate, strings.Join(keys, ", "))}
		}
		return []string{comes}
	})
}

// TestHookPredicates: one key is enough to hold, all are needed to be complete, and a finalizer that is
// listed twice counts once. A hook holds no Pod that it has released, even one without labels.
func TestHookPredicates(t *testing.T) {
	hook := Hook{LabelsHandler: map[string]string{"b": "1", "a": ""}, FinalizersHandler: []string{"z", "y", "z"}}
	scenariotest.Table(t, "testdata/hook.txt", func(t *testing.T, pod struct {
		Labels     map[string]string
		Finalizers []string
	}) string {
		missing, holding := hook.Missing(pod.Labels, pod.Finalizers), hook.Holding(pod.Labels, pod.Finalizers)
		checktest.Same(t, "it holds the Pod", len(holding) > 0, hook.Holds(pod.Labels, pod.Finalizers))
		checktest.Same(t, "it is complete", len(missing) == 0, hook.Complete(pod.Labels, pod.Finalizers))
		object := metav1.ObjectMeta{Labels: pod.Labels, Finalizers: pod.Finalizers}
		hook.Release(&object)
		checktest.Same(t, "it holds the Pod that it released", false, hook.Holds(object.Labels, object.Finalizers))
		return fmt.Sprintf("holds by %v, misses %v", holding, missing)
	})
	if (Hook{}).Holds(map[string]string{"a": "1"}, []string{"z"}) || !(Hook{}).Complete(nil, nil) || !(Hook{}).Empty() {
		t.Error("the zero Hook must hold nothing and be complete")
	}
}

// TestMarkOf: markPodNotReady marks at the two gates through which a Pod leaves service,
// and nowhere else.
func TestMarkOf(t *testing.T) {
	type mark struct{ Set, Lift bool }
	set, kept, lifted := mark{Set: true}, mark{}, mark{Lift: true}
	for state, want := range map[apps.LifecycleState]mark{
		"": lifted, apps.StateNormal: lifted, apps.StatePreparingNormal: lifted, apps.StateUpdated: lifted,
		apps.StatePreparingUpdate: set, apps.StatePreparingDelete: set, apps.StateUpdating: kept,
	} {
		var got mark
		got.Set, got.Lift = MarkOf(state, hooks(true))
		checktest.Same(t, fmt.Sprintf("MarkOf(%q)", state), want, got)
		if set, _ := MarkOf(state, hooks(false)); set {
			t.Errorf("MarkOf(%q) marks without markPodNotReady", state)
		}
	}
	for _, state := range []apps.LifecycleState{"", apps.StateNormal, apps.StateUpdating} {
		gate, _, _ := hooks(true).At(state)
		checktest.Same(t, fmt.Sprintf("the gate of a Pod in %q", state), "", gate)
	}
}

// TestFromSpec: an absent lifecycle and absent hooks hold nothing.
func TestFromSpec(t *testing.T) {
	checktest.Same(t, "no lifecycle", Hooks{}, FromSpec(nil))
	one := apps.LifecycleHook{FinalizersHandler: []string{"f"}}
	checktest.Same(t, "one hook", Hooks{PreDelete: Hook(one)}, FromSpec(&apps.Lifecycle{PreDelete: &one}))
}

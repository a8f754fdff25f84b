// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/model"
)

// mutant is a controller with one bug. A simulator that does not find the bugs proves nothing about the
// real controller.
type mutant struct {
	// before changes what the planner sees; after changes what it decided.
	before []func(*Process, *plan.Snapshot)
	after  []func(*Process, *plan.Snapshot, *plan.Plan)
	// change breaks the process in another way.
	change func(*Config)
	// of builds the schedules; seed is one that shows the bug; 0 means unknown.
	of   schedule
	seed uint64
	// caught lists rules; at least one of them must catch it.
	caught []string
}

// mutants reads the mutants in a file of testdata, by name.
func mutants(t *testing.T, file string) map[string]mutant {
	t.Helper()
	all := map[string]mutant{}
	for _, one := range scenariotest.Read(t, "testdata/"+file) {
		m := mutant{of: Random, caught: one.Want}
		for _, line := range one.Given {
			checktest.NoError(t, scenariotest.Say(bugs, &m, line))
		}
		all[one.Name] = m
	}
	return all
}

// bugs are the words that describe mutants.
var bugs = map[string]func(m *mutant, value string){
	"seed": func(m *mutant, n string) { m.seed = uint64(scenariotest.Number(n)) },
	// misreads overwrites fields of the snapshot, misplans those of the plan, and misrecords, by a
	// merge patch, those of the record of each Pod's update.
	"misreads": func(m *mutant, fields string) {
		m.before = append(m.before, func(_ *Process, s *plan.Snapshot) { overwrite(s, fields) })
	},
	"misplans": func(m *mutant, fields string) {
		m.after = append(m.after, func(_ *Process, _ *plan.Snapshot, p *plan.Plan) { overwrite(p, fields) })
	},
	"misrecords": func(m *mutant, fields string) {
		patch := must(yaml.YAMLToJSON([]byte(fields)))
		m.before = append(m.before, func(_ *Process, s *plan.Snapshot) {
			s.Pods = list.Map(s.Pods, func(pod *corev1.Pod) *corev1.Pod {
				record, err := jsonpatch.MergePatch([]byte(pod.Annotations[apps.AnnotationInPlaceUpdateState]), patch)
				if err != nil {
					return pod // there is no record
				}
				pod = pod.DeepCopy()
				pod.Annotations[apps.AnnotationInPlaceUpdateState] = string(record)
				return pod
			})
		})
	},
	// takes confuses two methods of updates, or two kinds of deletion.
	"takes": func(m *mutant, value string) {
		from, to, _ := strings.Cut(value, " for ")
		m.before = append(m.before, func(_ *Process, s *plan.Snapshot) {
			if string(s.Spec.Method) == from {
				s.Spec.Method = apps.UpdateStrategyType(to)
			}
			if string(s.Deletion) == from {
				s.Deletion = plan.Deletion(to)
			}
		})
	},
	// omits leaves actions out, misdecides changes fields of them; see facts.
	"omits": func(m *mutant, which string) {
		m.after = append(m.after, func(_ *Process, _ *plan.Snapshot, p *plan.Plan) {
			p.Actions = slices.DeleteFunc(p.Actions, func(a plan.Action) bool { return slices.Contains(facts(&a), which) })
		})
	},
	"misdecides": func(m *mutant, value string) {
		which, fields, _ := strings.Cut(value, " ")
		m.acts(func(_ *Process, _ *plan.Snapshot, a *plan.Action) {
			if slices.Contains(facts(a), which) {
				overwrite(a, fields)
			}
		})
	},
	// keeps leaves a condition of Pods as it is.
	"keeps": func(m *mutant, value string) {
		m.acts(func(_ *Process, _ *plan.Snapshot, a *plan.Action) {
			a.Conditions = slices.DeleteFunc(slices.Clone(a.Conditions), func(c plan.Condition) bool {
				return value == fmt.Sprint(c.Type, " ", c.Status)
			})
		})
	},
	// careless writes without preconditions.
	"careless": breaks(func(c *Config) { c.Process.Careless = true }),

	"forgetsWrites": sees(forgetWrites),
	// behind chooses the schedules in which lists come from API servers that lag, and trustsLists forgets what it wrote
	// when there is a new list, however old.
	"behind": func(m *mutant, _ string) { m.of = Behind },
	"trustsLists": sees(func(p *Process, s *plan.Snapshot) {
		if p.caches[model.Pods].behind {
			forgetWrites(p, s)
		}
	}),
	"makesRevisions": sees(oneMoreRevision),
	"takesContainersForReady": sees(func(_ *Process, s *plan.Snapshot) {
		s.Pods = list.Map(s.Pods, func(pod *corev1.Pod) *corev1.Pod {
			pod = pod.DeepCopy()
			for i := range pod.Status.ContainerStatuses {
				pod.Status.ContainerStatuses[i].Ready = true
			}
			return pod
		})
	}),
	"takesUpdateForCurrent": sees(func(_ *Process, s *plan.Snapshot) { s.Current = s.Update }),
	"takesPullsForDone": sees(func(_ *Process, s *plan.Snapshot) {
		for i, pod := range s.Pulls.Pods {
			s.Pulls.Pods[i] = pod.DeepCopy()
			s.Pulls.Pods[i].Status.Phase = corev1.PodSucceeded
		}
	}),
	// takesRefusalsForLeave knows of trials, but not their results; triesOnce never asks again after a
	// refusal.
	"takesRefusalsForLeave": sees(func(_ *Process, s *plan.Snapshot) {
		for class, trial := range s.Trials {
			s.Trials[class] = plan.Trial{Until: trial.Until}
		}
	}),
	"triesOnce": sees(func(_ *Process, s *plan.Snapshot) {
		for class, trial := range s.Trials {
			if trial.Refused != "" {
				trial.Until = s.Now.Add(time.Hour)
				s.Trials[class] = trial
			}
		}
	}),
	// takesImagesForOthers takes an image on one node for one on all nodes.
	"takesImagesForOthers": sees(func(_ *Process, s *plan.Snapshot) {
		all := slices.Concat(slices.Collect(maps.Values(s.Pulls.Listed))...)
		for node := range s.Pulls.Listed {
			s.Pulls.Listed[node] = all
		}
	}),
	// removesFinalizers removes all finalizers from a set with that kind of deletion.
	"removesFinalizers": func(m *mutant, how string) {
		m.before = append(m.before, func(p *Process, s *plan.Snapshot) {
			if string(s.Deletion) == how {
				set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.pass.set.Namespace, Name: p.pass.set.Name}}
				_ = p.reconciler.Client.Patch(context.Background(), set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))) // a fault does not matter
			}
		})
	},
	"actsOnStatus": sees(func(p *Process, s *plan.Snapshot) {
		if p.pass.set.Status.ObservedGeneration > 0 {
			s.Spec.Replicas++
		}
	}),

	"advancesEarly": decides(func(s *plan.Snapshot, _ *plan.Plan) {
		s.Pods = list.Only(s.Pods, func(pod *corev1.Pod) bool { return of(pod, s.Update.Name) })
		s.Spec.Replicas = len(s.Pods)
	}),
	// keepsWaits reports no Pod that stays in service for an image, or because its update is refused.
	"keepsWaits":      decides(func(_ *plan.Snapshot, p *plan.Plan) { p.Waits, p.Problems = nil, nil }),
	"finishesAll":     decides(finishAll),
	"replacesUnready": decides(replaceUnready),
	// deletesClaimsFirst deletes the claims of a Pod before the Pod.
	"deletesClaimsFirst": func(m *mutant, _ string) {
		m.acts(func(p *Process, _ *plan.Snapshot, a *plan.Action) {
			for _, claim := range a.Claims {
				if a.Verb == plan.Delete {
					_ = p.Server.Delete(p.name, claim)
				}
			}
		})
	},
	"deletesClaimsOfFailed": func(m *mutant, _ string) {
		m.acts(func(_ *Process, s *plan.Snapshot, a *plan.Action) {
			if a.Reason == plan.ReasonCleanUp && a.Verb == plan.Delete {
				a.Claims = list.Only(s.Claims, func(claim *corev1.PersistentVolumeClaim) bool {
					return s.Set+"-"+claim.Labels[apps.LabelInstanceID] == a.Pod.Name && claim.DeletionTimestamp == nil
				})
			}
		})
	},
	"flagsToAndFro": decides(func(s *plan.Snapshot, p *plan.Plan) {
		mark(s, p, func(pod *corev1.Pod) bool {
			return model.State(pod) == apps.StatePreparingUpdate && pod.Labels["hook/flag"] == ""
		})
	}),
	"flagsNoted": decides(func(s *plan.Snapshot, p *plan.Plan) {
		mark(s, p, func(pod *corev1.Pod) bool { return pod.Annotations["other/note"] != "" })
	}),

	// returns is misreads for Pods that return during a pass; returnsEarly returns them before the
	// kubelet is done.
	"returns": func(m *mutant, fields string) {
		m.change = returner(func(s *plan.Snapshot, pod *corev1.Pod, now time.Time) (plan.Action, bool) {
			wrong := *s
			overwrite(&wrong, fields)
			return plan.Return(&wrong, pod, now)
		})
	},
	"returnsEarly": breaks(returner(func(_ *plan.Snapshot, pod *corev1.Pod, _ time.Time) (plan.Action, bool) {
		ready := []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue}}
		return plan.Action{Verb: plan.Move, Pod: pod, To: apps.StateNormal, Conditions: ready}, model.State(pod) == apps.StateUpdating
	})),

	// wide chooses the schedules in which many writes are under way. The words below change how many,
	// or learn the wrong things about the API server.
	"wide":     func(m *mutant, _ string) { m.of = Wide },
	"eager":    breaks(func(c *Config) { c.Process.Eager = true }),
	"deaf":     controls(func(w cloneset.Width) cloneset.Width { return deaf{w} }),
	"timeless": controls(func(w cloneset.Width) cloneset.Width { return timeless{w} }),
	"hasty":    controls(func(w cloneset.Width) cloneset.Width { return &hasty{w, map[string]bool{}} }),
	"double":   controls(func(w cloneset.Width) cloneset.Width { return double{w} }),
}

func returner(decides func(*plan.Snapshot, *corev1.Pod, time.Time) (plan.Action, bool)) func(*Config) {
	return func(c *Config) { c.Process.Returner = decides }
}

func breaks(what func(*Config)) func(*mutant, string) {
	return func(m *mutant, _ string) { m.change = what }
}

func controls(by func(cloneset.Width) cloneset.Width) func(*mutant, string) {
	return breaks(func(c *Config) { c.Process.Control = by })
}

func sees(change func(*Process, *plan.Snapshot)) func(*mutant, string) {
	return func(m *mutant, _ string) { m.before = append(m.before, change) }
}

func decides(change func(*plan.Snapshot, *plan.Plan)) func(*mutant, string) {
	return func(m *mutant, _ string) {
		m.after = append(m.after, func(_ *Process, s *plan.Snapshot, p *plan.Plan) { change(s, p) })
	}
}

// acts changes actions.
func (m *mutant) acts(change func(*Process, *plan.Snapshot, *plan.Action)) {
	m.after = append(m.after, func(by *Process, s *plan.Snapshot, p *plan.Plan) {
		for i := range p.Actions {
			change(by, s, &p.Actions[i])
		}
	})
}

// facts returns the words by which mutants choose an action: its verb and reason, the states that its
// Pod comes from and moves to, and whether it resizes.
func facts(a *plan.Action) []string {
	out := []string{string(a.Verb), a.Reason, "to" + string(a.To)}
	if a.Pod != nil {
		out = append(out, "from"+string(model.State(a.Pod)))
	}
	if a.Change != nil && len(a.Change.Resources) > 0 {
		out = append(out, "resize")
	}
	return out
}

// overwrite decodes fields into an object.
func overwrite(something any, fields string) {
	if err := yaml.UnmarshalStrict([]byte(fields), something); err != nil {
		panic(err) // they are misspelt
	}
}

// oneMoreRevision makes another revision of the template in each pass.
func oneMoreRevision(p *Process, s *plan.Snapshot) {
	set := p.pass.set
	again := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: fmt.Sprintf("%s-v%d", set.Name, model.Version(set)),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
		},
		Data: runtime.RawExtension{Raw: must(revision.Data(s.Update.Template))},
	}
	_ = p.reconciler.Client.Create(context.Background(), again) // a fault does not matter
}

func forgetWrites(p *Process, s *plan.Snapshot) {
	s.Pods = slices.DeleteFunc(model.List[*corev1.Pod](model.Objects{model.Pods: p.pass.base}), func(pod *corev1.Pod) bool {
		return model.OwnerOf(pod) != string(p.pass.set.UID)
	})
}

// finishAll takes every Pod out of Updating.
func finishAll(s *plan.Snapshot, p *plan.Plan) {
	for _, pod := range idle(s, p) {
		if model.State(pod) == apps.StateUpdating {
			p.Actions = append(p.Actions, plan.Action{
				Verb: plan.Move, Reason: lifecycle.ReasonUpdateDone, Pod: pod, To: apps.StateUpdated,
				Conditions: []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue}},
			})
		}
	}
}

// idle returns the Pods that stay as they are.
func idle(s *plan.Snapshot, p *plan.Plan) []*corev1.Pod {
	return list.Only(s.Pods, func(pod *corev1.Pod) bool {
		taken := slices.ContainsFunc(p.Actions, func(a plan.Action) bool { return a.Pod == pod })
		return !taken && pod.DeletionTimestamp == nil
	})
}

// mark adds a label to Pods that need nothing else, or removes it.
func mark(s *plan.Snapshot, p *plan.Plan, wanted func(*corev1.Pod) bool) {
	for _, pod := range idle(s, p) {
		if _, has := pod.Labels["hook/flag"]; wanted(pod) == has {
			continue
		}
		a := plan.Action{Verb: plan.Move, Reason: "Flag", Pod: pod, Labels: map[string]*string{"hook/flag": nil}}
		if wanted(pod) {
			a.Labels["hook/flag"] = new("yes")
		}
		p.Actions = append(p.Actions, a)
	}
}

// replaceUnready deletes every old Pod that is not ready.
func replaceUnready(s *plan.Snapshot, p *plan.Plan) {
	for _, pod := range s.Pods {
		ready := model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
		if !ready && model.Active(pod) && !of(pod, s.Update.Name) {
			p.Actions = slices.DeleteFunc(p.Actions, func(a plan.Action) bool { return a.Pod == pod })
			p.Actions = append(p.Actions, plan.Action{Verb: plan.Delete, Reason: plan.ReasonRecreate, Pod: pod})
		}
	}
}

// plan returns the mutant's plan.
func (m mutant) plan(p *Process, s *plan.Snapshot) plan.Plan {
	for _, change := range m.before {
		change(p, s)
	}
	decided := plan.Make(s)
	for _, change := range m.after {
		change(p, s, &decided)
	}
	return decided
}

func (m mutant) sabotage(c *Config) {
	c.Process.Planner = m.plan
	if m.change != nil {
		m.change(c)
	}
}

// mutantSeeds is the number of schedules within which every mutant must be caught.
const mutantSeeds = 1500

func TestMutantsAreCaught(t *testing.T) {
	for name, m := range mutants(t, "mutants.txt") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			others := map[string]bool{}
			for seed := range uint64(mutantSeeds) {
				if seed == 0 {
					seed = m.seed
				}
				v := m.of(seed, m.sabotage).Run()
				if v != nil && slices.Contains(m.caught, v.Rule) {
					t.Logf("seed %d: %v", seed, v)
					return
				}
				if v != nil {
					others[v.Rule] = true
				}
			}
			t.Errorf("not caught in %d schedules; other rules that it broke: %q", mutantSeeds, slices.Sorted(maps.Keys(others)))
		})
	}
}

type deaf struct{ cloneset.Width }

func (d deaf) Done(kind string, took time.Duration, _ bool) { d.Width.Done(kind, took, false) }

type timeless struct{ cloneset.Width }

func (t timeless) Done(kind string, _ time.Duration, tooMany bool) {
	t.Width.Done(kind, time.Millisecond, tooMany)
}

type double struct{ cloneset.Width }

func (d double) Now() int { return 2 * d.Width.Now() }

// hasty counts the time of failures as the latency of writes.
type hasty struct {
	cloneset.Width
	kinds map[string]bool
}

func (h *hasty) Done(kind string, took time.Duration, tooMany bool) {
	h.kinds[kind] = true
	h.Width.Done(kind, took, tooMany)
}

func (h *hasty) Failed() {
	h.Width.Failed()
	for kind := range h.kinds {
		h.Begin()
		h.Width.Done(kind, 0, false)
	}
}

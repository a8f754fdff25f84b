// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/responder"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/model"
)

// premise is what a story or a mutant begins with.
type premise struct {
	features features
	defects  defects
}

// premises are what its objects ask for, and how its operator is broken.
var premises = map[string]func(p *premise, value string){
	"second":  func(p *premise, _ string) { p.features.second = true },
	"proceed": func(p *premise, _ string) { p.features.proceed = true },
	"blocks":  func(p *premise, _ string) { p.features.blocks = true },
	"weights": func(p *premise, _ string) { p.features.weights = true },
	"service": func(p *premise, _ string) { p.features.service = true },
	"tenants": func(p *premise, _ string) { p.features.tenants = true },
	"follower": func(p *premise, _ string) {
		p.features.service, p.features.labelled, p.features.follower = true, true, true
	},
	// takesDrainingForGone hides targets that drain, takesCheckedForHealthy those that are not healthy yet.
	"takesDrainingForGone": relists(func(e registry.Entry) (registry.Entry, bool) { return e, e.Version != "draining" }),
	"takesCheckedForHealthy": relists(func(e registry.Entry) (registry.Entry, bool) {
		if e.Version == "initial" {
			e.Unsettled = ""
		}
		return e, true
	}),
	// believesOverrides takes all that applications register for overridden, missesOverrides what is for gone.
	"believesOverrides": relists(func(e registry.Entry) (registry.Entry, bool) {
		e.Override = e.Owner == registry.Owner{}
		return e, true
	}),
	"missesOverrides": relists(func(e registry.Entry) (registry.Entry, bool) {
		return e, !e.Override
	}),
	// takesNeighbours takes the entry of one application for that of the Pod with the next address.
	"takesNeighbours": relists(func(e registry.Entry) (registry.Entry, bool) {
		if start, n, ok := strings.Cut(e.Address, "10.1.0."); ok && start == "" {
			e.Address = fmt.Sprintf("10.1.0.%d", scenariotest.Number(n)%3+1)
		}
		return e, true
	}),
	"asks": func(p *premise, _ string) { p.features.applications, p.features.asks = true, true },
	// neverReturns loses each request to come back, and believesAsked takes all that applications register for hidden.
	"neverReturns": func(p *premise, _ string) { p.defects.loses = registry.BringBack },
	"believesAsked": relists(func(e registry.Entry) (registry.Entry, bool) {
		if e.Owner == (registry.Owner{}) {
			e.Weight = 0
		}
		return e, true
	}),
	"applications": func(p *premise, _ string) { p.features.applications = true },
	"guard":        func(p *premise, _ string) { p.features.guard = true },
	"clocks":       func(p *premise, _ string) { p.features.clocks = true },
	"policy":       func(p *premise, value string) { p.features.policy = usher.InPlaceUpdatePolicy(value) },
	"budget": func(p *premise, value string) {
		p.features.guard, p.features.budget = true, int32(scenariotest.Number(value))
	},

	// misreads takes fields of a kind of objects in the caches for others, and rereads of those that
	// it asks the API server for: a merge patch.
	"misreads": func(p *premise, what string) { p.misreads(what, true) },
	"rereads":  func(p *premise, what string) { p.misreads(what, false) },
	// asksThoseThatMatch makes a Pod name only the Registrations that select it now.
	"asksThoseThatMatch": ofPods(asksThoseThatMatch),
	// takesDrainsForOne makes an old record look as if it were of the present drain, trustsClocks
	// as if it were by the process's own clock.
	"takesDrainsForOne": ofPods(func(pod *corev1.Pod) {
		misreadsRecord(pod, map[string]any{"entered": pod.Annotations[apps.AnnotationLifecycleTimestamp]})
	}),
	"trustsClocks": ofPods(func(pod *corev1.Pod) { misreadsRecord(pod, map[string]any{"at": nil}) }),
	// omits leaves a field of the metadata out of patches.
	"omits": func(p *premise, field string) {
		p.defects.miswrites = func(metadata map[string]any) { delete(metadata, field) }
	},
	"labelsLater": func(p *premise, _ string) {
		p.defects.miswrites = func(metadata map[string]any) {
			if labels, ok := metadata["labels"].(map[string]any); ok && metadata["finalizers"] != nil {
				delete(labels, usher.LabelGuarded)
			}
		}
	},
	"keepsCosts": ofAnnotations(func(annotations map[string]any) {
		if annotations[corev1.PodDeletionCost] != plan.DeletionCost {
			delete(annotations, corev1.PodDeletionCost)
		}
	}),
	"takesEvictionsForDeletions": ofAnnotations(func(annotations map[string]any) {
		if text, ok := annotations[usher.AnnotationDeletionRequest].(string); ok {
			annotations[usher.AnnotationDeletionRequest] = strings.Replace(text, `,"eviction":true`, "", 1)
		}
	}),
	"until": func(p *premise, _ string) { p.features.until = true },
	"idleFirst": func(p *premise, _ string) {
		p.features.until, p.features.guard, p.features.idleFirst = true, true, true
	},
	// costsNothing writes the cost of an idle Pod, whatever is under way.
	"costsNothing": ofAnnotations(func(annotations map[string]any) {
		if text, _ := annotations[usher.AnnotationScaleIn].(string); text != "" {
			annotations[usher.AnnotationScaleIn] = string(encode.JSON(plan.Cost{At: epoch}))
			annotations[corev1.PodDeletionCost] = "0"
		}
	}),
	// overlooksCosts does not see what users have set, leavesCosts takes nothing away, and writesOften forgets when it has
	// written a cost.
	"overlooksCosts": ofPods(func(pod *corev1.Pod) {
		if plan.CostOf(pod) == nil && pod.Annotations[corev1.PodDeletionCost] != plan.DeletionCost {
			delete(pod.Annotations, corev1.PodDeletionCost)
		}
	}),
	"leavesCosts": ofAnnotations(func(annotations map[string]any) {
		if text, there := annotations[usher.AnnotationScaleIn]; there && text == nil {
			delete(annotations, usher.AnnotationScaleIn)
			delete(annotations, corev1.PodDeletionCost)
		}
	}),
	"writesOften": ofPods(func(pod *corev1.Pod) {
		if cost := plan.CostOf(pod); cost != nil {
			pod.Annotations[usher.AnnotationScaleIn] = string(encode.JSON(plan.Cost{Class: cost.Class, At: epoch}))
		}
	}),
	// takesSilenceForIdle and takesRestsForEnds are about what Pods answer.
	"takesSilenceForIdle": func(p *premise, _ string) {
		p.defects.believes = func(answer *plan.Answer) {
			if answer.Problem != "" {
				answer.Problem, answer.IdleSince = "", epoch
			}
		}
	},
	"takesRestsForEnds": func(p *premise, _ string) {
		p.defects.believes = func(answer *plan.Answer) {
			if !answer.IdleSince.IsZero() {
				answer.IdleSince = epoch
			}
		}
	},
	"stands":    func(p *premise, _ string) { p.features.stands = true },
	"misspells": func(p *premise, _ string) { p.features.misspells = true },
	// waitsForServices gives Services all the time in the world to list a Pod: each gate seems to have just been opened.
	"waitsForServices": ofPods(func(pod *corev1.Pod) {
		pod.Status.Conditions = slices.Clone(pod.Status.Conditions)
		for i := range pod.Status.Conditions {
			if c := &pod.Status.Conditions[i]; c.Type == usher.ConditionRegistered && c.Status == corev1.ConditionTrue {
				c.LastTransitionTime = metav1.NewTime(epoch.AddDate(1, 0, 0))
			}
		}
	}),
	"trustsLists":     func(p *premise, _ string) { p.features.lists, p.defects.trusts = true, true },
	"finishes":        func(p *premise, _ string) { p.features.finishes = true },
	"finishesNothing": func(p *premise, _ string) { p.features.finishes, p.defects.idle = true, true },
	// forgetsControllers takes each request for that of a person.
	"forgetsControllers": ofPods(func(pod *corev1.Pod) {
		text := pod.Annotations[usher.AnnotationDeletionRequest]
		if text != "" {
			pod.Annotations[usher.AnnotationDeletionRequest] = strings.Replace(text, `,"controller":true`, "", 1)
		}
	}),
	"notices":  func(p *premise, _ string) { p.features.notices = true },
	"requests": func(p *premise, _ string) { p.features.requests = true },
	// handsOnAtOnce takes each Pod for drained whose drain for a deletion has begun, forgetsEvictions takes
	// those for new whose turn it has completed, and heedsNobodysEvictions those for its own that are over.
	"handsOnAtOnce": func(p *premise, _ string) {
		p.defects.misreads = func(object client.Object, _ bool) {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return
			}
			if record := plan.ReadRecord(pod); record != nil && record.Gate == plan.GateRequested {
				pod.Finalizers = nil
			}
		}
	},
	"forgetsEvictions": func(p *premise, _ string) {
		p.defects.misreads = func(object client.Object, _ bool) {
			if e, ok := object.(*lifecyclev1alpha1.Eviction); ok && responder.Read(e).Turn == plan.TurnCompleted {
				e.Status = lifecyclev1alpha1.EvictionStatus{}
			}
		}
	},
	"heedsNobodysEvictions": func(p *premise, _ string) {
		p.defects.misreads = func(object client.Object, _ bool) {
			if e, ok := object.(*lifecyclev1alpha1.Eviction); ok {
				e.Status.Conditions = nil
				for i := range e.Status.TargetResponders {
					if r := &e.Status.TargetResponders[i]; r.Name == usher.EvictionResponder && r.State == lifecyclev1alpha1.ResponderStateCanceled {
						r.State = lifecyclev1alpha1.ResponderStateActive
					}
				}
			}
		}
	},
	"hurries": func(p *premise, _ string) { p.features.guard, p.features.hurries = true, true },
	// forgetsDeadlines takes each request for the first, takesAllTheTime holds Pods until their deadline is over, and
	// letsGoHurried holds none that has one.
	"forgetsDeadlines": rewritesRequest(func(r *usher.DeletionRequest) { r.Deadline, r.LetGo = nil, nil }),
	"takesAllTheTime":  rewritesRequest(func(r *usher.DeletionRequest) { r.LetGo = r.Deadline }),
	"letsGoHurried":    func(p *premise, _ string) { p.defects.allows = hasDeadline },
	"letsGoAsked": func(p *premise, _ string) {
		p.defects.allows = func(pod *corev1.Pod) bool { return pod.Annotations[usher.AnnotationDeletionRequest] != "" }
	},
	"letsGoUnlisted": func(p *premise, _ string) {
		p.defects.allows = func(pod *corev1.Pod) bool {
			return model.Condition(pod, usher.ConditionRegistered).Status == corev1.ConditionFalse
		}
	},
}

// misreads makes the operator read something else: a kind, and a merge patch of its objects.
func (p *premise) misreads(what string, fromCache bool) {
	kind, fields, _ := strings.Cut(what, " ")
	patch, err := yaml.YAMLToJSON([]byte(fields))
	also := p.defects.misreads
	p.defects.misreads = func(object client.Object, cached bool) {
		if also != nil {
			also(object, cached)
		}
		if cached != fromCache || model.KindOf(object) != model.Kind(kind) {
			return
		}
		merged, mergeErr := jsonpatch.MergePatch(encode.JSON(object), patch)
		reflect.ValueOf(object).Elem().SetZero() // decoding merges into what is there
		if err := cmp.Or(err, mergeErr, json.Unmarshal(merged, object)); err != nil {
			panic(err) // the fields are misspelt
		}
	}
}

// relists makes an operator that takes targets for others, or for none.
func relists(change func(registry.Entry) (entry registry.Entry, listed bool)) func(*premise, string) {
	return func(p *premise, _ string) {
		p.defects.relists = func(entries []registry.Entry) []registry.Entry {
			all := []registry.Entry{}
			for _, e := range entries {
				if changed, listed := change(e); listed {
					all = append(all, changed)
				}
			}
			return all
		}
	}
}

// ofPods makes an operator whose caches show Pods differently.
func ofPods(change func(*corev1.Pod)) func(*premise, string) {
	return func(p *premise, _ string) {
		p.defects.misreads = func(object client.Object, cached bool) {
			if pod, ok := object.(*corev1.Pod); ok && cached {
				change(pod)
			}
		}
	}
}

// ofAnnotations makes an operator that writes other annotations.
func ofAnnotations(change func(annotations map[string]any)) func(*premise, string) {
	return func(p *premise, _ string) {
		p.defects.miswrites = func(metadata map[string]any) {
			annotations, _ := metadata["annotations"].(map[string]any)
			change(annotations)
		}
	}
}

// TestMutantsAreCaught breaks the operator in many ways. A simulation that lets
// one of them pass proves nothing about the real one.
func TestMutantsAreCaught(t *testing.T) {
	for _, mutant := range scenariotest.Read(t, "testdata/mutants.txt") {
		t.Run(mutant.Name, func(t *testing.T) {
			t.Parallel()
			given := &premise{}
			for _, line := range mutant.Given {
				checktest.NoError(t, scenariotest.Say(premises, given, line))
			}
			for seed := range uint64(30) {
				s := simulate(t, seed, given.features, given.defects)
				s.run(200)
				if slices.ContainsFunc(mutant.Want, func(rule string) bool { return strings.Contains(s.broken, rule) }) {
					t.Logf("seed %d: %s", seed, s.broken)
					return
				}
				if s.broken != "" {
					t.Fatalf("seed %d: another rule catches it: %s", seed, s.broken)
				}
			}
			t.Error("it is not caught")
		})
	}
}

func asksThoseThatMatch(pod *corev1.Pod) {
	if _, named := pod.Annotations[usher.AnnotationRegistrations]; !named {
		return
	}
	var names []string
	if pod.Labels["app"] == "nginx" {
		names = append(names, "nginx")
	}
	if pod.Labels["track"] == edge {
		names = append(names, edge)
	}
	pod.Annotations[usher.AnnotationRegistrations] = strings.Join(names, ",")
}

// misreadsRecord changes fields of a Pod's drain record, if it has one.
func misreadsRecord(pod *corev1.Pod, fields map[string]any) {
	record, err := jsonpatch.MergePatch([]byte(pod.Annotations[usher.AnnotationDrain]), encode.JSON(fields))
	if err == nil {
		pod.Annotations[usher.AnnotationDrain] = string(record)
	}
}

// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/model"
)

// story is a run in which the steps are written, not drawn.
type story struct {
	// simulation is nil until the first step, before which the story says what is given.
	*simulation
	t       *testing.T
	premise premise
	scenariotest.Names
	scenariotest.Printer
	// vanished is a Registration that was deleted past its finalizer, remembered what the API
	// server had at some time.
	vanished   *usher.Registration
	remembered model.Objects
	// called is what a registry was asked before; traced and read is how much of the trace and
	// of the log is known.
	called       map[string]memory.Calls
	traced, read int
}

// TestStories plays the stories in testdata/stories: what happens, one thing after the other, and what
// is printed in between. Every write is judged as in TestSimulation.
func TestStories(t *testing.T) {
	scenariotest.Stories[*story]{Files: "testdata/stories/*.txt", Words: append(list.Map(steps, begun), givenWord), Several: true,
		Begin: func(t *testing.T) *story {
			t.Helper()
			return &story{t: t, called: map[string]memory.Calls{}}
		}}.Play(t)
}

// given says what holds before the first step.
func (s *story) given(fact string) {
	if s.simulation != nil {
		s.Fatalf("%q is given after the first step", fact)
	}
	checktest.NoError(s.t, scenariotest.Say(premises, &s.premise, fact))
}

// begun has a step begin the simulation, if it is the first.
func begun(step scenariotest.Word[*story]) scenariotest.Word[*story] {
	run := step.Run
	step.Run = func(s *story, args string) {
		if s.simulation == nil {
			s.simulation = simulate(s.t, 1, s.premise.features, s.premise.defects)
		}
		run(s, args)
	}
	return step
}

// givenWord begins what is no step.
var givenWord = scenariotest.Word[*story]{Name: "Given", Args: "FACT",
	Does: "says what holds from the beginning, or what the operator does wrong; mutants_test.go has the " +
		"facts",
	Run: (*story).given}

// steps are what can happen, and what can be noticed. Pods are nginx-000 and so on; where a
// step is about one Pod and names none, it is the first.
var steps = []scenariotest.Word[*story]{
	{Name: "populate", Args: "N",
		Does: "creates N ready Pods, nginx-000 and so on, which wait to be registered",
		Run:  func(s *story, pods string) { s.populate(scenariotest.Number(pods)) }},
	{Name: "create", Args: "POD", Does: "creates a Pod, whose kubelet takes two steps",
		Run: func(s *story, name string) {
			s.create(name, "")
			s.kubelets()
			s.kubelets()
		}},
	{Name: "kubelets", Does: "has the kubelet of every Pod take its next step",
		Run: func(s *story, _ string) { s.kubelets() }},
	{Name: "end", Does: "deletes all Registrations, as the namespace controller does",
		Run: func(s *story, _ string) { s.deleteAll("Registration", actorNamespace) }},
	{Name: "delete", Does: "deletes the first Pod", Run: func(s *story, _ string) { s.delete(s.first()) }},
	{Name: "crash", Does: "ends the containers of the first Pod; its kubelet starts them again",
		Run: func(s *story, _ string) { s.crash(s.first()) }},
	{Name: "drift", Does: "takes the first Pod's entry out of discovery",
		Run: func(s *story, _ string) { s.drift(s.first()) }},
	{Name: "enter", Args: "STATE", Does: "has the first Pod enter a lifecycle state, as its CloneSet does",
		Run: func(s *story, state string) { s.enter(s.first(), apps.LifecycleState(state), "") }},
	{Name: "label", Args: "APP [TRACK]",
		Does: "gives the first Pod the labels by which the Registrations nginx and edge select",
		Run: func(s *story, value string) {
			app, track, _ := strings.Cut(value, " ")
			s.label(s.first(), app, track)
		}},
	{Name: "weigh", Args: "[WEIGHT]", Does: "annotates the first Pod with a weight; an empty one is none",
		Run: func(s *story, weight string) { s.weigh(s.first(), weight) }},
	{Name: "silence", Does: "has the nodes of ready Pods fall silent, and silent ones report again",
		Run: func(s *story, _ string) { s.silence(s.pods()...) }},
	{Name: "evict", Args: "POD", Does: "has a person evict a Pod, and repeat what is refused",
		Run: func(s *story, name string) { s.wantsAway(actorUser, name, true) }},
	{Name: "scaleIn", Args: "POD", Does: "has the ReplicaSet scale in by this Pod",
		Run: func(s *story, name string) {
			s.scaleTo(int32(len(s.replicas()) - 1))
			s.wantsAway(actorReplicaSet, name, false)
		}},
	{Name: "drainNode",
		Does: "has a person evict all Pods, as kubectl drain does", Run: func(s *story, _ string) {
			s.drainNode(nil)
			s.call()
		}},
	{Name: "budgets", Does: "has the disruption controller count the budgets",
		Run: func(s *story, _ string) { s.server.CountBudgets() }},

	{Name: "down", Args: "REGISTRY", Does: "has a registry refuse connections",
		Run: func(s *story, name string) { s.breaks(name, memory.Down) }},
	{Name: "hang", Args: "REGISTRY", Does: "has a registry never answer",
		Run: func(s *story, name string) { s.breaks(name, memory.Hang) }},
	{Name: "slow", Args: "SPAN", Does: "has each answer of the API server take so long",
		Run: func(s *story, span string) { s.slow = scenariotest.Duration(span) }},
	{Name: "up", Args: "REGISTRY", Does: "has a registry work again",
		Run: func(s *story, name string) { s.breaks(name, memory.None) }},
	{Name: "readOnly", Args: "REGISTRY", Does: "has a registry refuse changes",
		Run: func(s *story, name string) { s.breaks(name, memory.ReadOnly) }},
	{Name: "orphans", Args: "N", Does: "adds N entries of Pods that nobody knows to discovery",
		Run: func(s *story, count string) {
			for n := range scenariotest.Number(count) {
				name := fmt.Sprintf("lost-%d", n)
				s.guardian.proceeded[types.UID(name)] = true
				s.stores["discovery"].Seed(service, registry.Entry{ID: name, Address: "10.9.9.9", Port: 80, Weight: 10,
					Owner: registry.Owner{Cluster: here, Namespace: namespace, Registration: "nginx", Pod: name, PodUID: name}})
			}
		}},
	{Name: "remove", Args: "REGISTRY", Does: "deletes a Registry",
		Run: func(s *story, name string) { checktest.NoError(s, s.server.Delete("user", s.registry(name))) }},
	{Name: "vanish", Args: "REGISTRATION", Does: "deletes a Registration past its finalizer",
		Run: func(s *story, name string) { s.vanished = s.vanish(name) }},
	{Name: "again", Does: "creates the Registration again that vanished",
		Run: func(s *story, _ string) { s.make(s.vanished) }},
	{Name: "patch", Args: "KIND/NAME PATCH", Does: "changes an object by a merge patch",
		Run: func(s *story, value string) {
			what, fields, _ := strings.Cut(value, " ")
			kind, name, _ := strings.Cut(what, "/")
			at := types.NamespacedName{Namespace: namespace, Name: name}
			if kind == "Registry" {
				at.Namespace = ""
			}
			patch := checktest.Must(yaml.YAMLToJSON([]byte(fields)))(s)
			checktest.Must(s.server.Patch("user", model.Kind(kind), at, "", types.MergePatchType, patch, false))(s)
			s.log("%s is changed: %s", what, fields)
		}},

	{Name: "wait", Args: "SPAN", Does: "lets time pass",
		Run: func(s *story, span string) { s.wait(scenariotest.Duration(span)) }},
	{Name: "restart", Does: "starts another process of the operator, which knows nothing",
		Run: func(s *story, _ string) { s.restart() }},
	{Name: "refresh", Does: "brings the caches up to date", Run: func(s *story, _ string) { s.refresh() }},
	{Name: "pass", Does: "runs a pass with the caches as they are",
		Run: func(s *story, _ string) { s.pass() }},
	{Name: "passes", Args: "[N]", Does: "runs N passes, or one, each with caches that are up to date",
		Run: func(s *story, times string) { s.passes(scenariotest.Number(cmp.Or(times, "1"))) }},
	{Name: "probe", Does: "brings the caches up to date and probes the registries",
		Run: func(s *story, _ string) {
			s.refresh()
			s.probe()
		}},
	{Name: "turns", Args: "N", Does: "runs N probes and passes, with two seconds after each",
		Run: func(s *story, times string) {
			for range scenariotest.Number(times) {
				s.refresh()
				s.probe()
				s.pass()
				s.wait(2 * time.Second)
			}
		}},
	{Name: "rounds", Args: "N", Does: "runs N passes, each with the propagation after it",
		Run: func(s *story, times string) {
			for range scenariotest.Number(times) {
				s.passes(1)
				s.wait(propagation)
			}
		}},
	{Name: "remember", Does: "remembers what the API server has",
		Run: func(s *story, _ string) { s.remembered = s.server.Objects.Clone() }},
	{Name: "old", Args: "[KIND]", Does: "has the caches show what was remembered, of one kind or of all",
		Run: func(s *story, kind string) {
			if kind == "" {
				s.cached = s.remembered
				return
			}
			s.cached[model.Kind(kind)] = s.remembered[model.Kind(kind)]
		}},

	{Name: "lists", Args: "[SERVICE]", Does: "prints how many entries of Usher's each registry has",
		Run: func(s *story, of string) {
			service := cmp.Or(of, service)
			ours := func(name string) int {
				return len(slices.DeleteFunc(s.stores[name].Entries(service), func(e registry.Entry) bool { return e.ID == s.foreign.ID }))
			}
			s.Printf("of %s: %d in discovery, %d in backup", service, ours("discovery"), ours("backup"))
		}},
	{Name: "pods", Does: "prints how many Pods there are",
		Run: func(s *story, _ string) { s.Printf("%d Pods", len(s.pods())) }},
	{Name: "held", Does: "prints how many Pods have the finalizer", Run: func(s *story, _ string) {
		held := slices.DeleteFunc(s.pods(), func(pod *corev1.Pod) bool { return !controllerutil.ContainsFinalizer(pod, usher.Finalizer) })
		s.Printf("%d Pods are held", len(held))
	}},
	{Name: "says", Does: "prints how many Pods have the condition with which status",
		Run: func(s *story, _ string) {
			counts := map[corev1.ConditionStatus]int{}
			for _, pod := range s.pods() {
				counts[model.Condition(pod, usher.ConditionRegistered).Status]++
			}
			for _, status := range slices.Sorted(maps.Keys(counts)) {
				s.Printf("%d Pods say %q", counts[status], status)
			}
		}},
	{Name: "keys", Args: "KEY", Does: "prints how many Pods have which value of a label",
		Run: func(s *story, key string) {
			counts := map[string]int{}
			for _, pod := range s.pods() {
				counts[pod.Labels["example.com/"+key]]++
			}
			s.Printf("%s is %v", key, counts)
		}},
	{Name: "weights", Does: "prints the weights in discovery", Run: func(s *story, _ string) {
		own := list.Only(s.stores["discovery"].Entries(service), func(e registry.Entry) bool { return e.ID != s.foreign.ID })
		s.Printf("weights %s", strings.Join(list.Map(own, func(e registry.Entry) string { return strconv.Itoa(int(e.Weight)) }), " "))
	}},
	{Name: "records", Does: "prints which Registries have records of which services",
		Run: func(s *story, _ string) {
			for _, name := range registries {
				if r := s.registry(name); r != nil {
					for _, user := range r.Status.Users {
						s.Printf("%s has a record of %s", name, user.Service)
					}
				}
			}
		}},
	{Name: "left", Does: "prints how many Pods, Registrations and Registries there are",
		Run: func(s *story, _ string) {
			s.Printf("%d Pods, %d Registrations, %d Registries are left", len(s.pods()), len(s.registrations()), len(s.server.Objects["Registry"]))
		}},
	{Name: "calls", Args: "REGISTRY", Does: "prints how often a registry was asked since the last look",
		Run: func(s *story, name string) {
			before, now := s.called[name], s.stores[name].Calls()
			s.called[name] = now
			s.Printf("%s: %d lists, %d changes", name, now.List-before.List, now.Apply-before.Apply)
		}},
	{Name: "writes", Args: "[VERB KIND]",
		Does: "prints how often the operator has written since the last look",
		Run: func(s *story, of string) {
			writes := slices.DeleteFunc(slices.Clone(s.trace[s.traced:]), func(line string) bool { return !strings.Contains(line, "  operator: "+of) })
			s.traced = len(s.trace)
			s.Printf("%d writes", len(writes))
		}},
	{Name: "requeue", Does: "runs a pass, and prints when it wants the next one",
		Run: func(s *story, _ string) {
			s.refresh()
			result, err := s.operator.Reconcile(s.logged(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
			checktest.NoError(s, err)
			s.Printf("again in %s", result.RequeueAfter)
		}},
	{Name: "outages", Does: "prints the last outage of each registry", Run: func(s *story, _ string) {
		for _, name := range registries {
			if o := s.registry(name).Status.LastOutage; o != nil {
				s.Printf("%s was away from %s to %s", name, o.From.Sub(epoch), o.To.Sub(epoch))
			}
		}
	}},
	{Name: "logs", Does: "prints what was logged at the default level since the last look",
		Run: func(s *story, _ string) {
			for _, line := range s.lines[s.read:] {
				s.Print(line)
			}
			s.read = len(s.lines)
		}},
	{Name: "metrics", Args: "NAME", Does: "prints a metric as Prometheus shows it",
		Run: func(s *story, name string) {
			families, err := s.gatherer.Gather()
			checktest.NoError(s, err)
			for _, f := range families {
				if f.GetName() == name {
					s.Printf("%s %s: %s", name, strings.ToLower(f.GetType().String()), f.GetHelp())
					for _, m := range f.GetMetric() {
						s.Printf("%s", series(m))
					}
				}
			}
		}},
	{Name: "broken", Does: "prints which rule was broken",
		Run: func(s *story, _ string) { s.Printf("broken: %s", cmp.Or(s.broken, "nothing")) }},
}

// series is what a metric has: the labels, and its value or how often it was observed.
func series(m *dto.Metric) string {
	line := ""
	for _, label := range m.GetLabel() {
		line += label.GetName() + "=" + label.GetValue() + " "
	}
	value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	return line + strconv.FormatFloat(value, 'f', -1, 64)
}

func (s *story) first() *corev1.Pod { return s.pods()[0].DeepCopy() }

// wantsAway makes somebody ask for the end of a Pod.
func (s *story) wantsAway(who, name string, evicts bool) {
	s.ask(who, s.pod(name), evicts, time.Minute)
	s.call()
}

// registry reads a Registry from the API server; nil if there is none.
func (s *simulation) registry(name string) *usher.Registry {
	return model.Get[*usher.Registry](s.server.Objects, types.NamespacedName{Name: name})
}

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

// story is a run in which the steps are not drawn but told.
type story struct {
	*simulation
	noticed []string
	// vanished is a Registration that was deleted past its finalizer, remembered what the API
	// server had at some time.
	vanished   *usher.Registration
	remembered model.Objects
	// called is what a registry was asked before; traced and read is how much of the trace and
	// of the log is known.
	called       map[string]memory.Calls
	traced, read int
}

// TestStories checks the scenarios in testdata/stories: what happens, one thing after the
// other, and what is noticed in between. Every write is judged as in TestSimulation.
func TestStories(t *testing.T) {
	scenariotest.Run(t, "testdata/stories/*.txt", func(t *testing.T, lines []string) []string {
		given := &premise{}
		for _, line := range lines {
			if about, ok := strings.CutPrefix(line, "Given "); ok {
				checktest.NoError(t, scenariotest.Say(premises, given, about))
			}
		}
		s := &story{simulation: simulate(t, 1, given.features, given.defects), called: map[string]memory.Calls{}}
		for _, line := range lines {
			if !strings.HasPrefix(line, "Given ") {
				checktest.NoError(t, scenariotest.Say(steps, s, line))
			}
		}
		return s.noticed
	})
}

// steps are what can happen, and what can be noticed. Pods are nginx-000 and so on; where a
// step is about one Pod and names none, it is the first.
var steps = map[string]func(s *story, value string){
	"populate": func(s *story, pods string) { s.populate(scenariotest.Number(pods)) },
	"create": func(s *story, name string) {
		s.create(name, "")
		s.kubelets()
		s.kubelets()
	},
	"kubelets": func(s *story, _ string) { s.kubelets() },
	// end deletes the Registrations, as the namespace controller does.
	"end":    func(s *story, _ string) { s.deleteAll("Registration", actorNamespace) },
	"delete": func(s *story, _ string) { s.delete(s.first()) },
	"crash":  func(s *story, _ string) { s.crash(s.first()) },
	"drift":  func(s *story, _ string) { s.drift(s.first()) },
	"enter":  func(s *story, state string) { s.enter(s.first(), apps.LifecycleState(state), "") },
	// label sets the labels by which the two Registrations select.
	"label": func(s *story, value string) {
		app, track, _ := strings.Cut(value, " ")
		s.label(s.first(), app, track)
	},
	"weigh":   func(s *story, weight string) { s.weigh(s.first(), weight) },
	"silence": func(s *story, _ string) { s.silence(s.pods()...) },
	"evict":   func(s *story, name string) { s.wantsAway(actorUser, name, true) },
	"scaleIn": func(s *story, name string) {
		s.scaleTo(int32(len(s.replicas()) - 1))
		s.wantsAway(actorReplicaSet, name, false)
	},
	"drainNode": func(s *story, _ string) {
		s.drainNode(nil)
		s.call()
	},
	"budgets": func(s *story, _ string) { s.server.CountBudgets() },

	"down":     func(s *story, name string) { s.breaks(name, memory.Down) },
	"hang":     func(s *story, name string) { s.breaks(name, memory.Hang) },
	"slow":     func(s *story, span string) { s.slow = scenariotest.Duration(span) },
	"up":       func(s *story, name string) { s.breaks(name, memory.None) },
	"readOnly": func(s *story, name string) { s.breaks(name, memory.ReadOnly) },
	// orphans adds entries of Pods that nobody knows; the invariants expect none without its Pod.
	"orphans": func(s *story, count string) {
		for n := range scenariotest.Number(count) {
			name := fmt.Sprintf("lost-%d", n)
			s.guardian.proceeded[types.UID(name)] = true
			s.stores["discovery"].Seed(service, registry.Entry{ID: name, Address: "10.9.9.9", Port: 80, Weight: 10,
				Owner: registry.Owner{Cluster: here, Namespace: namespace, Registration: "nginx", Pod: name, PodUID: name}})
		}
	},
	"remove": func(s *story, name string) { checktest.NoError(s, s.server.Delete("user", s.registry(name))) },
	"vanish": func(s *story, name string) { s.vanished = s.vanish(name) },
	"again":  func(s *story, _ string) { s.make(s.vanished) },
	// change is a merge patch by a user, such as "change Registry/discovery {spec: {rateLimit: null}}".
	"change": func(s *story, value string) {
		what, fields, _ := strings.Cut(value, " ")
		kind, name, _ := strings.Cut(what, "/")
		at := types.NamespacedName{Namespace: namespace, Name: name}
		if kind == "Registry" {
			at.Namespace = ""
		}
		patch := checktest.Must(yaml.YAMLToJSON([]byte(fields)))(s)
		checktest.Must(s.server.Patch("user", model.Kind(kind), at, "", types.MergePatchType, patch, false))(s)
		s.log("%s is changed: %s", what, fields)
	},

	"wait":    func(s *story, span string) { s.wait(scenariotest.Duration(span)) },
	"restart": func(s *story, _ string) { s.restart() },
	"refresh": func(s *story, _ string) { s.refresh() },
	// pass is one with the caches as they are, passes are with new ones, turns are probes and
	// passes, with time in between.
	"pass":   func(s *story, _ string) { s.pass() },
	"passes": func(s *story, times string) { s.passes(scenariotest.Number(cmp.Or(times, "1"))) },
	"probe": func(s *story, _ string) {
		s.refresh()
		s.probe()
	},
	"turns": func(s *story, times string) {
		for range scenariotest.Number(times) {
			s.refresh()
			s.probe()
			s.pass()
			s.wait(2 * time.Second)
		}
	},
	// rounds are passes, each with the propagation after it.
	"rounds": func(s *story, times string) {
		for range scenariotest.Number(times) {
			s.passes(1)
			s.wait(propagation)
		}
	},
	"remember": func(s *story, _ string) { s.remembered = s.server.Objects.Clone() },
	// old makes the caches show what was remembered, of one kind or of all.
	"old": func(s *story, kind string) {
		if kind == "" {
			s.cached = s.remembered
			return
		}
		s.cached[model.Kind(kind)] = s.remembered[model.Kind(kind)]
	},

	// lists counts the entries of ours in each registry.
	"lists": func(s *story, of string) {
		service := cmp.Or(of, service)
		ours := func(name string) int {
			return len(slices.DeleteFunc(s.stores[name].Entries(service), func(e registry.Entry) bool { return e.ID == s.foreign.ID }))
		}
		s.notice("of %s: %d in discovery, %d in backup", service, ours("discovery"), ours("backup"))
	},
	"pods": func(s *story, _ string) { s.notice("%d Pods", len(s.pods())) },
	// held counts the Pods that cannot vanish.
	"held": func(s *story, _ string) {
		held := slices.DeleteFunc(s.pods(), func(pod *corev1.Pod) bool { return !controllerutil.ContainsFinalizer(pod, usher.Finalizer) })
		s.notice("%d Pods are held", len(held))
	},
	// says counts the Pods by what their condition says.
	"says": func(s *story, _ string) {
		counts := map[corev1.ConditionStatus]int{}
		for _, pod := range s.pods() {
			counts[model.Condition(pod, usher.ConditionRegistered).Status]++
		}
		for _, status := range slices.Sorted(maps.Keys(counts)) {
			s.notice("%d Pods say %q", counts[status], status)
		}
	},
	"keys": func(s *story, key string) {
		counts := map[string]int{}
		for _, pod := range s.pods() {
			counts[pod.Labels["example.com/"+key]]++
		}
		s.notice("%s is %v", key, counts)
	},
	"weights": func(s *story, _ string) {
		own := list.Only(s.stores["discovery"].Entries(service), func(e registry.Entry) bool { return e.ID != s.foreign.ID })
		s.notice("weights %s", strings.Join(list.Map(own, func(e registry.Entry) string { return strconv.Itoa(int(e.Weight)) }), " "))
	},
	"records": func(s *story, _ string) {
		for _, name := range registries {
			if r := s.registry(name); r != nil {
				for _, user := range r.Status.Users {
					s.notice("%s has a record of %s", name, user.Service)
				}
			}
		}
	},
	// left counts what holds a namespace, and what a Registry needs.
	"left": func(s *story, _ string) {
		s.notice("%d Pods, %d Registrations, %d Registries are left", len(s.pods()), len(s.registrations()), len(s.server.Objects["Registry"]))
	},
	// calls are those to a registry since the last time, writes the operator's: all, or those of a kind.
	"calls": func(s *story, name string) {
		before, now := s.called[name], s.stores[name].Calls()
		s.called[name] = now
		s.notice("%s: %d lists, %d changes", name, now.List-before.List, now.Apply-before.Apply)
	},
	"writes": func(s *story, of string) {
		writes := slices.DeleteFunc(slices.Clone(s.trace[s.traced:]), func(line string) bool { return !strings.Contains(line, "  operator: "+of) })
		s.traced = len(s.trace)
		s.notice("%d writes", len(writes))
	},
	"requeue": func(s *story, _ string) {
		s.refresh()
		result, err := s.operator.Reconcile(s.logged(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
		checktest.NoError(s, err)
		s.notice("again in %s", result.RequeueAfter)
	},
	"outages": func(s *story, _ string) {
		for _, name := range registries {
			if o := s.registry(name).Status.LastOutage; o != nil {
				s.notice("%s was away from %s to %s", name, o.From.Sub(epoch), o.To.Sub(epoch))
			}
		}
	},
	// logs are the lines at the default level since the last time.
	"logs": func(s *story, _ string) {
		s.noticed = append(s.noticed, s.lines[s.read:]...)
		s.read = len(s.lines)
	},
	// metrics are those of a name, with the help that Prometheus shows.
	"metrics": func(s *story, name string) {
		families, err := s.gatherer.Gather()
		checktest.NoError(s, err)
		for _, f := range families {
			if f.GetName() == name {
				s.notice("%s %s: %s", name, strings.ToLower(f.GetType().String()), f.GetHelp())
				for _, m := range f.GetMetric() {
					s.notice("%s", series(m))
				}
			}
		}
	},
	"broken": func(s *story, _ string) { s.notice("broken: %s", cmp.Or(s.broken, "nothing")) },
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

func (s *story) notice(format string, args ...any) {
	s.noticed = append(s.noticed, fmt.Sprintf(format, args...))
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

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// runScenarios checks the scenarios of a file in testdata. A scenario is its name, below it
// what is there, a line per object, and then what comes of it, after "=":
//
//	after propagation the hook is released
//	  Pod a PreparingUpdate: protected; deregistered; drain inPlaceUpdate 10s discovery 5s
//	  = patch a: unready-blocker-inplace=false -drain
//
// A line can end with fields of its object as YAML, in braces.
func runScenarios(t *testing.T, file string, observe func(*fixture) []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for scenario := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		lines := slices.DeleteFunc(strings.Split(scenario, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
		if len(lines) == 0 {
			continue
		}
		t.Run(lines[0], func(t *testing.T) {
			f, want := newFixture(), []string{}
			for _, line := range lines[1:] {
				if result, ok := strings.CutPrefix(line, "  = "); ok {
					want = append(want, result)
				} else if err := f.given(strings.TrimSpace(line)); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
			}
			have := observe(f)
			if len(have) == 0 {
				have = []string{"nothing"}
			}
			if diff := gocmp.Diff(want, have); diff != "" {
				t.Errorf("it differs (-want +have):\n%s", diff)
			}
		})
	}
}

// TestPlans: what a pass plans.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/plans/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			runScenarios(t, file, func(f *fixture) []string { return render(Make(f.Snapshot)) })
		})
	}
}

// TestNeeds: which targets a pass has to list.
func TestNeeds(t *testing.T) {
	runScenarios(t, "testdata/needs.txt", func(f *fixture) []string {
		var lines []string
		for _, target := range Needs(f.Snapshot) {
			lines = append(lines, "list "+target.Registry)
		}
		return lines
	})
}

// TestConditions: those of a Registration that are not as usual.
func TestConditions(t *testing.T) {
	usual := map[string]metav1.ConditionStatus{
		usherv1alpha1.ConditionReady: "True", usherv1alpha1.ConditionWaiting: "False",
		usherv1alpha1.ConditionHooksMatched: "True", usherv1alpha1.ConditionInstancesValid: "True",
	}
	runScenarios(t, "testdata/conditions.txt", func(f *fixture) []string {
		var all, unusual []string
		for _, c := range statusOf(f).Conditions {
			line := strings.TrimSpace(fmt.Sprintf("%s %s %s %s", c.Type, c.Status, c.Reason, c.Message))
			all = append(all, line)
			if c.Status != usual[c.Type] {
				unusual = append(unusual, line)
			}
		}
		if len(unusual) == 0 {
			return all
		}
		return unusual
	})
}

// given makes one line of a scenario true: a kind, arguments, words about it, fields of it.
func (f *fixture) given(line string) error {
	line, fields, braced := strings.Cut(line, " {")
	head, about, _ := strings.Cut(line, ": ")
	args := append(strings.Fields(head), "", "")
	var object any
	switch args[0] {
	case "Pod":
		b := f.add(args[1], appsv1alpha1.LifecycleState(args[2]))
		if err := say(podWords, b, about); err != nil {
			return err
		}
		object = b.pod
	case "Registration":
		object = f.registrationOf(args[1], args[2])
	case "CloneSet":
		object = f.CloneSets[0]
	case "Registry":
		if _, there := f.Registries[args[1]]; !there {
			f.registry(args[1])
		}
		return say(registryWords, registryBuilder{f, args[1]}, about)
	case "Entry":
		return f.entryOf(args[1], f.pod(args[2]).entry("nginx"), fields)
	case "Orphan":
		return f.entryOf("discovery", orphan(args[1]), fields)
	default:
		return say(circumstances, f, head)
	}
	if !braced {
		return nil
	}
	return yaml.UnmarshalStrict([]byte("{"+fields), object)
}

// say makes words about something true.
func say[T any](words map[string]func(T, string), something T, about string) error {
	if about == "" {
		return nil
	}
	for word := range strings.SplitSeq(about, "; ") {
		name, value, _ := strings.Cut(word, " ")
		do, known := words[name]
		if !known {
			return fmt.Errorf("%q is none of %v", name, slices.Sorted(maps.Keys(words)))
		}
		do(something, value)
	}
	return nil
}

// registrationOf is one that is there, or a new one for a Registry.
func (f *fixture) registrationOf(name, registry string) *usherv1alpha1.Registration {
	for _, r := range f.Registrations {
		if r.Name == name {
			return r
		}
	}
	if _, there := f.Registries[registry]; !there {
		f.registry(registry)
	}
	return f.registration(name, registry)
}

// entryOf adds an entry to a registry, with some fields changed.
func (f *fixture) entryOf(name string, entry registry.Entry, fields string) error {
	err := yaml.UnmarshalStrict([]byte("{"+cmp.Or(fields, "}")), &entry)
	f.seed(name, entry)
	return err
}

const inFlight = "it waits for 2 sessions on HAProxy 10.0.0.1:9999"

// podWords are what can be said about a Pod.
var podWords = map[string]func(b *podBuilder, value string){
	"unready": func(b *podBuilder, _ string) { b.ready(false) },
	"silent":  func(b *podBuilder, value string) { b.lost(duration(value)) },
	"label": func(b *podBuilder, value string) {
		key, value, _ := strings.Cut(value, "=")
		b.label(keyOf(key), value)
	},
	"unlabelled":   func(b *podBuilder, value string) { delete(b.pod.Labels, keyOf(value)) },
	"finalizer":    func(b *podBuilder, value string) { b.finalizers(value) },
	"protected":    func(b *podBuilder, _ string) { b.finalizers(usherv1alpha1.Finalizer) },
	"in":           func(b *podBuilder, value string) { b.in(strings.Fields(value)...) },
	"registered":   func(b *podBuilder, value string) { b.registered(strings.Fields(value)...) },
	"deregistered": func(b *podBuilder, _ string) { b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse) },
	"held":         func(b *podBuilder, _ string) { b.listed().Weight = 0 },
	"unsettled":    func(b *podBuilder, _ string) { b.listed().Unsettled = inFlight },
	"noMetadata":   func(b *podBuilder, _ string) { b.listed().NoMetadata = true },
	"terminating":  func(b *podBuilder, value string) { b.terminating(duration(value)) },
	"names":        func(b *podBuilder, value string) { b.named(value) },
	"gate":         func(b *podBuilder, value string) { b.gate(value) },
	"endpoint":     func(b *podBuilder, value string) { b.endpoint(value == "ready") },
	"kubelet": func(b *podBuilder, value string) {
		b.condition(corev1.PodReady, map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[value == "ready"])
	},
	"turned": func(b *podBuilder, ago string) {
		condition(b.pod, usherv1alpha1.ConditionRegistered).LastTransitionTime = metav1.NewTime(epoch.Add(-duration(ago)))
	},
	"since": func(b *podBuilder, value string) {
		ready, entered, _ := strings.Cut(value, "/")
		b.since(duration(ready), duration(entered))
	},
	"drain": func(b *podBuilder, value string) {
		words, times := strings.Fields(value), map[string]time.Duration{}
		for pair := range slices.Chunk(words[2:], 2) {
			times[pair[0]] = duration(pair[1])
		}
		b.drained(Gate(words[0]), duration(words[1]), times)
	},
	"requested": func(b *podBuilder, value string) {
		ago, kind, _ := strings.Cut(value, " ")
		b.requested(duration(ago), func(r *usherv1alpha1.DeletionRequest) {
			r.Eviction, r.Named = strings.Contains(kind, "eviction"), strings.Contains(kind, "named")
		})
	},
}

// keyOf is the key of a hook of the fixture that ends so, or any other label's.
func keyOf(short string) string {
	for _, key := range []string{keyCreated, keyPreNormal, keyInPlace, keyDelete} {
		if strings.HasSuffix(key, "/"+short) {
			return key
		}
	}
	return short
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err) // A scenario is misspelt.
	}
	return d
}

// registryBuilder changes the state of one Registry.
type registryBuilder struct {
	f    *fixture
	name string
}

func (b registryBuilder) state(change func(*RegistryState)) {
	state := b.f.Registries[b.name]
	change(&state)
	b.f.Registries[b.name] = state
}

// registryWords are what can be said about a Registry.
var registryWords = map[string]func(b registryBuilder, value string){
	"down":      func(b registryBuilder, _ string) { b.f.down(b.name) },
	"missing":   func(b registryBuilder, _ string) { delete(b.f.Registries, b.name) },
	"denied":    func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Denied = true }) },
	"leaving":   func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Leaving = true }) },
	"holdsBack": func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.HoldsBack = true }) },
	"away": func(b registryBuilder, why string) {
		b.state(func(s *RegistryState) { s.Err = registry.Transient(errors.New(why)) })
	},
	"refuses": func(b registryBuilder, why string) {
		b.state(func(s *RegistryState) { s.Err = registry.Permanent(errors.New(why)) })
	},
	"unlistable": func(b registryBuilder, why string) {
		b.f.Listings[target(b.name)] = Listing{Err: registry.OneService(registry.Permanent(errors.New(why)))}
	},
	"readOnly": func(b registryBuilder, pod string) {
		id := ""
		if pod != "" {
			id = EntryID(b.f.pod(pod).pod)
		}
		b.f.Failed = map[Target]map[string]error{target(b.name): {id: registry.Permanent(errors.New("read-only"))}}
	},
}

// circumstances are what else can be said.
var circumstances = map[string]func(f *fixture, value string){
	"Mesh":       func(f *fixture, _ string) { f.mesh() },
	"Unnamed":    func(f *fixture, _ string) { f.unnamed() },
	"Unlisted":   func(f *fixture, _ string) { f.Listings = map[Target]Listing{} },
	"NoCloneSet": func(f *fixture, _ string) { f.CloneSets = nil },
	"Sweep":      func(f *fixture, _ string) { f.Sweep[target("discovery")] = true },
	"Due":        func(f *fixture, _ string) { f.Due[target("discovery")] = true },
	"Known":      func(f *fixture, name string) { f.Known[name] = true },
	"Suspects": func(f *fixture, names string) {
		f.Suspects[target("discovery")] = map[string]bool{}
		for _, name := range strings.Fields(names) {
			f.Suspects[target("discovery")][orphan(name).ID] = true
		}
	},
	"NoBudget":  func(f *fixture, _ string) { f.budget(0) },
	"BudgetOf1": func(f *fixture, _ string) { f.budget(1) },
	"OldBudget": func(f *fixture, _ string) {
		f.budget(1)
		f.Budgets[0].Status.CurrentHealthy = 2
	},
	"Service": func(f *fixture, others string) { f.inService(strings.Fields(others)...) },
}

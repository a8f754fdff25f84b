// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// observe runs the scenarios of files in testdata: a line for each object that is there. A line
// can end with fields of its object as YAML, in braces.
func observe(t *testing.T, files string, what func(*fixture) []string) {
	t.Helper()
	scenariotest.Run(t, files, func(t *testing.T, lines []string) []string {
		f := newFixture()
		for _, line := range lines {
			if err := f.given(line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if seen := what(f); len(seen) > 0 {
			return seen
		}
		return []string{"nothing"}
	})
}

// TestPlans: what a pass plans, also of Pods as the cache keeps those of other controllers.
func TestPlans(t *testing.T) {
	observe(t, "testdata/plans/*.txt", func(f *fixture) []string {
		planned := render(Make(f.Snapshot))
		for i, pod := range f.Pods {
			f.Pods[i] = Slim(pod)
		}
		checktest.Same(t, "the plan of Pods as the cache keeps them", planned, render(Make(f.Snapshot)))
		return planned
	})
}

// TestNeeds: which targets a pass has to list.
func TestNeeds(t *testing.T) {
	observe(t, "testdata/needs.txt", func(f *fixture) []string {
		return list.Map(Needs(f.Snapshot), func(t Target) string { return "list " + t.Registry })
	})
}

// TestConditions: those of a Registration that are not as usual.
func TestConditions(t *testing.T) {
	usual := map[string]metav1.ConditionStatus{
		usherv1alpha1.ConditionReady: "True", usherv1alpha1.ConditionWaiting: "False",
		usherv1alpha1.ConditionHooksMatched: "True", usherv1alpha1.ConditionInstancesValid: "True",
	}
	observe(t, "testdata/conditions.txt", func(f *fixture) []string {
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

// TestStatus: what a Registration counts, in all and in each registry.
func TestStatus(t *testing.T) {
	observe(t, "testdata/status.txt", func(f *fixture) []string {
		status := statusOf(f)
		if equality.Semantic.DeepEqual(status, f.Registrations[0].Status) {
			return []string{"as before"}
		}
		lines := []string{fmt.Sprintf("%d Pods, %d registered, %d draining", status.Pods, status.Registered, status.Draining)}
		for _, r := range status.Registries {
			line := fmt.Sprintf("%s: %d registered, %d draining, %d waiting %s", r.Name, r.Registered, r.Draining, r.Waiting, r.Error)
			lines = append(lines, strings.TrimSpace(line))
			if r.Entries == nil {
				continue
			}
			line = fmt.Sprintf("%s: lists %d, %d differ", r.Name, *r.Entries, r.Differing)
			for _, d := range r.Differences {
				line += ", " + d.Pod + " " + d.Reason
			}
			lines = append(lines, line)
		}
		return lines
	})
}

func statusOf(f *fixture) usherv1alpha1.RegistrationStatus {
	return Status(Make(f.Snapshot).Outcomes[0], f.Registries, f.Now)
}

// TestMessages: for what Pods wait, and what they say.
func TestMessages(t *testing.T) {
	observe(t, "testdata/messages.txt", func(f *fixture) []string {
		p := Make(f.Snapshot)
		lines := list.Map(p.Waiting, func(w Waiting) string { return fmt.Sprintf("%s waits: %s", w.Pod, w.Message) })
		for i := range p.Patches {
			if c := p.Patches[i].Condition; c != nil {
				lines = append(lines, fmt.Sprintf("%s says %s %s: %s", p.Patches[i].Pod.Name, c.Status, c.Reason, c.Message))
			}
		}
		return lines
	})
}

// TestTargets: what is recorded of a Registration, whether it goes, and which orphans there are.
func TestTargets(t *testing.T) {
	observe(t, "testdata/targets.txt", func(f *fixture) []string {
		var lines []string
		tell := func(what string, targets []Target) {
			names := list.Map(targets, func(t Target) string { return t.Registry })
			lines = append(lines, what+" "+cmp.Or(strings.Join(names, " "), "nothing"))
		}
		p := Make(f.Snapshot)
		tell("records", p.Outcomes[0].Targets)
		tell("keeps", p.Outcomes[0].Kept)
		if p.Outcomes[0].Released {
			lines = append(lines, "goes")
		}
		for _, c := range p.Changes {
			if len(c.Suspects) > 0 {
				lines = append(lines, fmt.Sprintf("%d orphans in %s, %d of them go", len(c.Suspects), c.Target.Registry, len(c.Orphans)))
			}
		}
		return lines
	})
}

// TestPatches: what is sent of a patch, and when its record says that callers know.
func TestPatches(t *testing.T) {
	observe(t, "testdata/patches.txt", func(f *fixture) []string {
		var lines []string
		p := Make(f.Snapshot)
		for _, patch := range slices.Concat(p.Protect, p.Patches) {
			if r := patch.Drain; r != nil { // its times are not for people
				lines = append(lines, fmt.Sprintf("%s: a record that ends %s, known %t", patch.Pod.Name, ends(r), !r.Until.IsZero()))
				continue
			}
			own, chosen := patch.Split()
			if !own.Empty() {
				lines = append(lines, patch.Pod.Name+": "+string(own.Encode()))
			}
			if !chosen.Empty() {
				lines = append(lines, patch.Pod.Name+", where policies see it: "+string(chosen.Encode()))
			}
		}
		return lines
	})
}

// TestResults: each drain that somebody waits for has one result, whatever the number of keys and of deadlines.
func TestResults(t *testing.T) {
	observe(t, "testdata/results.txt", func(f *fixture) []string {
		var lines []string
		p := Make(f.Snapshot)
		for _, patch := range slices.Concat(p.Protect, p.Patches) {
			own, chosen := patch.Split()
			for _, r := range slices.Concat(own.Results, chosen.Results) {
				lines = append(lines, fmt.Sprintf("%s: %s", patch.Pod.Name, r))
			}
		}
		return lines
	})
}

// TestValues: what is taken from a Pod, and what cannot be. The Registration stays as it is.
func TestValues(t *testing.T) {
	observe(t, "testdata/values.txt", func(f *fixture) []string {
		given := f.Registrations[0].DeepCopy()
		v := valuesOf(&f.Registrations[0].Spec.Instance, f.Pods[0])
		checktest.Same(t, "the Registration itself", given, f.Registrations[0])
		lines := []string{fmt.Sprint("weight ", v.weight)}
		for _, key := range slices.Sorted(maps.Keys(v.metadata)) {
			lines = append(lines, key+"="+v.metadata[key])
		}
		return append(lines, v.bad...)
	})
}

// TestServiceMatters: the kubelet's answer to the gate makes a pass look again.
func TestServiceMatters(t *testing.T) {
	f := newFixture()
	b := f.add("a", "")
	b.gate("on")
	before := b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).pod.DeepCopy()
	if b.gate("off"); !Matters(before, b.pod) {
		t.Error("the kubelet has answered, and nobody looks")
	}
}

// ends is when a drain ends by its record.
func ends(r *Record) string {
	if r.End().IsZero() {
		return "nobody knows when"
	}
	return "after " + r.End().Sub(epoch).String()
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
		if err := scenariotest.Say(podWords, b, about); err != nil {
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
		return scenariotest.Say(registryWords, registryBuilder{f, args[1]}, about)
	case "Entry":
		return f.entryOf(args[1], f.pod(args[2]).entry("nginx"), fields)
	case "Orphan":
		return f.entryOf("discovery", orphan(args[1]), fields)
	default:
		return scenariotest.Say(circumstances, f, head)
	}
	if !braced {
		return nil
	}
	return yaml.UnmarshalStrict([]byte("{"+fields), object)
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
	"long":    func(b *podBuilder, _ string) { b.annotate(strings.Repeat("1", maxValue+1)) },
	"ready":   func(b *podBuilder, _ string) { b.ready(true) },
	"silent":  func(b *podBuilder, value string) { b.lost(scenariotest.Duration(value)) },
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
	// open is how many connections its entry still has, which gets no new ones.
	"open": func(b *podBuilder, n string) {
		e := b.listed()
		e.Weight, e.Unsettled, e.Connections = 0, "it waits for "+n+" sessions", new(int32(scenariotest.Number(n)))
	},
	"noMetadata":  func(b *podBuilder, _ string) { b.listed().NoMetadata = true },
	"terminating": func(b *podBuilder, value string) { b.terminating(scenariotest.Duration(value)) },
	// refused is "KEYS WAIT": the API server refused them, and the next attempt is after so long.
	"refused": func(b *podBuilder, value string) {
		keys, wait, _ := strings.Cut(value, " ")
		b.f.Refusals = map[types.UID]Refusal{b.pod.UID: {
			Keys: list.Map(strings.Split(keys, ","), keyOf), Message: "nobody sets that", Until: epoch.Add(scenariotest.Duration(wait))}}
	},
	// ownedBy has an owner of that name.
	"ownedBy": func(b *podBuilder, name string) {
		b.pod.OwnerReferences = []metav1.OwnerReference{{Kind: "any", Name: name, UID: types.UID("uid-" + name), Controller: new(true)}}
	},
	"cost": func(b *podBuilder, cost string) { b.annotation(corev1.PodDeletionCost, cost) },
	// by has a controller of that kind.
	"by": func(b *podBuilder, kind string) {
		b.pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", UID: "uid-owner", Controller: new(true)}}
	},
	"orphaned": func(b *podBuilder, _ string) { b.pod.OwnerReferences = nil },
	"on":       func(b *podBuilder, node string) { b.pod.Spec.NodeName = node },
	"phase":    func(b *podBuilder, phase string) { b.pod.Status.Phase = corev1.PodPhase(phase) },
	"names":    func(b *podBuilder, value string) { b.named(value) },
	"gate":     func(b *podBuilder, value string) { b.gate(value) },
	// inService says by its label whether the Pod is in its Service.
	"inService": func(b *podBuilder, value string) { b.label(usherv1alpha1.LabelInService, value) },
	// target is what the load balancer has for the Pod.
	"target": func(b *podBuilder, state string) {
		e := map[string]registry.Entry{
			"healthy": {Weight: 1}, "initial": {Weight: 1, Unsettled: "first checks"},
			"draining": {Unsettled: "it drains"}, "unused": {Hidden: "no listener"},
		}[state]
		e.ID, e.Address, e.Port, e.NoMetadata, e.Version = "web/"+b.pod.Status.PodIP+":80", b.pod.Status.PodIP, 80, true, state
		b.f.seed("lb", e)
	},
	// app is what the Pod's application has registered: it is up, starting, out by an override, or both; "up as b" has the
	// address of another Pod, and "up twice" is a second one.
	"app": func(b *podBuilder, state string) {
		words := append(strings.Fields(state), "")
		e := map[string]registry.Entry{
			"up": {Weight: 1}, "starting": {Hidden: "its status is STARTING"},
			"out": {Override: true, Hidden: "its status is OUT_OF_SERVICE"},
		}[words[0]]
		at := b.pod.Status.PodIP
		switch words[1] {
		case "as":
			at = b.f.pod(words[2]).pod.Status.PodIP
		case "at":
			at = words[2]
		}
		e.ID, e.Address, e.Port, e.Version = b.pod.Name+":"+service+":80"+words[1], at, 80, state
		b.f.seed("discovery", e)
	},
	// asked means that the Registration has asked the Pod's application to leave.
	"asked": func(b *podBuilder, _ string) { b.annotation(usherv1alpha1.AnnotationAsked, "nginx") },
	"ended": func(b *podBuilder, _ string) { b.pod.Status.Phase = corev1.PodSucceeded },
	// address is that of another Pod that is there.
	"address": func(b *podBuilder, of string) { b.pod.Status.PodIP = b.f.pod(of).pod.Status.PodIP },
	// ip is an address that somebody has written into the Pod's status.
	"ip": func(b *podBuilder, address string) {
		b.pod.Status.PodIP, b.pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	},
	"hostNetwork": func(b *podBuilder, _ string) { b.pod.Status.PodIP, b.pod.Status.HostIP = "10.1.1.1", "10.1.1.1" },
	// endpoint is what the Service lists for the Pod.
	"endpoint": func(b *podBuilder, value string) {
		e := registry.Entry{
			ID:      fmt.Sprint("web-x7k2p.", len(b.f.Listings[target("service")].Entries)),
			Address: b.pod.Status.PodIP, NoMetadata: true, Weight: map[string]int32{"ready": 1}[value],
			Owner: registry.Owner{Namespace: namespace, Pod: b.pod.Name, PodUID: string(b.pod.UID)},
		}
		b.f.seed("service", e)
	},
	"kubelet": func(b *podBuilder, value string) { b.condition(corev1.PodReady, truth[value == "ready"]) },
	"turned": func(b *podBuilder, span string) {
		podread.Condition(b.pod, usherv1alpha1.ConditionRegistered).LastTransitionTime = metav1.NewTime(ago(span))
	},
	// since says when the Pod became ready, and entered its state.
	"since": func(b *podBuilder, value string) {
		ready, entered, _ := strings.Cut(value, "/")
		for i := range b.pod.Status.Conditions {
			b.pod.Status.Conditions[i].LastTransitionTime = metav1.NewTime(ago(ready))
		}
		b.annotation(appsv1alpha1.AnnotationLifecycleTimestamp, ago(entered).Format(time.RFC3339))
	},
	// drain gives the Pod a record of a drain that began and ended some time ago: in a registry,
	// such as "discovery", for nginx, or for another Registration, as "second@mesh". "until" is
	// when the drain ends; without it, after the default propagation. "elsewhere" is when another
	// process wrote it, by its own clock.
	// answers is what the Pod has answered when it was asked: "idle 7s", "busy 3", "busy", or what is wrong. It was
	// asked now, or "asked 20s" ago.
	"answers": func(b *podBuilder, value string) {
		value, asked, _ := strings.Cut(value, " asked ")
		answer := Answer{At: ago(cmp.Or(asked, "0s"))}
		switch kind, rest, _ := strings.Cut(value, " "); {
		case kind == "idle":
			answer.IdleSince, answer.UnderWay = ago(rest), new(int64(0))
		case kind == "busy" && rest != "":
			answer.UnderWay = new(int64(scenariotest.Number(rest)))
		case kind != "busy":
			answer.Problem = value
		}
		if b.f.Answers == nil {
			b.f.Answers = map[AskKey]Answer{}
		}
		for _, r := range b.f.Registrations {
			b.f.Answers[AskKey{b.pod.UID, r.Name}] = answer
		}
	},
	// costs is the deletion cost that Usher has written to the Pod some time ago, as "3 40s"; "cost" is anybody's.
	"costs": func(b *podBuilder, value string) {
		class, at, _ := strings.Cut(value, " ")
		b.annotation(usherv1alpha1.AnnotationScaleIn, string(encode.JSON(Cost{Class: scenariotest.Number(class), At: ago(at)})))
		b.annotation(corev1.PodDeletionCost, class)
	},
	"drain": func(b *podBuilder, value string) {
		words := strings.Fields(value)
		record := Record{Gate: Gate(words[0]), Began: ago(words[1]), Gone: map[string]time.Time{}}
		for pair := range slices.Chunk(words[2:], 2) {
			switch registration, registry, other := strings.Cut(pair[0], "@"); {
			case pair[0] == "until":
				record.Until = ago(pair[1])
			case pair[0] == "free":
				record.Free = ago(pair[1])
			case pair[0] == "count":
				n, at, _ := strings.Cut(pair[1], "@")
				record.UnderWay, record.At = new(int64(scenariotest.Number(n))), ago(at)
			case pair[0] == "elsewhere":
				record.Process, record.At = "other", ago(pair[1])
			case other:
				record.Gone[recordKey(registration, target(registry))] = ago(pair[1])
			default:
				record.Gone[recordKey("nginx", target(pair[0]))] = ago(pair[1])
			}
		}
		for _, gone := range record.Gone {
			if !slices.Contains(words, "until") {
				record.Until = list.Latest(record.Until, gone.Add(DefaultPropagation))
			}
		}
		b.annotation(usherv1alpha1.AnnotationDrain, string(encode.JSON(record)))
	},
	"requested": func(b *podBuilder, value string) {
		span, kind, _ := strings.Cut(value, " ")
		b.requested(scenariotest.Duration(span), func(r *usherv1alpha1.DeletionRequest) {
			r.Eviction, r.Named = strings.Contains(kind, "eviction"), strings.Contains(kind, "named")
			r.Controller = strings.Contains(kind, "controller")
			if _, drained, yes := strings.Cut(kind, "drained="); yes {
				r.Drained = new(metav1.NewMicroTime(ago(drained)))
			}
			if _, cost, kept := strings.Cut(kind, "cost="); kept {
				r.DeletionCost = &cost
			}
			if _, grace, short := strings.Cut(kind, "grace="); short {
				span := scenariotest.Duration(grace)
				r.GracePeriodSeconds = new(int64(span.Seconds()))
				r.Deadline, r.LetGo = new(metav1.NewMicroTime(r.Since.Add(span))), new(metav1.NewMicroTime(r.Since.Add(span/6)))
			}
		})
	},
}

// ownerOf reads "ReplicaSet 3", "StatefulSet 3 from 1 revision b partition 2", "DaemonSet revision b unfit n1",
// "CloneSet 3 named a", "any selects app", "any foreign 1", "gone" or "unknown".
func ownerOf(text string) (o Owner) {
	words := append(strings.Fields(text), "")
	switch words[0] {
	case "gone", "unknown":
		return Owner{Gone: words[0] == "gone", Unknown: words[0] == "unknown"}
	case "ReplicaSet", "StatefulSet", "CloneSet":
		o = Owner{Replicas: new(int32(scenariotest.Number(words[1]))), Ordinals: words[0] == "StatefulSet", Acts: words[0] == "CloneSet"}
	}
	for i, word := range words[:len(words)-1] {
		switch next := words[i+1]; word {
		case "from":
			o.First = int32(scenariotest.Number(next))
		case "revision":
			o.Revision = next
		case "partition":
			o.Partition = int32(scenariotest.Number(next))
		case "unfit":
			o.Unfit = map[string]bool{next: true}
		case "selects":
			o.Selects = strings.Split(next, ",")
		case "foreign":
			o.Foreign = true
		case "named":
			o.Named = map[string]bool{next: true}
		}
	}
	return o
}

// evictionOf reads "a Active 5s": of Pod a, Usher's turn since 5 s. "of UID" is the target's, if it is another
// Pod of that name; "by REQUESTERS" are those that want it; "said 3s" is when Usher said something last, and
// "until 4s" when the drain was to end from now on; "done" and "over" mean that Usher's turn has ended, and the
// eviction. What it said follows after "say".
func evictionOf(text string) Eviction {
	text, message, _ := strings.Cut(text, " say ")
	words := append(strings.Fields(text), "", "")
	e := Eviction{
		Name: "pod-1-" + words[0], UID: types.UID("eviction-" + words[0]), Pod: words[0], PodUID: types.UID("uid-" + words[0] + "-0000"),
		Turn: Turn(words[1]), Requesters: []string{"example.com/drain"}, Response: Response{Message: message},
	}
	if words[2] != "" {
		e.Started = ago(words[2])
	}
	for i, word := range words[:len(words)-1] {
		switch next := words[i+1]; word {
		case "of":
			e.PodUID = types.UID(next)
		case "by":
			e.Requesters = strings.Split(next, ",")
		case "said":
			e.Heartbeat = ago(next)
		case "until":
			e.Expected = epoch.Add(scenariotest.Duration(next))
		case "done":
			e.Completed = ago("1s")
		case "over":
			e.Over = true
		}
	}
	return e
}

// ago is so long before the epoch.
func ago(span string) time.Time { return epoch.Add(-scenariotest.Duration(span)) }

// keyOf is the key of a hook of the fixture that ends so, or any other label's.
func keyOf(short string) string {
	for _, key := range []string{keyCreated, keyPreNormal, keyInPlace, keyDelete} {
		if strings.HasSuffix(key, "/"+short) {
			return key
		}
	}
	return short
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

// fails means that the registry does not list.
func (b registryBuilder) fails(err error) { b.f.Listings[target(b.name)] = Listing{Err: err} }

func (b registryBuilder) rule(names string, admits, shared bool) {
	b.state(func(s *RegistryState) {
		s.Rules = append(s.Rules, ServiceRule{Names: strings.Fields(names), Admits: admits, Shared: shared})
	})
}

// registryWords are what can be said about a Registry.
var registryWords = map[string]func(b registryBuilder, value string){
	"down":      func(b registryBuilder, _ string) { b.fails(registry.Transient(errors.New("connection refused"))) },
	"missing":   func(b registryBuilder, _ string) { delete(b.f.Registries, b.name) },
	"denied":    func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Denied = true }) },
	"leaving":   func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Leaving = true }) },
	"counts":    func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Counts = true }) },
	"holdsBack": func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.HoldsBack = true }) },
	"away": func(b registryBuilder, why string) {
		b.state(func(s *RegistryState) { s.Err = registry.Transient(errors.New(why)) })
	},
	"refuses": func(b registryBuilder, why string) {
		b.state(func(s *RegistryState) { s.Err = registry.Permanent(errors.New(why)) })
	},
	"noService":  func(b registryBuilder, why string) { b.fails(registry.NoService(registry.Permanent(errors.New(why)))) },
	"unlistable": func(b registryBuilder, why string) { b.fails(registry.OneService(registry.Permanent(errors.New(why)))) },
	// new is one that has recorded nobody.
	"new": func(b registryBuilder, _ string) {
		b.f.Registrations[0].Status.Targets = nil
		b.state(func(s *RegistryState) { s.Users = nil })
	},
	// usedBy is a namespace that is recorded, for the service or another one.
	"usedBy": func(b registryBuilder, value string) {
		namespace, other, _ := strings.Cut(value, " ")
		b.f.recordUser(b.name, namespace, cmp.Or(other, service))
	},
	// usedByApplicationsOf is a namespace that is recorded for applications which register themselves.
	"usedByApplicationsOf": func(b registryBuilder, namespace string) {
		b.state(func(s *RegistryState) {
			s.Users = append(s.Users, usherv1alpha1.RegistryUser{Namespace: namespace, Registration: "nginx", Prefix: "services", Service: service, ByApplication: true})
		})
	},
	// crowd is a namespace that is recorded for so many services with long names.
	"crowd": func(b registryBuilder, value string) {
		namespace, n, _ := strings.Cut(value, " ")
		for i := range scenariotest.Number(n) {
			b.f.recordUser(b.name, namespace, fmt.Sprintf("%0253d", i))
		}
	},
	"own":    func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Own = true }) },
	"strict": func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Strict = true }) },
	"folds":  func(b registryBuilder, _ string) { b.state(func(s *RegistryState) { s.Fold = strings.ToUpper }) },
	// rule is for the names of services that follow.
	"rule":           func(b registryBuilder, names string) { b.rule(names, false, false) },
	"ruleForUs":      func(b registryBuilder, names string) { b.rule(names, true, false) },
	"ruleSharedByUs": func(b registryBuilder, names string) { b.rule(names, true, true) },
	// outage is one that began and ended some time ago.
	"outage": func(b registryBuilder, value string) {
		began, ended, _ := strings.Cut(value, " ")
		b.state(func(s *RegistryState) {
			s.Outage = Outage{From: ago(began), To: ago(ended)}
		})
	},
	// lists nothing, or fails with an error of this text.
	"lists": func(b registryBuilder, failure string) {
		b.f.Listings[target(b.name)] = Listing{Entries: []registry.Entry{}}
		if failure != "nothing" {
			b.fails(registry.Transient(errors.New(failure)))
		}
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
	// HookKeys are those of users' choice that Usher may write.
	"HookKeys": func(f *fixture, keys string) { f.HookKeys = NewKeys(strings.Split(keys, ",")) },
	"Mesh":     func(f *fixture, _ string) { f.mesh() },
	// Owner is "NAME ReplicaSet 3", as ownerOf reads it; Node is "NAME evicts", "NAME cordoned" or "NAME goes 30s".
	"Owner": func(f *fixture, value string) {
		name, what, _ := strings.Cut(value, " ")
		f.Owners[OwnerRef{"", "any", name, types.UID("uid-" + name)}] = ownerOf(what)
	},
	"Node": func(f *fixture, value string) {
		name, what, _ := strings.Cut(value, " ")
		f.Nodes[name] = Node{Evicts: what == "evicts", Cordoned: what == "cordoned"}
		if within, goes := strings.CutPrefix(what, "goes "); goes {
			f.Nodes[name] = Node{Goes: "is shutting down", Within: scenariotest.Duration(within)}
		}
	},
	"NamespaceEnds": func(f *fixture, _ string) { f.Ending = true },
	"NobodyDeletes": func(f *fixture, _ string) { f.Finish = false },
	// Departed Pod a, which Registration second has deselected, and whose registries do not list it for so long.
	"Departed": func(f *fixture, value string) {
		fields := strings.Fields(value)
		at := Departure{types.UID("uid-" + fields[0] + "-0000"), fields[1]}
		f.Departures = Departures{at: ago(fields[2])}
	},
	"LoopbackPods": func(f *fixture, _ string) { f.LoopbackPods = true },
	// The Registration names no hook, and the CloneSet uses keys that are named after it, and one that
	// only looks so.
	"Unnamed": func(f *fixture, _ string) {
		f.Registrations[0].Spec.Hooks = usherv1alpha1.Hooks{}
		f.CloneSets[0].Spec.Lifecycle = fixtureProps().Unnamed.DeepCopy()
	},
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
	// Later is some time after the epoch.
	"Later": func(f *fixture, after string) { f.Now = epoch.Add(scenariotest.Duration(after)) },
	// Reported means that the conditions of a plan, and the status, are written.
	"Reported": func(f *fixture, _ string) {
		f.Registrations[0].Status = statusOf(f)
		for _, patch := range Make(f.Snapshot).Patches {
			if b := f.pod(patch.Pod.Name); patch.Condition != nil {
				b.condition(patch.Condition.Type, patch.Condition.Status)
				b.pod.Status.Conditions[len(b.pod.Status.Conditions)-1] = *patch.Condition
			}
		}
	},
	"Recorded":  func(f *fixture, _ string) { f.Registrations[0].Status.Targets = Make(f.Snapshot).Outcomes[0].Targets },
	"NoBudget":  func(f *fixture, _ string) { f.budget(0) },
	"BudgetOf0": func(f *fixture, _ string) { f.budget(0) },
	"BudgetOf1": func(f *fixture, _ string) { f.budget(1) },
	// Disrupted is a Pod that a budget of 0 has granted to somebody so long ago.
	"Disrupted": func(f *fixture, value string) {
		name, span, _ := strings.Cut(value, " ")
		f.budget(0)
		f.Budgets[0].Status.DisruptedPods = map[string]metav1.Time{name: metav1.NewTime(ago(span))}
	},
	"OldBudget": func(f *fixture, _ string) {
		f.budget(1)
		f.Budgets[0].Status.CurrentHealthy = 2
	},
	// Unseen is a Pod that nobody has seen in its Service for so long.
	"Unseen": func(f *fixture, value string) {
		name, span, _ := strings.Cut(value, " ")
		f.Unlisted = Unlisted{{target("service"), f.pod(name).pod.UID}: ago(span)}
	},
	// Restarted means that another process plans now.
	"Restarted": func(f *fixture, _ string) { f.Unlisted = nil },
	// Listed is a Pod that the Service lists from now on.
	"Listed": func(f *fixture, name string) { podWords["endpoint"](f.pod(name), "ready") },
	// Selector is the label that the Service asks for.
	"Selector": func(f *fixture, label string) {
		key, value, _ := strings.Cut(label, "=")
		listing := f.Listings[target("service")]
		listing.Selector = map[string]string{key: value}
		f.Listings[target("service")] = listing
	},
	// Labelled makes the Service one that Pods enter and leave by a label.
	"Labelled": func(f *fixture, others string) {
		f.inService(strings.Fields(others)...)
		registryBuilder{f, "service"}.state(func(s *RegistryState) {
			s.Label = LabelOf(&usherv1alpha1.ServiceRegistry{Label: &usherv1alpha1.ServiceLabel{}})
		})
		if owner := OwnerOf(&fixtureProps().Pod); owner != nil {
			f.Owners[*owner] = Owner{Selects: []string{"app"}}
		}
		listing := f.Listings[target("service")]
		listing.Selector = map[string]string{"app": "nginx", usherv1alpha1.LabelInService: "true"}
		f.Listings[target("service")] = listing
	},
	"Service": func(f *fixture, others string) { f.inService(strings.Fields(others)...) },
	// ByApplication has the applications of the Registration register themselves in discovery.
	"ByApplication": func(f *fixture, _ string) {
		f.Registrations[0].Spec.Instance.RegisteredBy = usherv1alpha1.RegisteredByApplication
		registryBuilder{f, "discovery"}.state(func(s *RegistryState) { s.Overrides = true })
	},
	// Asks has the applications of the Registration register themselves, and be asked to leave: by a preset or not.
	"Asks": func(f *fixture, preset string) {
		f.Registrations[0].Spec.Instance.RegisteredBy = usherv1alpha1.RegisteredByApplication
		f.Registrations[0].Spec.Drain.Application = &usherv1alpha1.AskedApplication{
			Preset: usherv1alpha1.ApplicationPreset(preset), Port: intstr.FromInt32(8081),
		}
		if preset == "" {
			f.Registrations[0].Spec.Drain.Application.Leave = &usherv1alpha1.ApplicationRequest{Method: "PUT", Path: "/out"}
			f.Registrations[0].Spec.Drain.Application.Return = &usherv1alpha1.ApplicationRequest{Path: "/in"}
		}
	},
	// Left is a Pod whose entry this pass has taken out of discovery.
	"Left": func(f *fixture, name string) {
		f.Left = map[Target]map[string]bool{target("discovery"): {string(f.pod(name).pod.UID): true}}
	},
	// Follows has others write the entries of the registry lb.
	"Follows": func(f *fixture, _ string) {
		f.Registries["lb"] = RegistryState{Prefix: "services", Follows: true, HoldsBack: true}
		f.Listings[target("lb")] = Listing{Entries: []registry.Entry{}}
		r := f.Registrations[0]
		if r.Spec.Registries = append(r.Spec.Registries, "lb"); slices.Contains(r.Spec.Registries, "discovery") {
			r.Spec.Registries = []string{"lb"}
		}
		r.Status.Targets = list.Map(r.Spec.Registries, target)
	},
	// Eviction is one of Kubernetes', as evictionOf reads it.
	"Eviction": func(f *fixture, value string) { f.Evictions = append(f.Evictions, evictionOf(value)) },
	// Stale has lb asked again in so long, and not in this pass.
	"Stale": func(f *fixture, span string) {
		f.Followed = map[Target]Followed{target("lb"): {Again: epoch.Add(scenariotest.Duration(span)), Stale: true}}
	},
}

// TestLongTextsAreCut: whatever registries say and list, the API server takes the status and the
// conditions of Pods.
func TestLongTextsAreCut(t *testing.T) {
	long := strings.Repeat("é", 50_000)
	f := newFixture()
	f.registry("odd")
	f.Registrations[0].Spec.Registries = []string{"discovery", "odd"}
	for n := range 3 {
		f.add(fmt.Sprintf("pod-%02d", n), appsv1alpha1.StateNormal).finalizers(usherv1alpha1.Finalizer)
	}
	state := f.Registries["discovery"]
	state.Err = registry.Permanent(errors.New(long))
	f.Registries["discovery"], f.Listings[target("discovery")] = state, Listing{Err: state.Err}
	strange := orphan("odd")
	strange.ID, strange.Owner.Pod = long, long
	f.Listings[target("odd")] = Listing{Entries: []registry.Entry{strange}}
	texts := textsOf(f)
	cut := 0
	for text, limit := range texts {
		if len(text) > limit || !utf8.ValidString(text) {
			t.Errorf("a text has %d bytes, of %d: %.80q", len(text), limit, text)
		}
		if strings.Contains(text, "éé") {
			cut++
		}
	}
	checktest.Same(t, "how many texts are cut", 5, cut)
}

// textsOf are the texts that are written to objects, with how long each may be.
func textsOf(f *fixture) map[string]int {
	p, texts := Make(f.Snapshot), map[string]int{}
	for _, patch := range p.Patches {
		if patch.Condition != nil {
			texts[patch.Condition.Message] = 2 * maxMessage
		}
	}
	status := Status(p.Outcomes[0], f.Registries, f.Now)
	for _, c := range status.Conditions {
		texts[c.Message] = MaxCondition
	}
	for _, r := range status.Registries {
		texts[r.Error] = maxError
		for _, d := range r.Differences {
			texts[d.Entry], texts[d.Pod] = maxError, maxName
		}
	}
	return texts
}

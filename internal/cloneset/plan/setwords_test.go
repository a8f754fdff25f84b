// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// said applies words to something, such as "unready; cost 5".
func said[T any](words map[string]func(T, string), something T, about ...string) T {
	if err := scenariotest.Say(words, something, strings.Join(about, "; ")); err != nil {
		panic(err) // The words are misspelt.
	}
	return something
}

// empty returns a set without Pods whose update revision is r1.
func empty() *Snapshot {
	s := &Snapshot{
		Now: now, Set: "web", Revisions: map[string]*revision.Revision{},
		Spec: Spec{Replicas: -1, Method: apps.UpdateReCreate, MaxUnavailable: Count{Value: 20, Percent: true}},
	}
	roll(s, 1, "")
	s.Current = s.Update
	return s
}

// snap returns a set with these Pods, as the words describe it.
func snap(about string, pods ...*corev1.Pod) *Snapshot {
	s := said(setWords, empty(), about)
	s.Pods = pods
	return counted(s)
}

// counted sets the replicas to the number of Pods, or a few less, unless the words set them.
func counted(s *Snapshot) *Snapshot {
	if s.Spec.Replicas < 0 {
		s.Spec.Replicas += len(s.Pods) + 1
	}
	slices.SortFunc(s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// roll makes rN the update revision; the current one stays.
func roll(s *Snapshot, n int, changes string) {
	s.Update = rev(n, changes)
	s.Revisions[revision.Short(s.Update.Name)] = s.Update
}

// rev returns a revision whose template runs app:<n>, with changes such as "cpu 200m, image app:1".
func rev(n int, changes string) *revision.Revision {
	template := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": fmt.Sprintf("app:%d", n)}}},
	}
	return &revision.Revision{
		Name: fmt.Sprintf("web-r%d", n), Number: int64(n), Template: said(revisionWords, template, strings.ReplaceAll(changes, ", ", "; ")),
	}
}

// number reads revisions: rN.
func number(revision string) int { return scenariotest.Number(strings.TrimPrefix(revision, "r")) }

// container returns a container of a template.
func container(template map[string]any, i int) map[string]any {
	return template["spec"].(map[string]any)["containers"].([]any)[i].(map[string]any)
}

func labelled(template map[string]any, key, value string) {
	template["metadata"].(map[string]any)["labels"].(map[string]any)[key] = value
}

// revisionWords are changes of a template.
var revisionWords = map[string]func(template map[string]any, value string){
	// env is a change that only a new Pod can have.
	"env": func(t map[string]any, _ string) {
		container(t, 0)["env"] = []any{map[string]any{"name": "A", "value": "1"}}
	},
	// label keeps the image of the first revision.
	"label": func(t map[string]any, _ string) {
		labelled(t, "tier", "front")
		container(t, 0)["image"] = "app:1"
	},
	// reads has the label tier, with a value, in the environment.
	"reads": func(t map[string]any, value string) {
		labelled(t, "tier", value)
		container(t, 0)["env"] = []any{map[string]any{
			"name": "TIER", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.labels['tier']"}},
		}}
	},
	"readyLabel": func(t map[string]any, value string) { labelled(t, "ready", value) },
	"image":      func(t map[string]any, image string) { container(t, 0)["image"] = image },
	"cpu": func(t map[string]any, cpu string) {
		container(t, 0)["resources"] = map[string]any{"requests": map[string]any{"cpu": cpu}}
	},
	"guaranteed": func(t map[string]any, _ string) {
		container(t, 0)["resources"] = map[string]any{"limits": map[string]any{"cpu": "1", "memory": "1Gi"}}
	},
	"node": func(t map[string]any, node string) { t["spec"].(map[string]any)["nodeName"] = node },
	// base adds a second container, whose launch priority makes it the first one to be updated.
	"base": func(t map[string]any, n string) {
		spec := t["spec"].(map[string]any)
		spec["containers"] = append(spec["containers"].([]any), map[string]any{
			"name": "base", "image": "base:" + n, "env": []any{map[string]any{"name": apps.EnvContainerPriority, "value": "10"}},
		})
	},
	"unreadablePriority": func(t map[string]any, _ string) {
		container(t, 1)["env"].([]any)[0].(map[string]any)["value"] = "first"
	},
}

const (
	keyNormal = "example.com/registered"
	keyUpdate = "example.com/update"
	keyDelete = "example.com/delete"
	zoneKey   = "topology.kubernetes.io/zone"
)

// hookSets returns the hooks of a set: the name says which keys they have and whether they mark Pods.
// "all" asks for one finalizer at each gate.
func hookSets(name string) lifecycle.Hooks {
	if name == "shared keys" {
		return lifecycle.Hooks{
			PreNormal:     lifecycle.Hook{LabelsHandler: map[string]string{"ready": "yes", "extra": "yes"}, FinalizersHandler: []string{"shared/f", keyNormal}},
			InPlaceUpdate: lifecycle.Hook{FinalizersHandler: []string{"shared/f", keyUpdate}},
			PreDelete:     lifecycle.Hook{LabelsHandler: map[string]string{"ready": "yes", "listed": "yes"}, FinalizersHandler: []string{keyDelete, keyUpdate}, MarkPodNotReady: true},
		}
	}
	name, marking := strings.CutSuffix(name, ", marking")
	all := lifecycle.Hooks{
		PreNormal:     lifecycle.Hook{FinalizersHandler: []string{keyNormal}},
		InPlaceUpdate: lifecycle.Hook{FinalizersHandler: []string{keyUpdate}, MarkPodNotReady: marking},
		PreDelete:     lifecycle.Hook{FinalizersHandler: []string{keyDelete}, MarkPodNotReady: marking},
	}
	return map[string]lifecycle.Hooks{
		"all": all, "preDelete": {PreDelete: all.PreDelete}, "inPlaceUpdate": {InPlaceUpdate: all.InPlaceUpdate},
	}[name]
}

// setWords describe a set.
var setWords = map[string]func(s *Snapshot, value string){
	"replicas":           func(s *Snapshot, value string) { s.Spec.Replicas = scenariotest.Number(value) },
	"goes":               func(s *Snapshot, value string) { s.Spec.Replicas = -1 - scenariotest.Number(value) },
	"InPlaceIfPossible":  func(s *Snapshot, _ string) { s.Spec.Method = apps.UpdateInPlaceIfPossible },
	"InPlaceOnly":        func(s *Snapshot, _ string) { s.Spec.Method = apps.UpdateInPlaceOnly },
	"OnDelete":           func(s *Snapshot, _ string) { s.Spec.Method = apps.UpdateOnDelete },
	"partition":          func(s *Snapshot, value string) { s.Spec.Partition = countOf(value) },
	"maxUnavailable":     func(s *Snapshot, value string) { s.Spec.MaxUnavailable = countOf(value) },
	"maxSurge":           func(s *Snapshot, value string) { s.Spec.MaxSurge = countOf(value) },
	"partitionRollback":  func(s *Snapshot, _ string) { s.Spec.PartitionRollback = true },
	"preparingAsUpdated": func(s *Snapshot, _ string) { s.Spec.PreparingAsUpdated = true },
	// recreateForClaims says how much storage the template of each claim asks for, such as 2Gi.
	"recreateForClaims": func(s *Snapshot, size string) {
		s.Spec.RecreateForClaims = true
		s.Spec.Claims = list.Map(s.Spec.ClaimTemplates, func(string) *corev1.PersistentVolumeClaimSpec { return claimSpec(size) })
	},
	"noSurgeInPlace":      func(s *Snapshot, _ string) { s.Spec.NoSurgeInPlace = true },
	"scaleMaxUnavailable": func(s *Snapshot, value string) { s.Spec.ScaleMaxUnavailable = new(countOf(value)) },
	"grace":               func(s *Snapshot, value string) { s.Spec.Grace = scenariotest.Duration(value) },
	"minReady":            func(s *Snapshot, value string) { s.Spec.MinReady = scenariotest.Duration(value) },
	"deadline":            func(s *Snapshot, value string) { s.Spec.ProgressDeadline = scenariotest.Duration(value) },
	"named": func(s *Snapshot, value string) {
		s.Spec.PodsToDelete = append(s.Spec.PodsToDelete, strings.Fields(value)...)
	},
	// failed is the failure that the last pass found, as in "3 times 1s ago" of r1.
	"failed": func(s *Snapshot, value string) {
		words := strings.Fields(value)
		s.Failures = map[string]Failure{"r1": {
			Count: scenariotest.Number(words[0]), At: now.Add(-scenariotest.Duration(words[2])), Pod: "x", Reason: "OutOfpods", Message: "it says",
		}}
	},
	"starts":           func(s *Snapshot, value string) { s.Starts = scenariotest.Number(value) },
	"paused":           func(s *Snapshot, _ string) { s.Spec.Paused = true },
	"refused":          func(s *Snapshot, _ string) { s.UpdateRefused = "the API server refuses Pods of spec.template: no" },
	"deleting":         func(s *Snapshot, value string) { s.Deletion = Deletion(value) },
	"deferredBefore":   func(s *Snapshot, value string) { deferred(s, 0, value) },
	"deferred":         func(s *Snapshot, value string) { deferred(s, time.Second, value) },
	"noResize":         func(s *Snapshot, _ string) { s.NoResize = true },
	"excludePreparing": func(s *Snapshot, _ string) { s.ExcludePreparingDelete = true },
	"templates":        func(s *Snapshot, value string) { s.Spec.ClaimTemplates = strings.Fields(value) },
	"noReuse":          func(s *Snapshot, _ string) { s.Spec.DisableClaimReuse = true },
	"deleted":          func(s *Snapshot, id string) { s.DeletedInstances = map[string]bool{id: true} },
	"released":         func(s *Snapshot, id string) { s.ReleasedInstances = map[string]bool{id: true} },
	"hooks":            func(s *Snapshot, value string) { s.Spec.Hooks = hookSets(value) },
	"orderKeys": func(s *Snapshot, keys string) {
		for key := range strings.FieldsSeq(keys) {
			s.Spec.OrderKeys = append(s.Spec.OrderKeys, apps.UpdatePriorityOrderTerm{OrderedKey: key})
		}
	},
	"matchLabelKeys": func(s *Snapshot, value string) { s.Spec.Spread[0].MatchLabelKeys = strings.Fields(value) },
	"spreadSelector": func(s *Snapshot, value string) { s.Spec.Spread[0].Selector = selectorOf(value) },
	// claims gives the set the template data and one claim of it for each id.
	"claims": func(s *Snapshot, ids string) {
		s.Spec.ClaimTemplates = []string{"data"}
		for id := range strings.FieldsSeq(ids) {
			s.Claims = append(s.Claims, claim("data", id))
		}
	},
	"claimsRefused": func(s *Snapshot, _ string) {
		s.ClaimsRefused, s.ClaimsRefusedUntil = "the API server refuses the claim of spec.volumeClaimTemplates data: no", now.Add(time.Minute)
	},
	// drained makes Pods leave their endpoints some time ago, as in "a 5s b 6s".
	"drained": func(s *Snapshot, value string) {
		s.Drained = map[types.UID]time.Time{}
		for pair := range slices.Chunk(strings.Fields(value), 2) {
			s.Drained[types.UID("uid-"+pair[0])] = now.Add(-scenariotest.Duration(pair[1]))
		}
	},
	"cordoned": func(s *Snapshot, nodes string) {
		s.GoingNodes = map[string][]corev1.Taint{}
		for name := range strings.FieldsSeq(nodes) {
			s.GoingNodes[name] = LeaveCordoned.Taints(&corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}})
		}
	},
	"tainted": func(s *Snapshot, value string) {
		node, key, _ := strings.Cut(value, " ")
		s.GoingNodes[node] = []corev1.Taint{{Key: key}}
	},
	// spread has nodes a1, a2, b1 … in the zones a, b …; x1 is in none.
	"spread": func(s *Snapshot, keys string) {
		s.Nodes = map[string]map[string]string{"x1": {}}
		for _, zone := range []string{"a", "b", "c"} {
			for _, i := range []string{"1", "2", "3"} {
				s.Nodes[zone+i] = map[string]string{zoneKey: zone, "rack": "r" + i}
			}
		}
		for key := range strings.FieldsSeq(keys) {
			s.Spec.Spread = append(s.Spec.Spread, SpreadTerm{TopologyKey: key, Selector: labels.Everything()})
		}
	},
	"scatter": func(s *Snapshot, value string) {
		key, value, _ := strings.Cut(value, "=")
		s.Spec.Scatter = []apps.UpdateScatterTerm{{Key: key, Value: value}}
	},
	// pulls makes nodes pull images first.
	"pulls": func(s *Snapshot, _ string) {
		s.Pulls.Possible, s.Spec.Pull.Timeout = true, DefaultPullTimeout
	},
	"pullTimeout": func(s *Snapshot, value string) { s.Spec.Pull.Timeout = scenariotest.Duration(value) },
	"pullGivenUp": func(s *Snapshot, value string) {
		node, image, _ := strings.Cut(value, " ")
		s.Pulls.GivenUp = map[ImageOnNode]time.Time{{node, image}: now.Add(time.Second)}
	},
	"namespaceEnds": func(s *Snapshot, _ string) { s.NamespaceEnds = true },
	"trials":        func(s *Snapshot, _ string) { s.Trials = map[string]Trial{} },
	"pullsOff":      func(s *Snapshot, _ string) { s.Spec.Pull.Off = true },
	"pullsRefused":  func(s *Snapshot, until string) { s.Pulls.RefusedUntil = now.Add(scenariotest.Duration(until)) },
	"pullsParallel": func(s *Snapshot, value string) { s.Spec.Pull.Parallel = new(countOf(value)) },
	"pullsReady":    func(s *Snapshot, value string) { s.Spec.Pull.Ready = scenariotest.Number(value) },
	// weights are such as "class=gold 10, class=silver 5".
	"weights": func(s *Snapshot, value string) {
		for term := range strings.SplitSeq(value, ", ") {
			selector, weight, _ := strings.Cut(term, " ")
			s.Spec.Weights = append(s.Spec.Weights, WeightTerm{Weight: scenariotest.Number(weight), Selector: selectorOf(selector)})
		}
	},
	"r1": func(s *Snapshot, changes string) { roll(s, 1, changes) },
	"r2": func(s *Snapshot, changes string) { roll(s, 2, changes) },
	"r3": func(s *Snapshot, changes string) { roll(s, 3, changes) },
	// current is the update revision, as after a rollout; exists is a revision that the set still has.
	"current": func(s *Snapshot, _ string) { s.Current = s.Update },
	"exists":  func(s *Snapshot, revision string) { s.Revisions[revision] = rev(number(revision), "") },
	// unreadable makes the revision r1 unreadable, unknown removes it.
	"unreadable": func(s *Snapshot, _ string) { s.Revisions["r1"] = &revision.Revision{Name: "web-r1", Number: 1} },
	"unknown":    func(s *Snapshot, _ string) { delete(s.Revisions, "r1") },
}

// deferred makes the API server defer the deletion of Pods for some time.
func deferred(s *Snapshot, until time.Duration, names string) {
	if s.Deferred == nil {
		s.Deferred = map[types.UID]Deferral{}
	}
	for name := range strings.FieldsSeq(names) {
		s.Deferred[types.UID("uid-"+name)] = Deferral{Since: now.Add(-time.Minute), Until: now.Add(until), Message: "it drains."}
	}
}

func selectorOf(text string) labels.Selector {
	selector, err := labels.Parse(text)
	if err != nil {
		panic(err) // A scenario is misspelt.
	}
	return selector
}

func countOf(text string) Count {
	n, percent := strings.CutSuffix(text, "%")
	return Count{Value: scenariotest.Number(n), Percent: percent}
}

// claim returns a claim of instance id, made from a template.
func claim(template, id string, about ...string) *corev1.PersistentVolumeClaim {
	return said(claimWords, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: ClaimName(template, "web", id), Labels: map[string]string{"app": "web", apps.LabelInstanceID: id},
	}, Spec: *claimSpec("1Gi")}, about...)
}

// claimSpec asks for so much storage.
func claimSpec(size string) *corev1.PersistentVolumeClaimSpec {
	return &corev1.PersistentVolumeClaimSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
	}
}

// claimWords describe a claim.
var claimWords = map[string]func(c *corev1.PersistentVolumeClaim, value string){
	"going": func(c *corev1.PersistentVolumeClaim, _ string) { c.DeletionTimestamp = new(ago(0)) },
	"of":    func(c *corev1.PersistentVolumeClaim, id string) { c.Labels[apps.LabelInstanceID] = id },
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// decides starts the lines that describe the decisions of a pass.
const decides = "decides to "

// path describes the path to the violation.
func (x *explorer) path() []string {
	var way []int32
	for id := x.foundAt; id >= 0; id = x.nodes[id].parent {
		way = append(way, id)
	}
	slices.Reverse(way)
	out := x.picture(x.decode(x.nodes[way[0]].key))
	for i := range way[1:] {
		out = append(out, x.step(way[i], way[i+1])...)
	}
	if x.foundWith > x.nodes[x.foundAt].depth {
		out = append(out, x.lastStep()...)
	}
	return out
}

// lastStep describes the step that broke a rule.
func (x *explorer) lastStep() []string {
	c := x.decode(x.nodes[x.foundAt].key)
	if c.pass == nil {
		c = begin(c)
	}
	x.describing = true
	defer func() { x.describing = false }()
	r := x.runPass(c)
	return linesOf("usher", r.lines)
}

func linesOf(who string, lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = fmt.Sprintf("%-9s %s", who, line)
	}
	return out
}

// step describes how one state leads to another.
func (x *explorer) step(from, to int32) []string {
	x.describing = true
	defer func() { x.describing = false }()
	c := x.decode(x.nodes[from].key)
	goal := x.nodes[to].key
	if c.pass == nil && x.encode(begin(c)) == goal {
		return linesOf("usher", []string{"begins a pass"})
	}
	for _, h := range x.transitions(c) {
		if x.encode(h.next) == goal {
			return linesOf(h.actor.String(), h.lines)
		}
	}
	if x.nodes[from].op == to {
		r := x.runPass(c)
		lines := r.lines
		if len(c.pass.results) > 0 {
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, decides) })
		}
		if x.nodes[to].idle {
			lines = append(lines, "ends the pass")
		}
		return linesOf("usher", x.untilFirst(lines, len(r.chain) > 1))
	}
	if c.pass != nil && x.nodes[to].idle {
		return linesOf("usher", []string{"dies"})
	}
	return linesOf("usher", []string{"begins another pass on the caches of the first"})
}

// untilFirst keeps the lines of a pass that belong to its first request.
func (x *explorer) untilFirst(lines []string, more bool) []string {
	if !more {
		return lines
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, decides) {
			return lines[:i+1]
		}
	}
	return lines
}

// String names the actor.
func (a actor) String() string {
	return [...]string{"usher", "kubelet", "operator", "time", "user", "fate", "crash"}[a]
}

// picture describes a state.
func (x *explorer) picture(c *cluster) []string {
	var out []string
	if set := setOf(c.objects); set != nil {
		out = append(out, fmt.Sprintf("CloneSet %s: %s", set.Name, describeSpec(set)))
	}
	for _, object := range model.Sorted(c.objects[model.Pods]) {
		pod, _ := object.(*corev1.Pod)
		facts := []string{string(model.State(pod)), "of " + hash(pod.Labels[apps.LabelRevision]), imagesOf(pod)}
		for _, kind := range []corev1.PodConditionType{corev1.PodReady, apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady} {
			if status := model.Condition(pod, kind).Status; status != "" {
				facts = append(facts, fmt.Sprintf("%s=%s", kind, status))
			}
		}
		if pod.DeletionTimestamp != nil {
			facts = append(facts, "being deleted")
		}
		for _, key := range sortedKeys(pod.Labels, nil) {
			if strings.HasPrefix(key, hookPrefix) {
				facts = append(facts, key+"="+pod.Labels[key])
			}
		}
		out = append(out, fmt.Sprintf("Pod %s: %s %v, runs %v", pod.Name, strings.Join(facts, ", "), pod.Finalizers, runOf(c.running, pod).Containers))
	}
	return out
}

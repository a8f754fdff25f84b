// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// answeredAfter is how long an unknown hook operator may take to answer a hook before the hook counts
// as unanswered.
const answeredAfter = time.Minute

// lonely groups the Pods of a workload that wait at a gate for the same key, which nobody answers.
type lonely struct {
	gate, key string
	pods      int
	example   string
	since     time.Time
}

// lonely groups the workload's Pods that have waited for an unknown hook operator for long.
func (w *Workload) lonely(now time.Time) []*lonely {
	byKey := map[string]*lonely{}
	for i := range w.Members {
		for _, wait := range w.Members[i].Waits {
			if !wait.Unanswered || !lasts(now, wait.Since) {
				continue
			}
			one := cmp.Or(byKey[wait.Gate+" "+wait.Key], &lonely{gate: wait.Gate, key: wait.Key, example: w.Members[i].Name})
			byKey[wait.Gate+" "+wait.Key] = one
			one.pods++
			one.since = list.Earliest(one.since, wait.Since)
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *lonely) int {
		return cmp.Or(strings.Compare(a.gate, b.gate), strings.Compare(a.key, b.key))
	})
}

func lasts(now, since time.Time) bool { return !since.IsZero() && now.Sub(since) >= answeredAfter }

// what returns one line for all of its Pods.
func (l *lonely) what() string {
	if l.gate == "" {
		return fmt.Sprintf("nobody removes the finalizer %s; terminating Pods that wait for that: %d, such as %s", l.key, l.pods, l.example)
	}
	return fmt.Sprintf("nobody answers the hook %s; Pods that wait for that at %s: %d, such as %s", l.key, l.gate, l.pods, l.example)
}

// noteLonely adds the unanswered hooks to the workload's problems.
func (w *Workload) noteLonely(now time.Time) {
	for _, l := range w.lonely(now) {
		w.Problems = append(w.Problems, Problem{Reason: regplan.ReasonHookUnanswered, Since: l.since, Message: l.what() +
			"; find out what should, or let Pods go with kubectl usher release"})
	}
}

// lonely finds hooks of CloneSets that a hook operator other than Usher's should answer, and that none
// answers.
func (e *examination) lonely() {
	inNamespace := map[string][]metav1.Object{}
	for _, object := range e.all {
		switch object.(type) {
		case *corev1.Pod, *usherv1alpha1.Registration:
			inNamespace[object.GetNamespace()] = append(inNamespace[object.GetNamespace()], object)
		}
	}
	for _, set := range Each[*apps.CloneSet](e.all) {
		w := Of(Gather(e.now, set, inNamespace[set.Namespace]))
		for _, l := range w.lonely(e.now) {
			if strings.Contains(l.key, usherv1alpha1.HookDomain) { // hooks reports it
				continue
			}
			what := cmp.Or(didYouMean(l.key, e.inNamespace(set.Namespace)), "find out what should")
			e.wrong(named("cloneset", set), "%s; %s, or let Pods go as kubectl usher why clone/%s -n %s says",
				l.what(), strings.TrimSuffix(what, "?"), set.Name, set.Namespace)
		}
	}
}

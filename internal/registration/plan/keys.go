// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// Keys of hooks that are not Usher's own are written through the Pod itself, where policies on Pods see them.

// +kubebuilder:rbac:groups="",resources=pods,verbs=patch

// Keys are labels and finalizers of users' choice that Usher may write. The zero value allows all.
type Keys struct {
	limited bool
	names   []string
}

// AllKeys stands for all keys in a list of them.
const AllKeys = "*"

// NewKeys reads a list of keys, such as example.com/drained, and of domains with their slash, such as
// example.com/.
func NewKeys(names []string) Keys {
	names = list.Only(list.Map(names, strings.TrimSpace), func(name string) bool { return name != "" })
	return Keys{limited: !slices.Contains(names, AllKeys), names: names}
}

// allow reports whether Usher may write the key.
func (k Keys) allow(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return !k.limited || usherv1alpha1.OwnKey(key) || slices.Contains(k.names, key) || slices.Contains(k.names, domain+"/")
}

// Refusal is the API server's answer to a write of keys of users' choice.
type Refusal struct {
	// Keys are what the write had, sorted; Message is the answer.
	Keys    []string
	Message string
	// Until is when Usher tries again.
	Until time.Time
}

// writes decides whether a hook that is to be answered can be: try means that its key is written now. While
// the API server refuses it, somebody waits even then.
func (ix *index) writes(p *pod, h hook) (waiting []Waiting, try bool, next time.Time) {
	refusal, refused := ix.Refusals[p.UID]
	reason, message := ReasonKeyNotAllowed, "Usher may not write the key: "+allowRemedy(h.key.name)
	switch {
	case usherv1alpha1.OwnKey(h.key.name):
		return nil, true, time.Time{}
	case !ix.HookKeys.allow(h.key.name):
	case !refused || !slices.Contains(refusal.Keys, h.key.name):
		return nil, true, time.Time{}
	default:
		try = !ix.Now.Before(refusal.Until)
		reason, message = ReasonKeyRefused, fmt.Sprintf("the API server refuses %s on the Pod: %s; "+
			"name another key in the hook, or change what refuses it", h.key.name, refusal.Message)
		if !try {
			next = refusal.Until
		}
	}
	since := p.waitsSince(h.gate)
	return list.Map(h.answerers, func(r *registration) Waiting {
		w := Waiting{Registration: r.Name, Pod: p.Name, Gate: h.gate, Key: h.key.name, Since: since}
		return w.because(reason, message)
	}), try, next
}

// allowRemedy is what an admin does about a key that is not allowed.
func allowRemedy(key string) string {
	return fmt.Sprintf("add %s to --hook-keys (hooks.keys of the chart), or name a key of usher.dev in the hook", key)
}

// freed are the finalizers of a terminating Pod that Usher can remove now.
func (ix *index) freed(p *pod, own []string) (freed []string, waiting []Waiting, next time.Time) {
	for _, name := range own {
		answerers := list.Only(p.all(), func(r *registration) bool { return slices.Contains(r.hookFinalizers(p.Pod), name) })
		held := hook{gate: GateDeletion, key: hookKey{name: name, finalizer: true}, answerers: answerers}
		waits, try, at := ix.writes(p, held)
		waiting, next = append(waiting, waits...), list.Earliest(next, at)
		if try {
			freed = append(freed, name)
		}
	}
	return freed, waiting, next
}

// notAllowed finds the keys of the CloneSet that the Registration answers, and that Usher may not write.
func (ix *index) notAllowed(r *registration, set *appsv1alpha1.CloneSet) (found []Finding) {
	for _, g := range gatesOf(r, set) {
		for _, key := range r.answeredKeys(g.named, g.hook) {
			if keyIn(g.hook, key).used() && !ix.HookKeys.allow(key) {
				found = append(found, Finding{CloneSet: set, Reason: string(ReasonKeyNotAllowed), Message: fmt.Sprintf(
					"Usher may not write %s of spec.lifecycle.%s of CloneSet %s: %s", key, g.gate, set.Name, allowRemedy(key))})
			}
		}
	}
	return found
}

// Split parts a patch into what goes through the subresource status, and what goes through the Pod itself
// after that: keys of users' choice, and what must not change before them. As long as such a key holds the
// Pod, the record of its drain and Usher's finalizer stay, so that the next pass continues the drain.
func (p *PodPatch) Split() (own, chosen PodPatch) {
	own, chosen = *p, PodPatch{Pod: p.Pod, Labels: map[string]*string{}}
	if len(p.Chosen()) == 0 {
		return own, chosen
	}
	own.Labels = map[string]*string{}
	for key, value := range p.Labels {
		if usherv1alpha1.OwnKey(key) {
			own.Labels[key] = value
		} else {
			chosen.Labels[key] = value
		}
	}
	isOwn := func(r Release) bool { return usherv1alpha1.OwnKey(r.Key) }
	own.AddFinalizers, chosen.AddFinalizers = split(p.AddFinalizers, usherv1alpha1.OwnKey)
	own.Released, chosen.Released = split(p.Released, isOwn)
	own.RemoveFinalizers, chosen.RemoveFinalizers = nil, p.RemoveFinalizers
	own.DropDrain, chosen.DropDrain = false, p.DropDrain
	own.Drained, chosen.Drained = time.Time{}, p.Drained
	if p.Drain == nil { // else the record says that they are counted
		own.Results, chosen.Results = nil, p.Results
	}
	return own, chosen
}

// split separates what meets a condition from the rest.
func split[T any](all []T, meets func(T) bool) (met, rest []T) {
	return list.Only(all, meets), list.Only(all, func(one T) bool { return !meets(one) })
}

// Chosen are the keys of users' choice that the patch changes, sorted.
func (p *PodPatch) Chosen() []string {
	keys := slices.Concat(slices.Collect(maps.Keys(p.Labels)), p.AddFinalizers, p.RemoveFinalizers)
	return list.Only(distinct(keys), func(key string) bool { return !usherv1alpha1.OwnKey(key) })
}

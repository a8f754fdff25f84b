// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// claimMutants handle claims wrongly.
func claimMutants() []mutant {
	return []mutant{
		{name: "deletes claims before their Pod", caught: []string{ruleClaimFirst},
			change: func(c *Config) { c.Process.Planner = claimsFirst }},
		{name: "leaves claims that wait", caught: []string{ruleClaimsLeft},
			after: eachAction(func(a *plan.Action) bool {
				if a.Verb == plan.Create {
					a.Instance = ""
				}
				return true
			})},
		{name: "deletes the claims of Pods that failed", caught: []string{ruleClaimLost},
			after: func(s *plan.Snapshot, p *plan.Plan) {
				for i := range p.Actions {
					if a := &p.Actions[i]; a.Reason == plan.ReasonCleanUp && a.Verb == plan.Delete {
						a.Claims = held(s, a.Pod.Name)
					}
				}
			}},
		{name: "takes every claim that no Pod has for unwanted", caught: []string{ruleClaimLost},
			before: func(_ *Process, s *plan.Snapshot) { s.Spec.DisableClaimReuse = true }},
		{name: "forgets the claims of deleted Pods", caught: []string{ruleConverges},
			after: eachAction(func(a *plan.Action) bool {
				a.Claims = nil
				return a.Verb != plan.Discard
			})},
		{name: "never makes a claim that was lost", caught: []string{ruleSettles},
			after: eachAction(func(a *plan.Action) bool { return a.Verb != plan.Provide })},
	}
}

// claimsFirst deletes the claims of a Pod before the Pod.
func claimsFirst(p *Process, s *plan.Snapshot) plan.Plan {
	decided := plan.Make(s)
	for i := range decided.Actions {
		if a := &decided.Actions[i]; a.Verb == plan.Delete {
			for _, claim := range a.Claims {
				_ = p.server.Delete(p.name, model.Claims, client.ObjectKeyFromObject(claim), model.Deletion{})
			}
		}
	}
	return decided
}

// held lists the claims that carry the instance ID of a Pod.
func held(s *plan.Snapshot, pod string) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for _, claim := range s.Claims {
		if s.Set+"-"+claim.Labels[apps.LabelInstanceID] == pod && claim.DeletionTimestamp == nil {
			out = append(out, claim)
		}
	}
	return out
}

// TestCrashBetweenAPodAndItsClaims ends the process after each single write of a
// scale-in. If the Pod shows that the controller wanted it deleted, the next process
// deletes its claims; if not, the Pods of the next scale-out take them over. Either way
// none is left over in the end.
func TestCrashBetweenAPodAndItsClaims(t *testing.T) {
	in, out := step{time.Minute, "scales", "replicas 1"}, step{time.Minute, "scales", "replicas 3"}
	for name, c := range map[string]scenario{
		"its state shows it": {set: "replicas 3; claims data log; hooks preDelete", steps: []step{in}},
		"nothing shows it":   {set: "replicas 3; claims data log", steps: []step{in, out}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(crashAt int) *Simulation {
				config := steady()
				config.Process.CrashAt, config.Restart, config.Nodes.Stop = crashAt, 50*time.Millisecond, 20*time.Second
				s, v := c.play(config)
				if v != nil {
					t.Fatalf("crash after write %d: %v\n%s", crashAt, v, s.World.Story())
				}
				return s
			}
			for n := range play(0).processes[0].writes + 1 {
				s := play(n)
				if pods, claims := len(s.Pods()), len(s.Claims()); claims != 2*pods {
					t.Fatalf("crash after write %d leaves %d claims of %d Pods\n%s", n, claims, pods, s.World.Story())
				}
			}
		})
	}
}

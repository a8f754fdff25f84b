// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/usher-dev/usher/internal/view"
)

func whyCommand(s *session) *cobra.Command {
	var output string
	command := s.on(workloads, "why", func(ctx context.Context, t target) error {
		w, err := s.load(ctx, t)
		if err != nil {
			return err
		}
		return s.answer(output, w, func(p *page) { p.why(&w, t, time.Now()) })
	})
	return outputs(command, &output, "json", "yaml")
}

// why prints each wait with who answers it, worst first, then what holds the rollout.
func (p *page) why(w *view.Workload, t target, now time.Time) {
	pods, rest := worst(w.Members, mostPods)
	waiting := 0
	for _, pod := range pods {
		if len(pod.Waits) > 0 {
			waiting++
			p.whyPod(pod, now)
		}
	}
	for _, g := range groups(rest) {
		if g.waits != "" {
			p.line(g.colour(), "%s", g.text(now))
		}
	}
	for _, problem := range w.Problems {
		p.line(red, "%s: %s", problem.Reason, problem.Message)
	}
	if t.kind == kindPod {
		if waiting == 0 {
			p.line(plain, "pod/%s waits for nothing: it is %s, %s.", t.name, pods[0].State, readiness(pods[0]))
		}
		return
	}
	p.whyRollout(w, waiting)
}

func (p *page) whyPod(pod *view.Pod, now time.Time) {
	for i := range pod.Waits {
		wait := &pod.Waits[i]
		colour := plain
		if pod.Trouble {
			colour = red
		}
		p.line(colour, "Pod %s %s", pod.Name, waitText(wait, now))
		for _, fact := range []struct{ name, value string }{
			{"Key", strings.TrimSpace(wait.Key + " " + gateText(wait.Gate))},
			{"Answers", answerers(wait)},
			{"Deadline", deadline(wait)},
			{"Next", wait.Next},
		} {
			if fact.value != "" {
				p.line(plain, "  %-9s %s", fact.name, fact.value)
			}
		}
	}
}

func gateText(gate string) string {
	if gate == "" || gate == "container" {
		return ""
	}
	return "(" + gate + ")"
}

func answerers(w *view.Wait) string {
	if len(w.Registrations) == 0 {
		return ""
	}
	return fmt.Sprintf("Registration %s, when Registry %s confirms", strings.Join(w.Registrations, ", "), strings.Join(w.Registries, ", "))
}

func deadline(w *view.Wait) string {
	if w.Deadline.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s, then %s", w.Deadline.UTC().Format(time.RFC3339), w.OnDeadline)
}

// whyRollout says what holds the rollout as a whole.
func (p *page) whyRollout(w *view.Workload, waiting int) {
	name := strings.ToLower(w.Kind) + "/" + w.Name
	switch {
	case w.Phase == view.PhaseDone && waiting == 0:
		p.line(plain, "%s waits for nothing: %d of %d Pods serve.", name, w.Available, w.Desired)
		if w.Budget != nil && w.Budget.Partition > 0 {
			p.line(plain, "  spec.updateStrategy.partition keeps Pods at the old revision: %d", w.Budget.Partition)
			p.line(plain, "  Next      kubectl usher partition clone/%s 0 -n %s", w.Name, w.Namespace)
		}
	case w.Phase == view.PhasePaused:
		p.line(plain, "%s is paused: spec.updateStrategy.paused", name)
		p.line(plain, "  Next      kubectl usher resume clone/%s -n %s", w.Name, w.Namespace)
	case w.Phase == view.PhaseStalled:
		p.line(red, "%s has not moved for spec.progressDeadlineSeconds", name)
		p.line(plain, "  Next      kubectl usher undo clone/%s -n %s", w.Name, w.Namespace)
	case w.Budget != nil && w.Budget.Unavailable >= w.Budget.MaxUnavailable && w.Phase == view.PhaseUpdating:
		p.line(plain, "%s updates no other Pod now: %d of %d Pods may be unavailable, and %d are", name,
			w.Budget.MaxUnavailable, w.Desired, w.Budget.Unavailable)
	case w.Phase == view.PhaseUpdating:
		p.line(plain, "%s is on its way: %d of %d Pods are updated, and %d of %d serve.", name, w.Updated, w.ToUpdate, w.Available, w.Desired)
	}
}

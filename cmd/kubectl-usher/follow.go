// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/view"
)

// wait follows a rollout until it is done. It returns an error if the rollout needs somebody to act
// before it can be done, or is not done within that time; 0 means for ever.
func (s *session) wait(ctx context.Context, t target, within time.Duration) error {
	if t.kind == kindPod {
		return errors.New("--wait needs a workload, such as clone/web: a Pod has no rollout")
	}
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	var last view.Workload
	var ended error
	err := s.watch(ctx, t, func(w *view.Workload) (over bool) {
		last = *w
		over, ended = verdictOn(w)
		return over
	})
	if errors.Is(err, context.DeadlineExceeded) && last.Name != "" {
		return notDone(&last, within, err)
	}
	if err != nil {
		return err
	}
	return ended
}

// notDone returns the error of a wait whose time is over.
func notDone(w *view.Workload, within time.Duration, err error) error {
	if lost := (*silent)(nil); errors.As(err, &lost) {
		return fmt.Errorf("%s was not done when last seen: %s; it was %s", nameOf(&w.Summary), noAnswer(view.Clock{Now: time.Now()}, lost.since), progress(w))
	}
	return fmt.Errorf("%s is not done after %s: it is %s; %s", nameOf(&w.Summary), within, progress(w), askWhy(&w.Summary))
}

// verdictOn reports whether a rollout is over; err says how, unless it is done.
func verdictOn(w *view.Workload) (over bool, err error) {
	name := nameOf(&w.Summary)
	switch w.Phase {
	case view.PhaseDone:
		return true, nil
	case view.PhaseStalled, view.PhaseInvalid, view.PhaseDegraded:
		return true, fmt.Errorf("%s is %s; %s", name, progress(w), askWhy(&w.Summary))
	case view.PhasePaused:
		return true, fmt.Errorf("%s is paused, and goes on when somebody resumes it", name)
	case view.PhaseDeleting:
		return true, fmt.Errorf("%s is being deleted", name)
	}
	return false, nil
}

// askWhy names the command that shows what a workload waits for.
func askWhy(w *view.Summary) string {
	return fmt.Sprintf("kubectl usher why %s -n %s says what it waits for", nameOf(w), w.Namespace)
}

// progress returns a line that says how far a rollout is.
func progress(w *view.Workload) string {
	if w.Kind == kindPod.Kind {
		return "there"
	}
	return fmt.Sprintf("%s: %d of %d updated, %d of %d available", w.Phase, w.Updated, w.ToUpdate, w.Available, w.Desired)
}

// changes prints the changes of a workload, a line for each, into a pipe or a log.
type changes struct {
	began time.Time
	// printed is the last line of each Pod, and of the workload.
	printed map[string]string
	// silent means that the last line said that the API server does not answer.
	silent bool
}

// printSilence prints when the API server stops answering, and when it answers again.
func (c *changes) printSilence(p *page, silence *failure, now time.Time) {
	if (silence != nil) == c.silent {
		return
	}
	if c.silent = silence != nil; c.silent {
		c.line(p, now, red, noAnswer(p.clock(now), silence.at)+":", silence.err.Error())
		return
	}
	c.line(p, now, plain, "the API server", "answers again")
}

// said is a line about a workload, a problem of it, or a Pod. A later line with the same key replaces
// it.
type said struct {
	colour, key, who, text string
	// quiet means that it is left out at first.
	quiet bool
}

// sayings returns the lines about a workload, without times, which change all the time.
func sayings(w *view.Workload) []said {
	name := nameOf(&w.Summary)
	about := progress(w)
	if w.Unseen != nil {
		about += "; " + unseen(&view.Unseen{}, view.Clock{})
	}
	all := []said{{key: name, who: name, text: about}}
	for _, problem := range w.Problems {
		text := problem.Reason + ": " + problem.Message
		all = append(all, said{colour: red, key: text, who: name, text: text})
	}
	for i := range w.Members {
		pod := &w.Members[i]
		key := "pod/" + pod.Name
		all = append(all, said{colourOf(pod.Rank()), key, key, podText(pod), pod.Rank() == view.RankServes})
	}
	return all
}

// print prints the lines that differ from the last ones. The first time it leaves out Pods that just
// serve.
func (c *changes) print(p *page, w *view.Workload, now time.Time) {
	first, before := c.printed == nil, c.printed
	if c.began.IsZero() {
		c.began = now
	}
	c.printed = map[string]string{}
	for _, one := range sayings(w) {
		c.printed[one.key] = one.text
		if before[one.key] != one.text && (!first || !one.quiet) {
			c.line(p, now, one.colour, one.who, one.text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, there := c.printed[key]; !there && strings.HasPrefix(key, "pod/") {
			c.line(p, now, plain, key, "is gone")
		}
	}
}

func (c *changes) line(p *page, now time.Time, colour, who, what string) {
	p.line(colour, "%6.1fs  %s %s", now.Sub(c.began).Seconds(), who, what)
}

// podText returns the state of a Pod, without times, which change all the time.
func podText(p *view.Pod) string {
	text := p.State + ", " + readiness(p)
	if len(p.Waits) > 0 {
		text += ": " + p.Waits[0].What
	}
	return text
}

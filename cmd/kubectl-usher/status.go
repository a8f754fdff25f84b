// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/usher-dev/usher/internal/view"
)

type statusOptions struct {
	output string
	watch  bool
	// until ends a watch; nil watches until it is interrupted.
	until func(*view.Workload) bool
}

func statusCommand(s *session) *cobra.Command {
	var o statusOptions
	command := s.on(workloads, "status", func(ctx context.Context, t target) error {
		if o.watch {
			return s.watch(ctx, t, &o)
		}
		w, err := s.load(ctx, t)
		if err != nil {
			return err
		}
		return s.page().print(&w, &o)
	})
	command.Flags().BoolVarP(&o.watch, "watch", "w", false, "show it anew at each change until it is interrupted")
	return outputs(command, &o.output, "json", "yaml", "wide", "name")
}

// print prints a workload in the format that was asked for.
func (p *page) print(w *view.Workload, o *statusOptions) error {
	var names []string
	for i := range w.Members {
		names = append(names, "pod/"+w.Members[i].Name)
	}
	return p.answer(o.output, w, func(p *page) { p.status(w, time.Now(), o.output == "wide") }, names...)
}

// status prints a workload for people.
func (p *page) status(w *view.Workload, now time.Time, wide bool) {
	p.line(bold, "%s %s/%s  %s", w.Kind, w.Namespace, w.Name, phase(w, now))
	if w.Kind != "Pod" {
		p.line(plain, "Pods      %d of %d, %d ready, %d available, %d of %d updated", w.Pods, w.Desired, w.Ready, w.Available, w.Updated, w.ToUpdate)
	}
	if b := w.Budget; b != nil {
		p.line(plain, "Budget    %s; %s", b, b.Method)
	}
	for i := range w.Revisions {
		p.line(plain, "%s", revisionLine(&w.Revisions[i]))
	}
	for _, problem := range w.Problems {
		p.line(red, "%s: %s", problem.Reason, problem.Message)
	}
	if len(w.Members) == 0 {
		return
	}
	p.line(plain, "")
	p.members(w, now, wide)
}

func phase(w *view.Workload, now time.Time) string {
	text := string(w.Phase)
	if !w.Deadline.IsZero() {
		text += fmt.Sprintf(", stalls in %s", ago(w.Deadline, now))
	}
	return text
}

func revisionLine(r *view.Revision) string {
	role := "Revision"
	switch {
	case r.Update:
		role = "Update"
	case r.Current:
		role = "Current"
	}
	return strings.TrimRight(fmt.Sprintf("%-9s %s (%d)  %s  %s", role, r.Name, r.Pods, strings.Join(r.Images, " "), r.Cause), " ")
}

func readiness(p *view.Pod) string {
	switch {
	case p.Available:
		return "available"
	case p.Ready:
		return "ready"
	}
	return "not ready"
}

func podRow(p *view.Pod, now time.Time, wide bool) row {
	r := row{cells: []string{
		p.Name, cmp.Or(p.Revision, "-"), p.State, yesNo(p.Ready), cmp.Or(registered[p.Registered], "-"), strconv.Itoa(p.Restarts), ago(now, p.Created),
	}}
	if wide {
		r.cells = append(r.cells, cmp.Or(p.Node, "-"), strings.Join(p.Images, " "))
	}
	waits := "-"
	if len(p.Waits) > 0 {
		waits = waitText(&p.Waits[0], now)
	}
	if more := len(p.Waits) - 1; more > 0 {
		waits += fmt.Sprintf(" (and %d more)", more)
	}
	r.cells = append(r.cells, waits)
	if p.Trouble {
		r.colour = red
	}
	return r
}

var registered = map[string]string{"True": "yes", "False": "no", "Unknown": "?"}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// waitText says what a Pod waits for, how long already, and until when.
func waitText(w *view.Wait, now time.Time) string {
	text := w.What
	if !w.Since.IsZero() {
		text += ", since " + ago(now, w.Since)
	}
	switch {
	case w.Until.After(now):
		text += ", " + ago(w.Until, now) + " to go"
	case !w.Deadline.IsZero() && now.After(w.Deadline):
		text += ", past its deadline"
	case !w.Deadline.IsZero():
		text += ", deadline in " + ago(w.Deadline, now)
	}
	return text
}

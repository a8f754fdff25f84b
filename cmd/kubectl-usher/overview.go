// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

// overview prints every workload that concerns Usher, of the session's namespace or of all.
func (s *session) overview(ctx context.Context, everywhere bool) error {
	if everywhere {
		s = s.in("")
	}
	var all []metav1.Object
	for _, kind := range shownKinds {
		some, err := s.list(ctx, kind, client.InNamespace(s.namespace))
		switch {
		case apierrors.IsForbidden(err) && kind != kindPod:
			printf(s.ErrOut, "not looked at: %s: you may not list them%s\n", plural(kind), where(s.namespace))
		case err != nil && !meta.IsNoMatchError(err):
			return failed(err, "list %s", plural(kind))
		}
		all = append(all, some...)
	}
	found := view.Shown(time.Now(), all)
	worstFirst(found)
	names := list.Map(found, func(w view.Workload) string { return nameOf(&w.Summary) })
	return s.page().answer(found, func(p *page) {
		if len(found) == 0 {
			printf(s.ErrOut, "There is no CloneSet, and no workload with a Registration%s; https://usher.dev/first-deployment.html shows how to make one.\n", where(s.namespace))
			return
		}
		p.overview(found, everywhere, time.Now())
	}, names...)
}

// where names a namespace; "" is all.
func where(namespace string) string {
	if namespace == "" {
		return " in all namespaces"
	}
	return " in namespace " + namespace
}

// nameOf returns the name that people type for a workload.
func nameOf(w *view.Summary) string {
	if w.Kind == kindCloneSet.Kind {
		return shortName(kindCloneSet) + "/" + w.Name
	}
	return strings.ToLower(w.Kind) + "/" + w.Name
}

func worstFirst(all []view.Workload) {
	slices.SortStableFunc(all, func(a, b view.Workload) int { return cmp.Compare(a.Rank(), b.Rank()) })
}

// overview prints a line for each workload.
func (p *page) overview(all []view.Workload, everywhere bool, now time.Time) {
	header := []string{"WORKLOAD", "STATUS", "UPDATED", "AVAILABLE", "WAITS FOR"}
	if everywhere {
		header = append([]string{"NAMESPACE"}, header...)
	}
	rows := list.Map(all, func(w view.Workload) row {
		r := row{cells: []string{
			nameOf(&w.Summary), string(w.Phase), fmt.Sprintf("%d/%d", w.Updated, w.ToUpdate), fmt.Sprintf("%d/%d", w.Available, w.Desired),
			overviewWait(&w, p.clock(now)),
		}}
		if everywhere {
			r.cells = append([]string{w.Namespace}, r.cells...)
		}
		if w.Rank() == view.RankTrouble {
			r.colour = red
		}
		return r
	})
	p.table(header, rows)
}

// overviewWait returns the first wait of a workload, and how many Pods wait.
func overviewWait(w *view.Workload, clock view.Clock) string {
	worst := w.Worst()
	switch {
	case len(w.Problems) > 0:
		return w.Problems[0].Reason + ": " + w.Problems[0].Message
	case w.Unseen != nil:
		return unseen(w.Unseen, clock)
	case worst == nil:
		return "-"
	}
	text := worst.Name + " " + waitText(&worst.Waits[0], clock)
	if more := len(list.Only(w.Members, func(p view.Pod) bool { return len(p.Waits) > 0 })) - 1; more > 0 {
		text += ", and " + list.Count(more, "more Pod")
	}
	return text
}

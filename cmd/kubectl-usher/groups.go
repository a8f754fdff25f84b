// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/view"
)

// mostPods is how many Pods a screen lists one by one; of more, it lists the worst, and counts
// all by what they have in common.
const mostPods = 40

// worstFirst returns the Pods by rank, and among equals by name.
func worstFirst(pods []view.Pod) []*view.Pod {
	sorted := make([]*view.Pod, len(pods))
	for i := range pods {
		sorted[i] = &pods[i]
	}
	slices.SortStableFunc(sorted, func(a, b *view.Pod) int { return cmp.Compare(a.Rank(), b.Rank()) })
	return sorted
}

// worst returns the Pods to list one by one, in trouble first, and the others: of more than
// limit Pods, all that just serve.
func worst(pods []view.Pod, limit int) (shown, rest []*view.Pod) {
	sorted := worstFirst(pods)
	at := len(sorted)
	if at > limit {
		at = limit
		if serves := slices.IndexFunc(sorted, func(p *view.Pod) bool { return p.Rank() == view.RankServes }); serves >= 0 {
			at = min(at, serves)
		}
	}
	return sorted[:at], sorted[at:]
}

// group is Pods that have the same state, revision and wait.
type group struct {
	rank     view.Rank
	what     string
	waits    string
	since    time.Time
	pods     int
	examples []string
}

func groupOf(p *view.Pod) group {
	g := group{rank: p.Rank(), what: cmp.Or(p.Revision, "-") + ", " + p.State}
	if len(p.Waits) > 0 {
		g.waits, g.since = p.Waits[0].What, p.Waits[0].Since
	}
	if len(p.Waits) == 0 || p.Waits[0].Gate != "container" {
		// What follows is about one Pod, such as what a registry has answered.
		g.waits, _, _ = strings.Cut(g.waits, ": ")
		g.what += ", " + readiness(p)
	}
	return g
}

// groups counts Pods that have the same in common, the worst first.
func groups(pods []*view.Pod) []*group {
	byKey := map[string]*group{}
	var all []*group
	for _, p := range pods {
		g := groupOf(p)
		key := fmt.Sprintf("%d %s %s", g.rank, g.what, g.waits)
		known := byKey[key]
		if known == nil {
			known = &g
			byKey[key] = known
			all = append(all, known)
		}
		known.pods++
		if !g.since.IsZero() && g.since.Before(known.since) {
			known.since = g.since
		}
		if len(known.examples) < 2 {
			known.examples = append(known.examples, p.Name)
		}
	}
	slices.SortStableFunc(all, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.pods, a.pods), strings.Compare(a.what, b.what), strings.Compare(a.waits, b.waits))
	})
	return all
}

// members prints the Pods: a few one by one, of many all in groups, and then the worst.
func (p *page) members(w *view.Workload, now time.Time, wide bool) {
	limit := mostPods
	if p.height > 0 {
		limit = min(limit, p.room()-1) // a header
	}
	if len(w.Members) > limit {
		p.groups(groups(worstFirst(w.Members)), now)
		limit = mostPods
		if p.height > 0 {
			limit = min(limit, p.room()-2) // an empty line, and a header
		}
	}
	shown, _ := worst(w.Members, max(limit, 0))
	if len(shown) == 0 {
		return
	}
	if len(shown) < len(w.Members) {
		p.line(plain, "")
	}
	rows := make([]row, 0, len(shown))
	for _, pod := range shown {
		rows = append(rows, podRow(pod, now, wide))
	}
	header := []string{"POD", "REVISION", "STATE", "READY", "REGISTERED", "RESTARTS", "AGE", "WAITS FOR"}
	if wide {
		header = append(header[:7:7], "NODE", "IMAGES", "WAITS FOR")
	}
	p.table(header, rows)
}

// groups prints groups, as many as the screen has room for.
func (p *page) groups(all []*group, now time.Time) {
	for i, g := range all {
		if p.height > 0 && p.room() <= 1 && i < len(all)-1 {
			more := 0
			for _, other := range all[i:] {
				more += other.pods
			}
			p.line(dim, "%d Pods in %d more groups", more, len(all)-i)
			return
		}
		p.line(g.colour(), "%s", g.text(now))
	}
}

func (g *group) colour() string {
	switch g.rank {
	case view.RankTrouble:
		return red
	case view.RankServes:
		return dim
	}
	return plain
}

func (g *group) text(now time.Time) string {
	text := fmt.Sprintf("%d Pods: %s", g.pods, g.what)
	if g.waits == "" {
		return text
	}
	text += ", " + g.waits
	if !g.since.IsZero() {
		text += ", the first since " + ago(now, g.since)
	}
	return text + ", such as " + strings.Join(g.examples, ", ")
}

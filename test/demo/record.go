// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/test/stage"
)

// markLength is how long a mark of lost requests lasts, in milliseconds.
const markLength = 100

// record records how everything is, and the requests that were lost since the last time.
func (b *board) record() {
	if b.ended {
		return
	}
	marks := map[string]map[string][]page.Mark{} // by workload and Pod
	for _, l := range b.losses[b.recorded:] {
		pod, lane := b.at(l.Addr, l.At)
		if lane == nil {
			pod = "" // The caller knew none.
		}
		if marks[l.of.name] == nil {
			marks[l.of.name] = map[string][]page.Mark{}
		}
		at, of := b.recorder.Since(l.At), marks[l.of.name]
		if last := len(of[pod]) - 1; last >= 0 && at < of[pod][last].At+markLength {
			of[pod][last].Count++
			continue
		}
		of[pod] = append(of[pod], page.Mark{At: at, Kind: page.MarkLost, Count: 1, Text: l.Reason})
	}
	b.recorded = len(b.losses)
	seen := []page.Seen{}
	for _, name := range slices.Sorted(maps.Keys(b.workloads)) {
		seen = append(seen, page.Seen{Workload: *b.workloads[name], Marks: marks[name]})
	}
	if err := b.server.Observe(b.now(), "", seen); err != nil {
		b.say("the page: %v", err)
	}
}

// recordings are what happened in a run: where every hook is on, or none, and where not all
// are.
func (r *run) recordings() (all []page.Run) {
	var whole page.Run
	r.board.Change(func() {
		r.board.record()
		whole, r.board.ended = r.board.recorder.Recording().Runs[0], true
	})
	for _, joinsOnly := range []bool{false, true} {
		part := whole
		part.Title, part.Sets = "H"+title(r.hooks)[1:], nil
		if joinsOnly {
			part.Title = "preNormal hook alone"
		}
		for _, a := range r.actors {
			at := slices.IndexFunc(whole.Sets, func(s page.Set) bool { return s.ID == a.set.GetKind()+"/"+namespace+"/"+a.name })
			if at < 0 || a.joinsOnly != joinsOnly {
				continue
			}
			set, sent := whole.Sets[at], stage.Thousands(a.client.Report().Total().Sent)
			part.Sets = append(part.Sets, page.Set{
				ID: set.ID, Title: a.set.GetKind() + " " + a.name, Text: a.about + " · " + sent + " requests",
				Registries: set.Registries, Marks: set.Marks, Lanes: set.Lanes,
			})
		}
		if len(part.Sets) > 0 {
			all = append(all, part)
		}
	}
	return all
}

// write leaves a recording behind as one page.
func write(path string, recording *page.Recording) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the page: %w; choose another file with -page", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return page.WriteFile(file, recording)
}

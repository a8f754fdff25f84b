// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"time"
)

// measured is one line of the footprint.
type measured struct{ what, found, from string }

// lines formats the footprint for people, without what was not measured.
func (f Footprint) lines() []measured {
	list := []measured{
		{"image", mebibytes(f.Image), "the archive that `make image` makes for one platform, layers compressed"},
		{"program in it", mebibytes(f.Program), "its file"},
	}
	for _, i := range f.Installations {
		list = append(list, measured{fmt.Sprintf("`%s` to ready", i.Way), seconds(i.Ready),
			"from the command of docs/install.md until two replicas are ready and one leads; the image is on the node"})
	}
	for _, i := range f.Installations {
		list = append(list,
			measured{fmt.Sprintf("process to leading, after `%s`", i.Way), seconds(i.StartLeading), "from the start of the first replica's process to the acquireTime of the lease"},
			measured{fmt.Sprintf("process to ready, after `%s`", i.Way), seconds(i.StartReady), "from the start of the last replica's process until its Pod is ready; the probe looks every 5 s"})
	}
	if f.Idle.During > 0 {
		list = append(list, f.Idle.lines("idle", "no CloneSet yet")...)
	}
	if f.Loaded.During > 0 {
		list = append(list, f.Loaded.lines("loaded", "the stories")...)
	}
	return list
}

func (u Usage) lines(when, what string) []measured {
	span := fmt.Sprintf("%s, over %s", what, seconds(u.During))
	return []measured{
		{when + ": CPU of all replicas", fmt.Sprintf("%.1f %% of a processor", 100*u.CPU.Seconds()/u.During.Seconds()), fmt.Sprintf("%s: %s of `/proc/PID/stat`, %d processes", span, seconds(u.CPU), u.Processes)},
		{when + ": memory of the replica with most", mebibytes(u.Memory), span + ": resident at the end, `/proc/PID/statm`"},
		{when + ": peak of the replica with most", mebibytes(u.Peak), span + ": `VmHWM` since its start"},
	}
}

// footprintFile is the document below the checkout that contains the footprint.
const footprintFile = "docs/performance.md"

// The marks between which it is written.
const (
	footprintBegin = "<!-- e2e: footprint, written by make e2e ARGS=-report -->"
	footprintEnd   = "<!-- e2e: end of the footprint -->"
)

// markdown is the footprint as a table.
func (f Footprint) markdown(now time.Time) string {
	text := fmt.Sprintf("Measured on %s.\n\n| What | Found | How |\n|---|---:|---|\n", now.UTC().Format(time.DateOnly))
	for _, m := range f.lines() {
		text += fmt.Sprintf("| %s | %s | %s |\n", m.what, m.found, m.from)
	}
	return text
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// SPDX-License-Identifier: Apache-2.0

// Package progress shows long work to a person: a line for each task that has ended. It has no live
// progress bars, so that logs and terminals get the same lines.
package progress

import (
	"fmt"
	"os"
	"time"
)

// Sink takes lines. It must be quick and safe for concurrent use. A nil Sink is allowed
// everywhere and drops them.
type Sink func(line string)

// Line shows a line.
func (s Sink) Line(format string, args ...any) {
	if s != nil {
		s(fmt.Sprintf(format, args...))
	}
}

// Task does a task, and then shows the detail that do returns, and the time that it took.
func (s Sink) Task(name string, do func() (detail string, err error)) error {
	began := time.Now()
	detail, err := do()
	if err != nil {
		detail = "failed"
	}
	s.Line("%s: %s, %s", name, detail, time.Since(began).Round(100*time.Millisecond))
	return err
}

// Show returns a sink that writes lines to a file.
func Show(out *os.File) Sink {
	return func(line string) {
		_, _ = fmt.Fprintln(out, line) // If the screen is gone, the work continues.
	}
}

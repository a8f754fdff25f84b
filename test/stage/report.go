// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
)

// Splice writes a text between the marks of a document of the checkout.
func Splice(document, begin, end, report string) error {
	root, err := checkout.Find()
	if err != nil {
		return err
	}
	path := filepath.Join(root, document)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("write the report %s: put %s and %s where the table belongs", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+report+end+after), 0o644)
}

// Usage is the CPU time that a run and the machine had used at its start: latencies
// measured on a machine that is busy with other work mean little.
type Usage struct {
	began         time.Time
	ours, machine time.Duration
}

// NewUsage reads the usage of this process and of its children that have ended.
func NewUsage() (Usage, error) {
	l := Usage{began: time.Now()}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var used syscall.Rusage
		if err := syscall.Getrusage(who, &used); err != nil {
			return l, fmt.Errorf("read the CPU time of the run: %w", err)
		}
		l.ours += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	machine, err := process.Table{}.MachineCPU()
	l.machine = machine
	return l, err
}

// Text returns the usage since then. Call it when everything that the run started has ended.
func (l Usage) Text() (string, error) {
	now, err := NewUsage()
	took := now.began.Sub(l.began)
	others := (now.machine - l.machine) - (now.ours - l.ours)
	return fmt.Sprintf("It took %s; of the %d processors other programs took %.0f %% meanwhile.", took.Round(time.Second),
		runtime.NumCPU(), max(0, 100*others.Seconds()/took.Seconds()/float64(runtime.NumCPU()))), err
}

// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// clockAhead is the environment variable that moves a replica's clock.
	clockAhead = "SOAK_CLOCK_AHEAD"
	// leastApart and mostApart bound the difference between the two replicas' clocks.
	leastApart, mostApart = time.Second, 3 * time.Second
)

// apart returns how far the second replica's clock is ahead of the machine's.
func (s *soak) apart() time.Duration {
	if s.options.Before != "" {
		return 0
	}
	random := s.random(10)
	d := (leastApart + within(random, mostApart-leastApart)).Round(100 * time.Millisecond)
	if random.IntN(2) == 0 {
		return -d
	}
	return d
}

// startCluster starts the control plane, and compiles Usher with a clock that can be moved: a
// machine has only one.
func (s *soak) startCluster(ctx context.Context, st *stage.Stage) (err error) {
	usher := st.Usher()
	if s.options.HA {
		st.HA = &cluster.HA{RoundTrip: peersApart}
	}
	if s.options.Before != "" { // One version's clock alone would be moved.
		return st.StartCluster(ctx, "", usher, st.Web())
	}
	st.AuditPolicy = writesPolicy
	if usher.ModFile, err = moveClock(ctx, usher.Module, st.Path("clock")); err != nil {
		return err
	}
	return st.StartCluster(ctx, auditLog(st), usher, st.Web())
}

// auditLog is the file with Usher's writes.
func auditLog(st *stage.Stage) string { return st.Path("writes.log") }

// clockLibrary is the module with the clock of Usher and its libraries.
const clockLibrary = "k8s.io/utils"

// moveClock copies that library, with another clock, and a module's go.mod that requires the copy.
func moveClock(ctx context.Context, module, dir string) (modFile string, err error) {
	found, err := fetch.Run(ctx, module, "go", "list", "-m", "-f", "{{.Dir}}", clockLibrary)
	if err != nil {
		return "", err
	}
	library := filepath.Join(dir, "library")
	if err := os.CopyFS(library, os.DirFS(strings.TrimSpace(found))); err != nil {
		return "", err
	}
	if err := editClock(filepath.Join(library, "clock", "clock.go")); err != nil {
		return "", err
	}
	modFile = filepath.Join(dir, "go.mod")
	if _, err := fetch.Run(ctx, module, "cp", "go.mod", "go.sum", dir); err != nil {
		return "", err
	}
	_, err = fetch.Run(ctx, module, "go", "mod", "edit", "-replace="+clockLibrary+"="+library, modFile)
	return modFile, err
}

func editClock(file string) error {
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(source)
	for _, change := range [][2]string{
		{`import "time"`, `import ("os"; "time"); var ahead, _ = time.ParseDuration(os.Getenv("` + clockAhead + `"))`},
		{"return time.Now()\n", "return time.Now().Add(ahead)\n"},
		{"return time.Since(ts)\n", "return time.Since(ts) + ahead\n"},
	} {
		if strings.Count(text, change[0]) != 1 {
			return fmt.Errorf("%s does not have %q just once: change editClock", file, change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	if err := os.Remove(file); err != nil { // it cannot be written
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

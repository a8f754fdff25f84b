// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

var update = flag.Bool("update", false, "write golden files")

// TestLogOfAPod holds the log of one Pod's life at the default level: it is registered,
// drained while a registry is down, updated, registered again, and deregistered.
func TestLogOfAPod(t *testing.T) {
	s := newSimulation(t)
	settle := func(passes int) {
		for range passes {
			s.refresh()
			s.probe()
			s.pass()
			s.wait(2 * time.Second)
		}
	}
	enter := func(state apps.LifecycleState, passes int) {
		s.enter(s.pods()[0].DeepCopy(), state, "")
		settle(passes)
	}
	s.populate(1)
	settle(3)
	s.breaks("discovery", memory.Down)
	enter(apps.StatePreparingUpdate, 3)
	s.breaks("discovery", memory.None)
	settle(8)
	enter(apps.StateUpdated, 2)
	enter(apps.StateNormal, 2)
	enter(apps.StatePreparingDelete, 5)
	s.delete(s.pods()[0].DeepCopy())
	before := len(s.lines)
	settle(3)
	if more := s.lines[before:]; len(more) > 0 {
		t.Errorf("passes without a change log %q", more)
	}
	have := strings.Join(s.lines, "\n") + "\n"
	golden := filepath.Join("testdata", "log-of-a-pod.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(have), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("the log differs (-want +have); if that is intended, run with -update:\n%s", diff)
	}
}

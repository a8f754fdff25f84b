// SPDX-License-Identifier: Apache-2.0

package install

import (
	"flag"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files; read every line that changes")

// plays runs the commands of a golden file, the lines that begin with a dollar, and compares
// what they print, and how they end.
func (s *story) plays(name string) {
	s.Helper()
	name = filepath.Join("testdata", name)
	want, err := os.ReadFile(name)
	s.Must(err)
	var got strings.Builder
	for line := range strings.Lines(string(want)) {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		out, err := s.try(command)
		got.WriteString(line + out + "\n")
		if err != nil {
			got.WriteString("(" + err.Error() + ")\n")
		}
		got.WriteString("\n")
	}
	if *update {
		s.Must(os.WriteFile(name, []byte(got.String()), 0o600))
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" && !*update {
		s.Errorf("%s has changed (-want +got):\n%s", name, diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// A start fails if a component does not start, and in a directory that has files of others or is in
// use.
func TestFailedStart(t *testing.T) {
	dir := t.TempDir()
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: dir, ExtraArgs: cluster.ExtraArgs{build.APIServer: {"--no-such-flag"}}})
	var exit *process.ExitError
	if !errors.As(err, &exit) || exit.Name != build.APIServer || !strings.Contains(err.Error(), "no-such-flag") {
		t.Fatalf("error is %v, want the API server's with its last lines", err)
	}
	other := t.TempDir()
	checktest.NoError(t, os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o600))
	_, err = cluster.Start(t.Context(), cluster.Options{Dir: other})
	checktest.Says(t, "a directory with other files", err, "thesis.txt")
}

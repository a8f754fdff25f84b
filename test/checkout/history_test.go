// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/fetch"
)

// TestHistory: the release before is the newest one below the checkout's commit, and its files are those of its commit.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		settings := []string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}
		checktest.Must(fetch.Run(t.Context(), dir, "git", append(settings, args...)...))(t)
	}
	commit := func(text string, tags ...string) {
		t.Helper()
		checktest.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o600))
		git("add", "-A")
		git("commit", "-q", "-m", text)
		for _, tag := range tags {
			git("tag", tag)
		}
	}
	last := func(want string) {
		t.Helper()
		checktest.Same(t, "the release before", want, checktest.Must(LastTag(t.Context(), dir))(t))
	}
	git("init", "-q")
	commit("one", "other")
	last("")
	commit("two", "v0.9.0")
	last("") // a release is not its own predecessor
	commit("three", "v0.10.0")
	last("v0.9.0")
	commit("four")
	last("v0.10.0")

	out := filepath.Join(t.TempDir(), "before")
	checktest.NoError(t, Extract(t.Context(), dir, "v0.9.0", out))
	checktest.Same(t, "what the release before had", "two", string(checktest.Must(os.ReadFile(filepath.Join(out, "file")))(t)))
	checktest.Says(t, "the error", Extract(t.Context(), dir, "v0.1.0", out), "v0.1.0", "git fetch --unshallow")
}

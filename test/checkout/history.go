// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/usher-dev/usher/test/fetch"
)

// LastTag returns the newest tag of a version before the checkout's commit; empty if there is none.
func LastTag(ctx context.Context, root string) (string, error) {
	tags, err := fetch.Run(ctx, root, "git", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname")
	if err != nil {
		return "", fmt.Errorf("list the tags: %w", err)
	}
	first, _, _ := strings.Cut(tags, "\n")
	return first, nil
}

// Extract writes the files of a revision of the checkout at root into a directory, which it makes.
func Extract(ctx context.Context, root, revision, dir string) error {
	if _, err := fetch.Run(ctx, root, "git", "rev-parse", "--verify", "--quiet", revision+"^{commit}"); err != nil {
		return fmt.Errorf("this checkout does not have the commit %s: fetch its history, with git fetch --unshallow --tags: %w", revision, err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	archive := filepath.Join(dir, ".archive.tar")
	if _, err := fetch.Run(ctx, root, "git", "archive", "--output="+archive, revision); err != nil {
		return fmt.Errorf("read the commit %s: %w", revision, err)
	}
	if _, err := fetch.Run(ctx, dir, "tar", "-xf", archive); err != nil {
		return fmt.Errorf("unpack the commit %s: %w", revision, err)
	}
	return os.Remove(archive)
}

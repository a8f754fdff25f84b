// SPDX-License-Identifier: Apache-2.0

// Package fetch gets the programs that tests need and that are not part of the tree,
// and keeps them in a user's cache: Debian packages, which it unpacks without
// installing, programs that it builds from Go modules, and jars.
//
// What is downloaded or built is kept under a name that contains its version, so that
// another version is another directory, and is moved there when complete.
package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// CacheEnv names the environment variable that replaces the default cache directory,
// which is "usher" in os.UserCacheDir().
const CacheEnv = "USHER_CACHE"

// lockPoll is how often to try the lock of a directory while another process holds it.
const lockPoll = 200 * time.Millisecond

// Root is the user's cache directory.
func Root() (string, error) {
	if root := os.Getenv(CacheEnv); root != "" {
		return filepath.Abs(root)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder (set %s to choose one): %w", CacheEnv, err)
	}
	return filepath.Join(user, "usher"), nil
}

// Cache is the user's directory for something with that name and version. It need not
// exist.
func Cache(name, version string) (string, error) {
	root, err := Root()
	return filepath.Join(root, "conformance", name+"-"+version), err
}

// Once creates a file or a directory if it is missing: create makes it at a temporary path.
// If several processes need it, one creates it and the others wait.
func Once(ctx context.Context, path, what string, create func(ctx context.Context, temp string) error) (err error) {
	if exists(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the cache folder (set %s to choose another): %w", CacheEnv, err)
	}
	lock := flock.New(path + ".lock")
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return fmt.Errorf("wait for another process that makes %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if exists(path) {
		return nil
	}
	temp := path + ".making"
	if err := os.RemoveAll(temp); err != nil { // what a killed process left
		return err
	}
	began := time.Now()
	announce("%s: this is done once. It goes to %s.", what, path)
	if err := create(ctx, temp); err != nil {
		return fmt.Errorf("%s: %w", what, errors.Join(err, os.RemoveAll(temp)))
	}
	announce("%s: done in %s.", what, time.Since(began).Round(time.Second))
	return os.Rename(temp, path)
}

// announce shows slow steps to whoever waits for the test: on the terminal if there is one,
// because go test holds back a test's output until its end.
func announce(format string, args ...any) {
	out := os.Stderr
	if terminal, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		defer func() { _ = terminal.Close() }()
		out = terminal
	}
	_, _ = fmt.Fprintf(out, format+"\n", args...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// digest identifies what was made from the parts.
func digest(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(sum, "%d:%s\n", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}

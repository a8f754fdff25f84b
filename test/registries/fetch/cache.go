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
	"syscall"
	"time"
)

// CacheEnv names the environment variable that replaces the default cache directory,
// which is "usher" in os.UserCacheDir().
const CacheEnv = "USHER_CACHE"

// lockPoll is how often to try the lock of a directory while another process holds it.
const lockPoll = 200 * time.Millisecond

// Cache is the user's directory for something with that name and version. It need not
// exist.
func Cache(name, version string) (string, error) {
	root := os.Getenv(CacheEnv)
	if root == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the cache folder (set %s to choose one): %w", CacheEnv, err)
		}
		root = filepath.Join(user, "usher")
	}
	return filepath.Abs(filepath.Join(root, "conformance", name+"-"+version))
}

// Once creates the directory if it is missing: fill gets an empty one that becomes it.
// If several processes need it, one creates it and the others wait.
func Once(ctx context.Context, folder, what string, fill func(ctx context.Context, folder string) error) (err error) {
	if isFolder(folder) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return fmt.Errorf("make the cache folder (set %s to choose another): %w", CacheEnv, err)
	}
	unlock, err := lock(ctx, folder+".lock")
	if err != nil {
		return fmt.Errorf("wait for another process that makes %s: %w", folder, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if isFolder(folder) {
		return nil
	}
	// What a killed process left is incomplete.
	temp := folder + ".making"
	if err := errors.Join(os.RemoveAll(temp), os.Mkdir(temp, 0o755)); err != nil {
		return fmt.Errorf("make a folder for %s: %w", what, err)
	}
	began := time.Now()
	announce("%s: this is done once. It goes to %s.", what, folder)
	if err := fill(ctx, temp); err != nil {
		return fmt.Errorf("%s: %w", what, errors.Join(err, os.RemoveAll(temp)))
	}
	announce("%s: done in %s.", what, time.Since(began).Round(time.Second))
	return os.Rename(temp, folder)
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

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func lock(ctx context.Context, path string) (unlock func() error, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(err, file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), file.Close())
		case <-time.After(lockPoll):
		}
	}
}

// digest identifies what was made from the parts.
func digest(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(sum, "%d:%s\n", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}

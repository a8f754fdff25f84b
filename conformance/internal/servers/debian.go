// SPDX-License-Identifier: Apache-2.0

// Package servers fetches the servers that connectors are tested against.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// CacheEnv names the environment variable that replaces the default cache
// folder, which is "usher" in os.UserCacheDir().
const CacheEnv = "USHER_CACHE"

// FetchDebian unpacks Debian packages, and what they depend on and the machine
// does not have, into a folder of the cache, and returns it. Nothing is
// installed. It needs apt-get and dpkg when the folder is not there yet; errors
// name the command that failed.
func FetchDebian(ctx context.Context, packages ...string) (root string, err error) {
	cache, err := cacheRoot()
	if err != nil {
		return "", err
	}
	release, err := release()
	if err != nil {
		return "", err
	}
	root = filepath.Join(cache, "debian", release+"-"+runtime.GOARCH, strings.Join(packages, "+"))
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	unlock, err := lock(root + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(root); !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	fmt.Fprintf(os.Stderr, "Fetching Debian's %s: about half a minute, the first time.\n", strings.Join(packages, ", "))
	return root, fetch(ctx, root, packages)
}

// LibraryPath is the LD_LIBRARY_PATH that programs below the root need.
func LibraryPath(root string) string {
	folders, _ := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu*")) // The pattern is well-formed.
	more, _ := filepath.Glob(filepath.Join(root, "lib/*-linux-gnu*"))
	return "LD_LIBRARY_PATH=" + strings.Join(append(folders, more...), ":")
}

func cacheRoot() (string, error) {
	if fixed := os.Getenv(CacheEnv); fixed != "" {
		return filepath.Abs(fixed)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w: set %s", err, CacheEnv)
	}
	return filepath.Join(user, "usher"), nil
}

// release is the code name of the distribution: libraries of another do not fit.
func release() (string, error) {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find out the distribution: %w: these servers come from Debian packages", err)
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`), nil
		}
	}
	return "", errors.New("/etc/os-release has no VERSION_CODENAME: these servers come from Debian packages")
}

// lock keeps tests of other packages from fetching the same.
func lock(name string) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

func fetch(ctx context.Context, root string, packages []string) error {
	temp, err := os.MkdirTemp(filepath.Dir(root), ".fetching-")
	if err != nil {
		return fmt.Errorf("make a folder to unpack in: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // What stays is in the cache, and harmless.
	if _, err := run(ctx, temp, "apt-cache", append([]string{"show", "--no-all-versions"}, packages...)...); err != nil {
		if _, err := run(ctx, temp, "apt-get", "update"); err != nil {
			return err
		}
	}
	wanted, err := missing(ctx, temp, packages)
	if err != nil {
		return err
	}
	if _, err := run(ctx, temp, "apt-get", append([]string{"download"}, wanted...)...); err != nil {
		return err
	}
	archives, _ := filepath.Glob(filepath.Join(temp, "*.deb")) // The pattern is well-formed.
	for _, archive := range archives {
		if _, err := run(ctx, temp, "dpkg", "-x", archive, "root"); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(temp, "root"), root); err != nil {
		return fmt.Errorf("keep what was unpacked: %w", err)
	}
	return nil
}

// missing returns the packages, and what they depend on and is not installed.
func missing(ctx context.Context, dir string, packages []string) ([]string, error) {
	tree, err := run(ctx, dir, "apt-cache", append([]string{"depends", "--recurse", "--no-recommends", "--no-suggests",
		"--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}, packages...)...)
	if err != nil {
		return nil, err
	}
	installed, err := run(ctx, dir, "dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\n")
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for line := range strings.Lines(installed) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "ii "); ok {
			have[strings.TrimSpace(name)] = true
		}
	}
	wanted := slices.Clone(packages)
	for line := range strings.Lines(tree) {
		name := strings.TrimSpace(line)
		// Indented lines are relations, and names in brackets are nobody's packages.
		if strings.HasPrefix(line, name) && !strings.HasPrefix(name, "<") && !have[name] && library(name) {
			wanted = append(wanted, name)
		}
	}
	slices.Sort(wanted)
	return slices.Compact(wanted), nil
}

// library leaves out what only an installation needs.
func library(name string) bool {
	return strings.HasPrefix(name, "lib") || strings.HasSuffix(name, "-libs")
}

func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir = dir
	var output, complaint bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaint
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return output.String(), nil
}

// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Debian unpacks Debian packages into one directory below the cache, without installing
// them, and returns the directory. It does not download dependencies: name them where
// needed, or use DebianProgram. It needs apt-get, dpkg and the package lists.
func Debian(ctx context.Context, name string, packages ...string) (string, error) {
	uris, err := Run(ctx, "", "apt-get", append([]string{"download", "--print-uris", "-qq"}, packages...)...)
	if err != nil {
		return "", fmt.Errorf("%w; if apt-get knows no such package, run apt-get update", err)
	}
	return cached(ctx, name, "debian-"+Digest(uris), "Fetching "+name+" from Debian", func(ctx context.Context, folder string) error {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		// Without this, apt-get fails if its own user cannot write here.
		args := append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, packages...)
		if _, err := Run(ctx, folder, "apt-get", args...); err != nil {
			return fmt.Errorf("%w; if a package is no longer found, run apt-get update", err)
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.deb"))
		if err != nil || len(files) < len(packages) {
			return errors.Join(err, fmt.Errorf("apt-get fetched %d of %d packages", len(files), len(packages)))
		}
		for _, file := range files {
			if _, err := Run(ctx, folder, "dpkg", "-x", file, folder); err != nil {
				return err
			}
			if err := os.Remove(file); err != nil {
				return err
			}
		}
		return nil
	})
}

// DebianProgram is Debian for a package of programs and the shared libraries that it
// needs and that are not installed. Its programs run with LibraryPath.
func DebianProgram(ctx context.Context, name string) (string, error) {
	return DebianPrograms(ctx, name, name)
}

// DebianPrograms is DebianProgram for several packages in one folder.
func DebianPrograms(ctx context.Context, name string, packages ...string) (string, error) {
	libraries, err := missingLibraries(ctx, packages)
	if err != nil {
		return "", err
	}
	return Debian(ctx, name, slices.Concat(packages, libraries)...)
}

// LibraryPath returns the LD_LIBRARY_PATH, in the form of Spec.Env, that programs below the directory
// need.
func LibraryPath(folder string) string {
	libraries, _ := filepath.Glob(filepath.Join(folder, "usr/lib/*-linux-gnu*")) // The pattern is well-formed.
	more, _ := filepath.Glob(filepath.Join(folder, "lib/*-linux-gnu*"))
	return "LD_LIBRARY_PATH=" + strings.Join(append(libraries, more...), ":")
}

// missingLibraries returns the library packages that packages depend on, directly or
// indirectly, and that are not installed.
func missingLibraries(ctx context.Context, packages []string) ([]string, error) {
	tree, err := Run(ctx, "", "apt-cache", append([]string{"depends", "--recurse", "--no-recommends", "--no-suggests",
		"--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}, packages...)...)
	if err != nil {
		return nil, fmt.Errorf("%w; if apt-cache knows no such package, run apt-get update", err)
	}
	installed, err := Run(ctx, "", "dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\n")
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for line := range strings.Lines(installed) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "ii "); ok {
			have[strings.TrimSpace(name)] = true
		}
	}
	var wanted []string
	for line := range strings.Lines(tree) {
		name := strings.TrimSpace(line)
		// Indented lines are relations, and names in brackets are virtual packages. Packages that are
		// no libraries are needed only by an installation.
		library := strings.HasPrefix(name, "lib") || strings.HasSuffix(name, "-libs")
		if library && strings.HasPrefix(line, name) && !have[name] {
			wanted = append(wanted, name)
		}
	}
	slices.Sort(wanted)
	return slices.Compact(wanted), nil
}

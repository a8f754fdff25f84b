// SPDX-License-Identifier: Apache-2.0

// Package fetch gets the programs that tests need and that are not part of the tree,
// and keeps them in a user's cache: Debian packages, which it unpacks without
// installing, programs that it builds from Go modules, and jars.
//
// Each download or build is kept in a directory whose name contains its version, so that another
// version has another directory, and is moved there when complete.
package fetch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/mod/modfile"
)

// CacheEnv names the environment variable that replaces the default cache directory,
// which is "usher" in os.UserCacheDir().
const CacheEnv = "USHER_CACHE"

// lockPoll is how often to try the lock of a directory while another process holds it.
const lockPoll = 200 * time.Millisecond

// Root returns the user's cache directory.
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

// Lock waits until no other caller, in this process or another, makes the file or directory.
func Lock(ctx context.Context, path string) (unlock func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the cache folder (set %s to choose another): %w", CacheEnv, err)
	}
	lock := flock.New(path + ".lock")
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("wait for another process that makes %s: %w", path, cmp.Or(context.Cause(ctx), err))
	}
	return lock.Close, nil
}

// Once creates a file or a directory if it is missing: create makes it at a temporary path.
// If several processes need it, one creates it and the others wait.
func Once(ctx context.Context, path, what string, create func(ctx context.Context, temp string) error) (err error) {
	if exists(path) {
		return nil
	}
	unlock, err := Lock(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if exists(path) {
		return nil
	}
	temp := path + ".making"
	if err := os.RemoveAll(temp); err != nil { // remains of a killed process
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

// cached returns the folder in the cache for something with that name and version, which create makes
// if it is missing.
func cached(ctx context.Context, name, version, what string, create func(ctx context.Context, temp string) error) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(root, "conformance", name+"-"+version)
	return folder, Once(ctx, folder, what, create)
}

// announce shows slow steps to the user: on the terminal if there is one, because go test holds back a
// test's output until its end.
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

// Digest identifies a result by the parts that it was made from.
func Digest(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(sum, "%d:%s\n", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}

// stopGrace is how long an interrupted command may take to end.
const stopGrace = 5 * time.Second

// GoProgram builds a program pinned by the Go module in the directory, and returns its
// path. pkg is the program's package, estimate how long a first build takes. A module that names a toolchain is built
// with that one, which the go command downloads.
func GoProgram(ctx context.Context, name, module, pkg, estimate string) (string, error) {
	var pins []string
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", fmt.Errorf("read what pins %s: %w", name, err)
		}
		pins = append(pins, string(data))
	}
	build := []string{"go", "build", "-mod=readonly", "-buildvcs=false", "-ldflags", "-s -w"}
	parsed, err := modfile.Parse(filepath.Join(module, "go.mod"), []byte(pins[0]), nil)
	if err != nil {
		return "", fmt.Errorf("read what pins %s: %w", name, err)
	}
	if parsed.Toolchain != nil {
		build = append([]string{"env", "GOTOOLCHAIN=" + parsed.Toolchain.Name}, build...)
	}
	version := Digest(append(pins, pkg, runtime.Version(), runtime.GOARCH)...)
	what := "Building " + name + " from source (" + estimate + " the first time)"
	folder, err := cached(ctx, name, version, what, func(ctx context.Context, folder string) error {
		_, err := Run(ctx, module, build[0], append(build[1:], "-o", filepath.Join(folder, name), pkg)...)
		return err
	})
	return filepath.Join(folder, name), err
}

// Maven downloads the dependencies of the pom.xml in the directory, and returns the
// directory of the jars. It needs mvn and Java.
func Maven(ctx context.Context, name, project string) (string, error) {
	pom, err := filepath.Abs(filepath.Join(project, "pom.xml"))
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(pom)
	if err != nil {
		return "", fmt.Errorf("read what pins %s: %w", name, err)
	}
	return cached(ctx, name, "maven-"+Digest(string(data)), "Fetching "+name+" from Maven Central", func(ctx context.Context, folder string) error {
		_, err := Run(ctx, filepath.Dir(pom), "mvn", "-q", "-B", "-f", pom,
			"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DoutputDirectory="+folder)
		return err
	})
}

// Python downloads the packages of the requirements.txt in the directory, and returns the PYTHONPATH with which
// programs find them. It needs Python 3 with pip.
func Python(ctx context.Context, name, project string) (string, error) {
	pins, err := filepath.Abs(filepath.Join(project, "requirements.txt"))
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(pins)
	if err != nil {
		return "", fmt.Errorf("read what pins %s: %w", name, err)
	}
	return cached(ctx, name, "python-"+Digest(string(data)), "Fetching "+name+" from PyPI", func(ctx context.Context, folder string) error {
		_, err := Run(ctx, filepath.Dir(pins), "python3", "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, "-r", pins)
		return err
	})
}

// Program finds an installed program.
func Program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is needed: install it: %w", name, err)
	}
	return path, nil
}

// Run returns the command's stdout. Its error holds the end of the output; it is the cause
// of ctx if that ended.
func Run(ctx context.Context, dir, name string, args ...string) (string, error) {
	path, err := Program(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "LC_ALL=C")
	// A separate process group, so that an interruption reaches what the command
	// started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	stdout, stderr := &strings.Builder{}, &strings.Builder{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil && ctx.Err() != nil {
		return "", context.Cause(ctx)
	} else if err != nil {
		lines := strings.Split(strings.TrimRight(stdout.String()+stderr.String(), "\n"), "\n")
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	return stdout.String(), nil
}

// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// stopGrace is how long an interrupted command may take to end.
const stopGrace = 5 * time.Second

// GoProgram builds a program pinned by the Go module in the directory, and returns its
// path. pkg is the program's package, estimate how long a first build takes.
func GoProgram(ctx context.Context, name, module, pkg, estimate string) (string, error) {
	var pins []string
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", fmt.Errorf("read what pins %s: %w", name, err)
		}
		pins = append(pins, string(data))
	}
	folder, err := Cache(name, digest(append(pins, pkg, runtime.Version(), runtime.GOARCH)...))
	if err != nil {
		return "", err
	}
	what := "Building " + name + " from source (" + estimate + " the first time)"
	program := filepath.Join(folder, name)
	return program, Once(ctx, folder, what, func(ctx context.Context, folder string) error {
		_, err := Run(ctx, module, "go", "build", "-mod=readonly", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(folder, name), pkg)
		return err
	})
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
	folder, err := Cache(name, "maven-"+digest(string(data)))
	if err != nil {
		return "", err
	}
	what := "Fetching " + name + " from Maven Central"
	return folder, Once(ctx, folder, what, func(ctx context.Context, folder string) error {
		_, err := Run(ctx, filepath.Dir(pom), "mvn", "-q", "-B", "-f", pom,
			"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DoutputDirectory="+folder)
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
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, lastLines(stdout.String()+stderr.String(), 20))
	}
	return stdout.String(), nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

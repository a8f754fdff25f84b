// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
)

// kit is what the program inside needs and cannot get there without a network.
type kit struct {
	// Root is the checkout.
	Root string
	// Assets are the node's programs.
	Assets realnode.Assets
	// Usher and Programs are image archives: Usher's, and those of all other Pods.
	Usher, Programs string
	// Consul is the path of its program, HAProxy the directory of its unpacked package;
	// empty if no story needs it.
	Consul, HAProxy string
}

const (
	kitFile = "kit.json"
	// stopGrace is how long an interrupted build may take to end.
	stopGrace = 5 * time.Second
)

// prepare builds and downloads everything into the caches and dir.
func prepare(ctx context.Context, o Options, dir string, tell progress.Sink) error {
	root, err := checkout.Find(o.Getenv)
	if err != nil {
		return err
	}
	k := kit{Root: root}
	err = together(ctx,
		// One at a time: apt-get locks its lists.
		func(ctx context.Context) (err error) {
			if k.Assets, err = realnode.GetAssets(ctx, tell); err != nil {
				return err
			}
			return k.fetchRegistries(ctx, o.chosen(), tell)
		},
		func(ctx context.Context) error { return fetchTools(ctx, root, dir, tell) },
		func(ctx context.Context) (err error) {
			k.Usher, err = packUsher(ctx, root, dir, tell)
			return err
		},
		func(ctx context.Context) (err error) {
			k.Programs, err = images.Pack(ctx, root, dir, tell)
			return err
		},
	)
	if err != nil {
		return err
	}
	return k.write(dir)
}

// together runs independent steps concurrently. The first error ends the others.
func together(ctx context.Context, steps ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, step := range steps {
		all.Go(func() {
			if err := step(ctx); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func (k kit) write(dir string) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, kitFile), text, 0o600)
}

func readKit(dir string) (kit, error) {
	var k kit
	text, err := os.ReadFile(filepath.Join(dir, kitFile))
	if err != nil {
		return k, fmt.Errorf("read what was prepared: %w", err)
	}
	return k, json.Unmarshal(text, &k)
}

// packUsher builds Usher's image with the tool that also builds the released one.
func packUsher(ctx context.Context, root, dir string, tell progress.Sink) (string, error) {
	const task = "image usher"
	image, err := usherImage(root)
	if err != nil {
		return "", err
	}
	name, version, _ := strings.Cut(image, ":")
	tool := filepath.Join(dir, "bin", "image")
	program := checkout.Program{Name: "build image tool", Module: filepath.Join(root, "tools", "image"), Pkg: ".", Out: tool}
	if err := program.Compile(ctx, tell); err != nil {
		return "", err
	}
	tell.Tell(progress.Event{Task: task, State: progress.Compiling})
	platform := "linux/" + runtime.GOARCH
	cmd := exec.CommandContext(ctx, tool, "usher", "-root", root, "-name", name, "-version", version, "-platforms", platform,
		"-out", filepath.Join(dir, "images"))
	// A separate process group, so that an interruption reaches the compilers it
	// starts.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	if out, err := cmd.CombinedOutput(); err != nil {
		tell.Tell(progress.Event{Task: task, State: progress.Failed})
		return "", fmt.Errorf("make Usher's image: %w\n%s", err, out)
	}
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "packed"})
	return filepath.Join(dir, "images", "usher-linux-"+runtime.GOARCH+".tar"), nil
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
	"github.com/usher-dev/usher/devcluster/internal/realnode"
	"github.com/usher-dev/usher/devcluster/internal/sandbox"
)

// Run is outside.
func Run(ctx context.Context) (err error) {
	if err := sandbox.Check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "usher-e2e-")
	if err != nil {
		return err
	}
	display := progress.Show(progress.ScreenOf(os.Stdout))
	_, err = prepare(ctx, os.Getenv, dir, display.Sink())
	display.Close()
	if err != nil {
		return err
	}
	code, err := sandbox.Run(ctx, sandbox.Options{Dir: dir, Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	fmt.Println("code", code, err, dir)
	return err
}

// Inside is inside.
func Inside(ctx context.Context, place *sandbox.Place) error {
	k, err := readKit(place.Dir)
	if err != nil {
		return err
	}
	display := progress.Show(progress.ScreenOf(os.Stdout))
	began := time.Now()
	n, err := realnode.Start(ctx, realnode.Options{Dir: place.Dir, Cgroup: place.Cgroup, Assets: k.Assets, Images: k.Images, Tell: display.Sink()})
	display.Close()
	if err != nil {
		return err
	}
	fmt.Println("up in", time.Since(began))
	cmd := exec.CommandContext(ctx, "/bin/bash")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+n.Kubeconfig())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	return errors.Join(err, n.Stop(ctx))
}

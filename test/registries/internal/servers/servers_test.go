// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestProcess(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	p := Start(t, Spec{
		Name: "shell", Path: "/bin/sh", Args: []string{"-c", "echo began; sleep 1000 & echo $! >" + ready + "; wait"},
		Ready: func(context.Context) error { _, err := os.ReadFile(ready); return err },
	})
	first := p.PID()
	if err := os.Remove(ready); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.PID() == first || syscall.Kill(first, 0) == nil {
		t.Errorf("process %d runs on beside %d", first, p.PID())
	}
	for range 2 {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	}
	<-p.Done()
	if said := strings.Count(p.Output(), "began"); said != 2 {
		t.Errorf("two starts wrote %q", p.Output())
	}
	p.spec.Args = []string{"-c", "echo no; exit 3"}
	p.spec.Ready = func(context.Context) error { return errors.New("not yet") }
	if err := p.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a server that ends at once: %v", err)
	}
}

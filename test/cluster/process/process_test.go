// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

const (
	// roleEnv makes this test binary act as a process of a test.
	roleEnv = "PROCESS_TEST_ROLE"
	// bound limits how long a test waits.
	bound = 20 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "talker": // writes something and exits
		for i := range 30 {
			fmt.Println("line", i)
		}
		os.Exit(3)
	case "waiter": // ends on SIGTERM
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("waiting")
		<-stop
		os.Exit(0)
	case "stubborn": // ends on SIGKILL only
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("waiting")
		hang()
	}
}

func hang() {
	for {
		_ = unix.Pause()
	}
}

func start(t *testing.T, role string, env ...string) *Process {
	t.Helper()
	s := NewSpawner()
	t.Cleanup(s.Close)
	log := filepath.Join(t.TempDir(), "logs", role)
	p, err := s.Start(Spec{Name: role, Path: os.Args[0], Log: log, Env: append(append(os.Environ(), env...), roleEnv+"="+role)})
	registrytest.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func TestStop(t *testing.T) {
	for role, want := range map[string]string{"waiter": "exit status 0", "stubborn": "signal: killed"} {
		t.Run(role, func(t *testing.T) {
			p := start(t, role)
			registrytest.Until(t, "the process waits", func() bool { return len(p.Tail(1)) > 0 })
			if p.ExitError() != nil {
				t.Fatal("a running process has an exit error")
			}
			grace := map[string]time.Duration{"waiter": bound, "stubborn": time.Millisecond}[role]
			for range 2 { // the second finds it ended
				registrytest.NoError(t, p.Stop(t.Context(), grace))
			}
			if !p.Asked() || p.ExitError().Status != want {
				t.Errorf("asked %t, %v; want %s", p.Asked(), p.ExitError(), want)
			}
		})
	}
}

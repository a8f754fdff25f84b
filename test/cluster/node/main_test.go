// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// programEnv makes this test binary act as the program of a container.
const programEnv = "NODE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		if err := program(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		return
	}
	code := m.Run()
	shared.stop()
	os.Exit(code)
}

// testImages is an ImageLookup that has the program under any name and tag.
func testImages(string) (string, []string, []string, bool) {
	self, err := os.Executable()
	return self, []string{"serve"}, []string{programEnv + "=1"}, err == nil
}

// program is what the tests' containers run.
func program(args []string) error {
	switch args[0] {
	case "serve":
		return serveEnvironment()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		return serveEnvironment()
	case "fail":
		return fmt.Errorf("failed as told: %v", args[1:])
	case "sleep":
		duration, err := time.ParseDuration(args[1])
		time.Sleep(duration)
		return err
	case "litter":
		return litter()
	case "agent":
		return orphan(args[1])
	}
	return fmt.Errorf("unknown arguments %q", args)
}

// serveEnvironment answers GET /NAME with that environment variable.
func serveEnvironment() error {
	fmt.Println("serving as", os.Getenv("POD_NAME"))
	server := http.Server{
		Addr:              net.JoinHostPort(os.Getenv("POD_IP"), os.Getenv("PORT")),
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, os.Getenv(r.URL.Path[1:]))
		}),
	}
	return server.ListenAndServe()
}

// litter leaves a long-running child behind.
func litter() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.CommandContext(context.Background(), self, "sleep", "10m")
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println(child.Process.Pid)
	return nil
}

// orphan acts as a node agent that starts a container and is then killed.
func orphan(dir string) error {
	runtime, err := NewProcessRuntime(ProcessOptions{Images: testImages, LogDir: dir})
	if err != nil {
		return err
	}
	instance, err := runtime.Start(ContainerConfig{
		Pod: buildPod(), IP: "127.0.0.1", Exited: func() {},
		Container: &corev1.Container{Name: "main", Image: "program", Args: []string{"sleep", "10m"}},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(instance.Describe().PID)), 0o600); err != nil {
		return err
	}
	select {}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// serviceEnv makes this test binary act as the web service.
const serviceEnv = "WEB_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTermination sends SIGTERM while a request is in flight: the demo counts lost
// requests only if the service cuts it.
func TestTermination(t *testing.T) {
	for env, wantAnswer := range map[string]string{"NONE=": "", "IGNORE_TERM=1": `"version":"v1","pod":"web-0"`} {
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = []string{serviceEnv + "=1", "POD_IP=127.0.0.1", "PORT=0", "APP_VERSION=v1", "POD_NAME=web-0", env}
		stdout, err := command.StdoutPipe()
		registrytest.NoError(t, err)
		registrytest.NoError(t, command.Start())
		output := bufio.NewReader(stdout)
		line, _ := output.ReadString('\n')
		words := strings.Fields(line)
		if len(words) == 0 {
			t.Fatal("the service has ended")
		}
		result := make(chan string, 1)
		go func() { result <- get(t, "http://"+words[len(words)-1]+"/slow?d=700ms") }()
		if line, err := output.ReadString('\n'); err != nil || line != "a request that takes 700ms\n" {
			t.Fatalf("the service writes %q, %v", line, err)
		}
		registrytest.NoError(t, command.Process.Signal(syscall.SIGTERM))
		if got := <-result; (got == "") != (wantAnswer == "") || !strings.Contains(got, wantAnswer) {
			t.Errorf("%s: the request in flight is answered %q, want %q", env, got, wantAnswer)
		}
		if wantAnswer != "" {
			_ = command.Process.Kill()
		}
		_ = command.Wait() // it ends, or was killed
	}
}

// get returns the answer to a GET; empty if there is none.
func get(t *testing.T, url string) string {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body) // a broken connection is no answer
	return string(body)
}

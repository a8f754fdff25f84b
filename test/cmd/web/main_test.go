// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 20 * time.Second

// serviceEnv makes this test binary act as the web service.
const serviceEnv = "WEB_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestLoadSettings(t *testing.T) {
	load := func(env map[string]string) (settings, error) {
		return loadSettings(func(name string) string { return env[name] })
	}
	got, err := load(nil)
	want := settings{address: "127.0.0.1:8080", answer: answer{Version: "unknown", Pod: "none", PID: os.Getpid()}}
	if err != nil || got != want {
		t.Errorf("defaults %+v, %v; want %+v", got, err, want)
	}
	got, err = load(map[string]string{
		"POD_IP": "127.77.0.1", "PORT": "9000", "APP_VERSION": "v1", "POD_NAME": "web-0",
		"START_DELAY": "1500ms", "TERM_GRACE": "3s", "IGNORE_TERM": "1",
	})
	want = settings{
		address: "127.77.0.1:9000", startDelay: 1500 * time.Millisecond, termGrace: 3 * time.Second, ignoreTerm: true,
		answer: answer{Version: "v1", Pod: "web-0", PID: os.Getpid()},
	}
	if err != nil || got != want {
		t.Errorf("settings %+v, %v; want %+v", got, err, want)
	}
	for name, value := range map[string]string{"START_DELAY": "soon", "TERM_GRACE": "-1s"} {
		if _, err := load(map[string]string{name: value}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: error %v, want one that names the variable", name, value, err)
		}
	}
}

func TestRoutes(t *testing.T) {
	handler := routes(answer{Version: "v1", Pod: "web-0", PID: 42})
	who := `{"version":"v1","pod":"web-0","pid":42}` + "\n"
	for _, test := range []struct {
		path string
		code int
		body string // empty: any
	}{
		{"/", 200, who}, {"/slow?d=1ms", 200, who}, {"/readyz", 200, "ok\n"}, {"/healthz", 200, "ok\n"},
		{"/slow", 400, ""}, {"/slow?d=2m", 400, ""}, {"/slow?d=-1s", 400, ""}, {"/other", 404, ""},
	} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.path, nil))
		if recorder.Code != test.code || test.body != "" && recorder.Body.String() != test.body {
			t.Errorf("GET %s: %d %q, want %d %q", test.path, recorder.Code, recorder.Body, test.code, test.body)
		}
	}
}

func TestSubcommands(t *testing.T) {
	server := httptest.NewServer(routes(answer{Version: "v1"}))
	defer server.Close()
	for _, test := range []struct {
		args []string
		want string // in the error; empty: none
	}{
		{[]string{"sleep", "0.01"}, ""},
		{[]string{"get", server.URL + "/readyz"}, ""},
		{[]string{"sleep", "long"}, "number of seconds"},
		{[]string{"get", server.URL + "/other"}, "404"},
		{[]string{"get"}, "sleep SECONDS"},
		{[]string{"nonsense"}, "sleep SECONDS"},
	} {
		err := run(test.args)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("web %q: error %v, want %q", test.args, err, test.want)
		}
	}
	var out bytes.Buffer
	if err := get(server.URL+"/healthz", &out); err != nil || out.String() != "ok\n" {
		t.Errorf("get: %q, %v", out.String(), err)
	}
}

// service is a running web service.
type service struct {
	command *exec.Cmd
	output  *bufio.Reader
	url     string
}

func startService(t *testing.T, env ...string) service {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), self)
	command.Env = append([]string{serviceEnv + "=1", "POD_IP=127.0.0.1", "PORT=0"}, env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	output := bufio.NewReader(stdout)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := output.ReadString('\n')
	if err != nil {
		t.Fatalf("the service says %q: %v", line, err)
	}
	words := strings.Fields(line)
	return service{command, output, "http://" + words[len(words)-1]}
}

func (s service) get(ctx context.Context, path string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	var got answer
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	return got, json.Unmarshal(body, &got)
}

// TestTermination sends SIGTERM while a request is in flight.
func TestTermination(t *testing.T) {
	for _, test := range []struct {
		name     string
		env      []string
		answered bool
		ends     bool
	}{
		{"requests are cut", nil, false, true},
		{"requests are finished", []string{"TERM_GRACE=10s"}, true, true},
		{"requests that take longer are cut", []string{"TERM_GRACE=10ms"}, false, true},
		{"ignored", []string{"IGNORE_TERM=1"}, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startService(t, append(test.env, "APP_VERSION=v1", "POD_NAME=web-0")...)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			result := make(chan error, 1)
			go func() {
				_, err := s.get(ctx, "/slow?d=700ms")
				result <- err
			}()
			s.expectLine(t, "a request that takes 700ms")
			if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-result; (err == nil) != test.answered {
				t.Errorf("request in flight: error %v, want an answer: %v", err, test.answered)
			}
			if !test.ends {
				if got, err := s.get(ctx, "/"); err != nil || got != (answer{"v1", "web-0", s.command.Process.Pid}) {
					t.Errorf("after SIGTERM: %+v, %v", got, err)
				}
				if err := s.command.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			_ = s.command.Wait()
			if _, err := s.get(ctx, "/"); err == nil {
				t.Error("the service has ended and still answers")
			}
		})
	}
}

func (s service) expectLine(t *testing.T, want string) {
	t.Helper()
	if line, err := s.output.ReadString('\n'); err != nil || line != want+"\n" {
		t.Fatalf("the service says %q, %v; want %q", line, err, want)
	}
}

func TestStartDelay(t *testing.T) {
	begin := time.Now()
	s := startService(t, "START_DELAY=300ms")
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("it serves after %v", took)
	}
	if err := s.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.command.Wait()
}

// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/forecast"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/integration/scene"
)

// plugin is the kubectl plugin, which is built when a story runs it first.
func (s *story) plugin(ctx context.Context) string {
	if s.program == "" {
		s.program = filepath.Join(s.TempDir(), "kubectl-usher")
		plugin := checkout.Program{Name: "kubectl-usher", Module: "../../../cmd/kubectl-usher", Pkg: ".", Out: s.program}
		s.Must(plugin.Compile(ctx, nil))
	}
	return s.program
}

func (s *story) command(ctx context.Context, args ...string) *exec.Cmd {
	program := s.plugin(ctx)
	command := exec.CommandContext(ctx, program, append([]string{"-n", s.Namespace, "--kubeconfig", s.kubeconfig}, args...)...)
	command.Env = append(os.Environ(), "HOME="+filepath.Dir(program))
	return command
}

// run returns what the plugin prints, and its exit code.
func (s *story) run(args string) (printed string, code int) {
	s.Helper()
	command := s.command(s.Context(), strings.Fields(args)...)
	out, err := command.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// usher prints what the plugin prints, and its exit code if that is not 0.
func (s *story) usher(args string) {
	printed, code := s.run(args)
	s.Print(printed)
	if code != 0 {
		s.Printf("(exit code %d)", code)
	}
}

// file writes the CloneSet with a patch to a file, called file.
func (s *story) file(patch string) {
	set := s.Prop("held CloneSet", patch)
	set.SetNamespace("")
	text := checktest.Must(yaml.Marshal(set.Object))(s)
	name := filepath.Join(s.TempDir(), "set.yaml")
	s.Must(os.WriteFile(name, text, 0o600))
	s.Call("file", name)
}

// foresee plans a change of the set.
func (s *story) foresee(change string) {
	printed, code := s.run("plan clone/web -o json " + change)
	s.Same("the exit code", code, 2)
	var f forecast.Forecast
	s.Must(json.Unmarshal([]byte(printed), &f))
	s.foreseen = list.Map(f.Waves, func(wave forecast.Wave) string { return fmt.Sprint(wave.Pods) })
}

// asForeseen compares the last two updates with the waves of the plan.
func (s *story) asForeseen() {
	updates := s.Events(nil, "SuccessfulUpdatePodInPlace")
	slices.SortFunc(updates, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	happened := list.Map(updates[max(len(updates)-2, 0):], func(update eventsv1.Event) string {
		return fmt.Sprint([]forecast.Step{{Pod: update.Related.Name, Does: forecast.InPlace}})
	})
	s.Same("what has happened", happened, s.foreseen)
}

// dashboard shows a set that is paused in a page, which resumes it, undoes the change, and
// ends when it is interrupted.
func (s *story) dashboard() {
	s.Change(s.Ref("CloneSet/web"), `{"spec":{"updateStrategy":{"paused":true},"template":{"spec":{"containers":[{"name":"main","image":"example.test/web:v3"}]}}}}`)
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	command := s.command(ctx, "dashboard")
	out := checktest.Must(command.StdoutPipe())(s)
	s.Must(command.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		s.Fatalf("kubectl usher dashboard prints nothing: %v", command.Wait())
	}
	address, token, _ := strings.Cut(lines.Text(), "#")
	id := "CloneSet/" + s.Namespace + "/web"
	events := bufio.NewScanner(s.ask(ctx, address, token, "events?token="+token, ""))
	events.Buffer(nil, 1<<20)
	s.hears(events, `"id":"`+id+`"`, `"phase":"Paused"`, `"name":"resume"`)
	s.ask(ctx, address, token, "do", `{"set": "`+id+`", "action": "resume"}`)
	offer := s.hears(events, `"phase":"Done"`, `"name":"undo"`)
	to := regexp.MustCompile(`"name":"undo".*?"to":"([^"]+)"`).FindStringSubmatch(offer)
	if to == nil {
		s.Fatalf("undo leads nowhere: %s", offer)
	}
	s.ask(ctx, address, token, "do", `{"set": "`+id+`", "action": "undo", "to": "`+to[1]+`"}`)
	s.ask(ctx, address, token, "do", `{"action": "namespace", "to": "default"}`)
	s.hears(events, `"reset":true`, `"namespace":"default"`)
	s.ask(ctx, address, token, "do", `{"action": "namespace", "to": "`+s.Namespace+`"}`)
	s.hears(events, `"namespace":"`+s.Namespace+`"`, `"id":"`+id+`"`)
	s.Until("the change to be undone", func() string {
		history, _ := s.run("history clone/web")
		undone := scene.Contains(history, []string{to[1] + "   current, update", "example.test/web:v1"})
		return registrytest.Unless(undone, history)
	})
	s.Must(command.Process.Signal(os.Interrupt))
	s.Must(command.Wait())
}

// ask sends a request as the page does, and returns the answer: with a body, it changes something.
func (s *story) ask(ctx context.Context, address, token, path, body string) io.Reader {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r := checktest.Must(http.NewRequestWithContext(ctx, method, address+path, strings.NewReader(body)))(s)
	r.Header.Set("Origin", strings.TrimSuffix(address, "/"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	checktest.NoError(s, err)
	s.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode >= http.StatusMultipleChoices {
		s.Fatalf("%s %s: %s", method, path, answer.Status)
	}
	return answer.Body
}

// hears waits for an event with all of the texts, and returns it.
func (s *story) hears(events *bufio.Scanner, texts ...string) string {
	for events.Scan() {
		if scene.Contains(events.Text(), texts) {
			return events.Text()
		}
	}
	s.Fatalf("the page never says %q: %v", texts, events.Err())
	return ""
}

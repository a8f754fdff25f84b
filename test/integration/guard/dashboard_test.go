// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/integration/scene"
)

// dashboard shows a set that is paused in a page, which resumes it, undoes the change, and
// ends when it is interrupted.
func (p *plugin) dashboard(set *appsv1alpha1.CloneSet) {
	p.Change(set, `{"spec":{"updateStrategy":{"paused":true},"template":{"spec":{"containers":[{"name":"main","image":"example.test/web:v3"}]}}}}`)
	ctx, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, p.program, "-n", p.Namespace, "--kubeconfig", p.kubeconfig, "dashboard")
	command.Env = append(os.Environ(), "HOME="+filepath.Dir(p.program))
	out, err := command.StdoutPipe()
	p.Must(err)
	p.Must(command.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		p.Fatalf("kubectl usher dashboard prints nothing: %v", command.Wait())
	}
	address, token, _ := strings.Cut(lines.Text(), "#")
	id := "CloneSet/" + p.Namespace + "/" + set.Name
	events := bufio.NewScanner(p.ask(ctx, address, token, "events?token="+token, ""))
	events.Buffer(nil, 1<<20)
	p.hears(events, `"id":"`+id+`"`, `"phase":"Paused"`, `"name":"resume"`)
	p.ask(ctx, address, token, "do", `{"set": "`+id+`", "action": "resume"}`)
	offer := p.hears(events, `"phase":"Done"`, `"name":"undo"`)
	to := regexp.MustCompile(`"name":"undo".*?"to":"([^"]+)"`).FindStringSubmatch(offer)
	if to == nil {
		p.Fatalf("undo leads nowhere: %s", offer)
	}
	p.ask(ctx, address, token, "do", `{"set": "`+id+`", "action": "undo", "to": "`+to[1]+`"}`)
	p.says("history clone/web", to[1]+"   current, update", "example.test/web:v1")
	p.Must(command.Process.Signal(os.Interrupt))
	p.Must(command.Wait())
}

// ask sends a request as the page does, and returns the answer: with a body, it changes something.
func (p *plugin) ask(ctx context.Context, address, token, path, body string) io.Reader {
	p.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, address+path, strings.NewReader(body))
	p.Must(err)
	r.Header.Set("Origin", strings.TrimSuffix(address, "/"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	p.Must(err)
	p.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode >= http.StatusMultipleChoices {
		p.Fatalf("%s %s: %s", method, path, answer.Status)
	}
	return answer.Body
}

// hears waits for an event with all of the texts, and returns it.
func (p *plugin) hears(events *bufio.Scanner, texts ...string) string {
	p.Helper()
	for events.Scan() {
		if scene.Contains(events.Text(), texts) {
			return events.Text()
		}
	}
	p.Fatalf("the page never says %q: %v", texts, events.Err())
	return ""
}

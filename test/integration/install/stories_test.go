// SPDX-License-Identifier: Apache-2.0

package install

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	servers "github.com/usher-dev/usher/test/servers/run"
)

// TestStories plays the stories in testdata/stories, each on a cluster of its own.
func TestStories(t *testing.T) {
	scenariotest.Tell(t, "testdata/stories/*.txt", words, func(t *testing.T) *story {
		t.Helper()
		s := begin(t, nil)
		s.Call("dir", t.TempDir())
		return s
	})
}

// words are what a step can begin with.
var words = map[string]func(s *story, rest string){
	// What people do.
	"follow": func(s *story, step string) { s.said = s.follow(step) },
	"apply":  (*story).apply,
	"$":      func(s *story, script string) { s.said = s.sh("%s", script) },
	"fails":  (*story).fails,
	"plays":  (*story).plays,
	"call":   func(s *story, name string) { s.Call(name, s.said) },
	"until":  (*story).untilSaid,
	"says":   (*story).says,
	"prints": func(s *story, want string) { checktest.Same(s, "what is printed", want, s.said) },

	// Usher, and the registry.
	"killed": (*story).killed,
	"run": func(s *story, rest string) {
		args := strings.Fields(rest)
		s.usher = s.run(args[0], args[1:]...)
	},
	"start": func(s *story, rest string) {
		args := strings.Fields(rest)
		s.usher = s.start(args[0], args[1:]...)
	},
	"ready": (*story).ready,
	"address": func(s *story, name string) {
		s.Call(name, fmt.Sprintf("127.0.0.1:%d", checktest.Must(servers.FreePorts(s.Context(), 1))(s)[0]))
	},
	"may":                            func(s *story, what string) { s.may(what, "yes") },
	"may not":                        func(s *story, what string) { s.may(what, "no") },
	"patch":                          (*story).patch,
	"thief of":                       (*story).thief,
	"certificate listens to nothing": func(s *story, _ string) { s.listensNot() },
	"scrapes":                        (*story).scrapes,
	"stop":                           func(s *story, _ string) { s.end() },
	"etcd":                           func(s *story, _ string) { s.startEtcd() },
	"entries":                        func(s *story, n string) { checktest.Same(s, "entries in etcd", n, s.entries()) },
	"in service":                     func(s *story, n string) { s.Await(n+" entries in etcd", func() bool { return s.entries() == n }) },

	// OpenKruise.
	"OpenKruise leaves":       (*story).leave,
	"OpenKruise ends":         func(s *story, _ string) { s.kruise.server.Close(); s.kruise.requests.Store(0) },
	"OpenKruise is asked":     func(s *story, _ string) { s.kruise.asked(s.T, true) },
	"OpenKruise is not asked": func(s *story, _ string) { s.kruise.asked(s.T, false) },
	"versions":                func(s *story, _ string) { s.said = s.versions() },

	// Pods, and what holds them. A note is what they are compared with later.
	"available":       (*story).available,
	"note":            func(s *story, _ string) { s.noted = s.pods() },
	"same Pods":       func(s *story, _ string) { checktest.Same(s, "the Pods", s.noted, s.pods()) },
	"keeps Pods":      func(s *story, _ string) { s.within(s.pods(), s.noted) },
	"only noted Pods": func(s *story, _ string) { s.within(s.noted, s.pods()) },
	"all remains":     func(s *story, _ string) { s.remains() },
	"held":            func(s *story, want string) { checktest.Same(s, "what finalizers hold", want, s.protected()) },
	"free":            func(s *story, _ string) { s.Await("nothing to be held", func() bool { return s.protected() == "" }) },
	"watch deletions": func(s *story, _ string) { s.watchDeletions() },
	"deletes":         (*story).deletes,
	"deleted":         (*story).deleted,
}

// fails runs a script that must fail.
func (s *story) fails(script string) {
	out, err := s.try(script)
	if s.said = out; err == nil {
		s.Errorf("it was to fail, and said\n%s", out)
	}
}

// untilSaid is "TEXT $ SCRIPT": it runs the script until it says the text.
func (s *story) untilSaid(rest string) {
	text, script, _ := strings.Cut(rest, " $ ")
	s.Await(rest, func() bool { return strings.Contains(s.sh("%s", script), text) })
}

// says checks that the last script has said texts, one after the other.
func (s *story) says(texts string) {
	rest := s.said
	for text := range strings.SplitSeq(texts, " | ") {
		_, after, ok := strings.Cut(rest, text)
		if rest = after; !ok {
			s.Fatalf("it has not said %s, but\n%s", texts, s.said)
		}
	}
}

// startEtcd starts the registry.
func (s *story) startEtcd() {
	s.etcd = clustertest.StartEtcd(s.T)
	s.Call("etcd", s.etcd.Endpoint())
}

// entries is the number of keys under services/ in etcd.
func (s *story) entries() string {
	answer := checktest.Must(s.etcd.Client.Get(s.Context(), "services/", clientv3.WithPrefix(), clientv3.WithCountOnly()))(s)
	return fmt.Sprint(answer.Count)
}

// protected lists the objects with Usher's finalizers.
func (s *story) protected() string {
	return s.sh(`kubectl get pods,clonesets,registrations.usher.dev,registries.usher.dev -A -o go-template='{{range .items}}{{$o := .}}{{range .metadata.finalizers}}{{if eq . "usher.dev/registration" "usher.dev/pre-delete"}}{{$o.kind}} {{end}}{{end}}{{end}}'`)
}

// versions lists those of all Pods and revisions of the CloneSets that OpenKruise has left.
func (s *story) versions() string {
	return s.sh(`kubectl get pods,controllerrevisions -A -o jsonpath='{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}' | grep -E ' (stopped|waits|being)-'`)
}

var update = flag.Bool("update", false, "write the golden files; read every line that changes")

// plays runs the commands of a golden file, the lines that begin with a dollar, and compares
// what they print, and how they end.
func (s *story) plays(name string) {
	name = filepath.Join("testdata", name)
	want := checktest.Must(os.ReadFile(name))(s)
	var got strings.Builder
	for line := range strings.Lines(string(want)) {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		out, err := s.try(command)
		got.WriteString(line + out + "\n")
		if err != nil {
			got.WriteString("(" + err.Error() + ")\n")
		}
		got.WriteString("\n")
	}
	if *update {
		s.Must(os.WriteFile(name, []byte(got.String()), 0o600))
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" && !*update {
		s.Errorf("%s has changed (-want +got):\n%s", name, diff)
	}
}

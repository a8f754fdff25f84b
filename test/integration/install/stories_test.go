// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/goldentest"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	servers "github.com/usher-dev/usher/test/servers/run"
)

// TestStories plays the stories in testdata/stories, each on a cluster of its own.
func TestStories(t *testing.T) {
	scenariotest.Stories[*story]{Files: "testdata/stories/*.txt", Words: words, Begin: func(t *testing.T) *story {
		t.Helper()
		s := begin(t, nil)
		s.Call("dir", t.TempDir())
		return s
	}}.Play(t)
}

// words are what a step can begin with.
var words = []scenariotest.Word[*story]{
	// What people do.
	{Name: "follow", Args: "DOCUMENT STEP",
		Does:     "runs the commands of a step of a document, which must succeed",
		Optional: true, Run: func(s *story, step string) { s.say(s.follow(step)) }},
	{Name: "cannot follow", Args: "DOCUMENT STEP", Does: "runs the commands of a step of a document, which must fail",
		Optional: true, Run: func(s *story, step string) { s.fails(s.scriptOf(step)) }},
	{Name: "apply", Args: "NAME", Does: "applies a file of testdata/manifests", Run: (*story).apply},
	{Name: "$", Args: "SCRIPT",
		Does: "runs a script in the project's directory, which must succeed; its output may stand below, and " +
			"is what was said",
		Optional: true, Run: func(s *story, script string) { s.say(s.sh("%s", script)) }},
	{Name: "fails", Args: "SCRIPT", Does: "runs a script that must fail",
		Optional: true, Run: (*story).fails},
	{Name: "plays", Args: "FILE",
		Does: "runs the commands of a file in testdata, and compares what they print with it",
		Run:  (*story).plays},
	{Name: "call", Args: "NAME", Does: "gives a name to what was said",
		Run: func(s *story, name string) { s.Call(name, s.said) }},
	{Name: "until", Args: "TEXT $ SCRIPT", Does: "runs a script until it says the text",
		Run: (*story).untilSaid},
	{Name: "says", Args: "TEXT | TEXT", Does: "fails unless the texts were said, one after the other",
		Run: (*story).says},
	{Name: "prints", Args: "TEXT",
		Does: "fails unless just this was said, which may have many lines if it has a name",
		Run:  func(s *story, want string) { checktest.Same(s, "what is printed", want, s.said) }},

	// Usher, and the registry.
	{Name: "killed", Args: "DEPLOYMENT",
		Does: "kills the leader beside a second replica, which has to take over within some seconds",
		Run:  (*story).killed},
	{Name: "run", Args: "DEPLOYMENT [FLAGS]",
		Does: "starts Usher as the container of its Deployment specifies, and waits until it leads",
		Run: func(s *story, rest string) {
			args := strings.Fields(rest)
			s.usher = s.run(args[0], args[1:]...)
		}},
	{Name: "start", Args: "DEPLOYMENT [FLAGS]", Does: "starts Usher so, and does not wait",
		Run: func(s *story, rest string) {
			args := strings.Fields(rest)
			s.usher = s.start(args[0], args[1:]...)
		}},
	{Name: "ready", Args: "ADDRESS", Does: "waits until the probe at an address succeeds",
		Run: (*story).ready},
	{Name: "address", Args: "NAME", Does: "gives a name to a free address", Run: func(s *story, name string) {
		s.Call(name, fmt.Sprintf("127.0.0.1:%d", checktest.Must(servers.FreePorts(s.Context(), 1))(s)[0]))
	}},
	{Name: "may", Args: "VERB RESOURCE", Does: "fails unless kubectl auth can-i says yes",
		Run: func(s *story, what string) { s.may(what, "yes") }},
	{Name: "may not", Args: "VERB RESOURCE", Does: "fails unless kubectl auth can-i says no",
		Run: func(s *story, what string) { s.may(what, "no") }},
	{Name: "patch", Args: "by HALF/SUBRESOURCE and …, PATCH",
		Does: `patches a Pod with the account of a half of Usher; a deeper line "refused: TEXT" says ` +
			`that it has to be refused. The Pod's spec and owners must stay as they are`,
		Run: (*story).patch},
	{Name: "thief of", Args: "ACCOUNT is refused SCRIPT",
		Does: "runs a script with the account's token, which has to be forbidden",
		Run:  (*story).thief},
	{Name: "certificate listens to nothing",
		Does: "fails if the process that makes the guard's certificate listens on a port",
		Run:  func(s *story, _ string) { s.listensNot() }},
	{Name: "scrapes", Args: "ADDRESS", Does: "reads metrics, which strangers may not and a reader may",
		Run: (*story).scrapes},
	{Name: "stop", Does: "stops Usher, and what makes the guard's certificate",
		Run: func(s *story, _ string) { s.end() }},
	{Name: "etcd", Does: "starts an etcd, whose address is called etcd",
		Run: func(s *story, _ string) { s.startEtcd() }},
	{Name: "entries", Args: "N", Does: "fails unless etcd has N entries",
		Run: func(s *story, n string) { checktest.Same(s, "entries in etcd", n, s.entries()) }},
	{Name: "in service", Args: "N", Does: "waits until etcd has N entries",
		Run: func(s *story, n string) { s.Await(n+" entries in etcd", func() bool { return s.entries() == n }) }},

	// OpenKruise.
	{Name: "OpenKruise leaves", Args: "NAMESPACE STATE PATCH",
		Does: "creates a set of OpenKruise's with one Pod in this state, in a namespace of its own",
		Run:  (*story).leave},
	{Name: "OpenKruise ends", Does: "stops OpenKruise's webhooks",
		Run: func(s *story, _ string) { s.kruise.server.Close(); s.kruise.requests.Store(0) }},
	{Name: "OpenKruise is asked", Does: "fails unless OpenKruise's webhooks were asked since the last look",
		Run: func(s *story, _ string) { s.kruise.asked(s.T, true) }},
	{Name: "OpenKruise is not asked", Does: "fails if OpenKruise's webhooks were asked since the last look",
		Run: func(s *story, _ string) { s.kruise.asked(s.T, false) }},
	{Name: "versions", Does: "says the versions of all Pods and revisions of the sets that OpenKruise left",
		Run: func(s *story, _ string) { s.said = s.versions() }},

	// Pods, and what holds them. A note is what they are compared with later.
	{Name: "available", Args: "N", Does: "waits until the CloneSet has N Pods in service",
		Run: (*story).available},
	{Name: "note", Does: "notes the Pods, with their restarts and finalizers",
		Run: func(s *story, _ string) { s.noted = s.pods() }},
	{Name: "same Pods", Does: "fails unless the Pods are as they were noted",
		Run: func(s *story, _ string) { checktest.Same(s, "the Pods", s.noted, s.pods()) }},
	{Name: "keeps Pods", Does: "fails unless the noted Pods are still there",
		Run: func(s *story, _ string) { s.within(s.pods(), s.noted) }},
	{Name: "only noted Pods", Does: "fails if there is a Pod that was not noted",
		Run: func(s *story, _ string) { s.within(s.noted, s.pods()) }},
	{Name: "all remains", Does: "fails unless the CRDs and the CloneSet are as they were",
		Run: func(s *story, _ string) { s.remains() }},
	{Name: "held", Args: "[KIND KIND]",
		Does: "fails unless objects of these kinds have finalizers of Usher's",
		Run:  func(s *story, want string) { checktest.Same(s, "what finalizers hold", want, s.protected()) }},
	{Name: "free", Does: "waits until no object has a finalizer of Usher's",
		Run: func(s *story, _ string) { s.Await("nothing to be held", func() bool { return s.protected() == "" }) }},
	{Name: "watch deletions", Does: "begins to watch for deletions of Pods",
		Run: func(s *story, _ string) { s.watchDeletions() }},
	{Name: "deletes", Args: "N DOCUMENT STEP | a node's DOCUMENT STEP",
		Does: "runs a step of a document, and waits until it has deleted N Pods, or those of the first " +
			"Pod's node",
		Run: (*story).deletes},
	{Name: "deleted", Args: "N [NAME NAME]",
		Does: "waits until N Pods have been deleted since the last look, each after its drain, and some " +
			"whose names begin so in this order",
		Run: (*story).deleted},
}

// say has a text be what was said, and what the step prints.
func (s *story) say(text string) {
	s.said = text
	s.Print(text)
}

// fails runs a script that must fail.
func (s *story) fails(script string) {
	out, err := s.try(script)
	if s.say(out); err == nil {
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
	if goldentest.Updating() {
		s.Must(os.WriteFile(name, []byte(got.String()), 0o600))
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" && !goldentest.Updating() {
		s.Errorf("%s has changed (-want +got):\n%s", name, diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const uid = "0a1b2c3d-1111-2222-3333-444455556666"

func owned(id string) registry.Entry {
	return registry.Entry{ID: id, NoMetadata: true, Owner: registry.Owner{
		Cluster: "5e0c", Namespace: "demo", Registration: "web", Pod: "web-x7k2p", PodUID: uid,
	}}
}

func TestNames(t *testing.T) {
	short, long := owned("demo.web-x7k2p.0a1b2c3d"), owned("another")
	for name, want := range map[string]registry.Entry{
		"demo.web-x7k2p.0a1b2c3d:usher:5e0c:web:" + uid:     short,
		"another:usher:5e0c:web:" + uid + ":demo:web-x7k2p": long,
	} {
		checktest.Same(t, "the server's name", name, checktest.Must(nameOf(want))(t))
		checktest.Same(t, name, want, identify(name))
	}
}

func TestNamesThatWouldBeCommands(t *testing.T) {
	for _, id := range []string{"a;b", "a:b", "a#b", "a\\b"} {
		_, err := nameOf(owned(id))
		registrytest.Check(t, "the id "+id, err, registry.ErrPermanent)
	}
}

const columns = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port\n"

func TestAnswersThatAreNotUnderstood(t *testing.T) {
	for _, text := range []string{
		"", "2\n" + columns, "Permission denied", "1\n# a b c\n1 2 3", "1\n" + columns + "3 web 1",
		"1\n" + columns + "3 web 1 x 192.0.2.1 0 much 1 80",
	} {
		_, err := parseServers(text)
		registrytest.Check(t, "the servers "+text, err, registry.ErrPermanent)
	}
	for _, text := range []string{"", "nothing", "# pxname,svname,qcur,scur\nweb,a,0", "# pxname,svname,qcur,scur\nweb,a,0,many"} {
		_, err := parseSessions("web", text)
		registrytest.Check(t, "the sessions "+text, err, registry.ErrPermanent)
	}
}

func TestAnswersOfCommands(t *testing.T) {
	commands := map[string]*regexp.Regexp{"add": added, "set": silent, "delete": deleted, "move": moved}
	scenariotest.Table(t, "testdata/commands.txt", func(t *testing.T, test struct{ Command, Answer string }) string {
		return registrytest.Verdict(t, command{id: "a", line: "set server web/a", success: commands[test.Command]}.check(test.Answer))
	})
}

func TestSettle(t *testing.T) {
	r := &Registry{targets: []target{{address: "a"}, {address: "b"}}}
	up := server{name: "x", entry: owned("x")}
	up.entry.Weight = 10
	heavy, draining, idle, theirs, held, busy := up, up, up, up, up, up
	held.entry.Weight, busy.entry.Weight, busy.sessions = 0, 0, 1
	heavy.entry.Weight = 20
	draining.admin, draining.sessions = 8, 2
	idle.admin = 1
	theirs.entry.Owner, theirs.admin = registry.Owner{}, 5
	one := func(s server) []server { return []server{s} }
	known := map[string]server{"up": up, "heavy": heavy, "draining": draining, "idle": idle, "theirs": theirs, "held": held, "busy": busy}
	versions := map[string]string{}
	scenariotest.Table(t, "testdata/settle.txt", func(t *testing.T, test struct{ A, B []string }) string {
		servers := make([][]server, 2)
		for i, names := range [][]string{test.A, test.B} {
			for _, name := range names {
				servers[i] = append(servers[i], known[name])
			}
		}
		have := r.settle(servers)
		checktest.Same(t, "which other one has the same version", "", versions[have.Version])
		versions[have.Version] = t.Name()
		return cmp.Or(have.Unsettled, "settled")
	})
	draining.sessions = 1
	if have := r.settle([][]server{one(draining), nil}); !strings.Contains(have.Unsettled, "1 session on") {
		t.Errorf("one session is %q", have.Unsettled)
	} else if before := r.settle([][]server{one(server{name: "x", entry: up.entry, admin: 8, sessions: 5}), nil}); before.Version != have.Version {
		t.Error("sessions that end change the version")
	}
}

func TestOptions(t *testing.T) {
	refusal := func(options, key string, addresses ...string) error {
		spec := &usherv1alpha1.HAProxyRegistry{Addresses: addresses, ServerOptions: options}
		return registrytest.Refusal(New(spec, map[string][]byte{key: []byte("nothing")}))
	}
	registrytest.CheckOptions(t, map[string]error{
		"no address":      refusal("", ""),
		"no scheme":       refusal("", "", "127.0.0.1:9999"),
		"no port":         refusal("", "", "tcp://127.0.0.1"),
		"user in address": refusal("", "", "tcp://user:s3cret@127.0.0.1:9999"),
		"a relative path": refusal("", "", "unix://relative"),
		"another scheme":  refusal("", "", "http://127.0.0.1:9999"),
		"two commands":    refusal("check; shutdown", "", "tcp://127.0.0.1:9999"),
		"no CA":           refusal("", credentials.KeyCA, "tls://127.0.0.1:9999"),
		"no certificate":  refusal("", credentials.KeyCertificate, "tls://127.0.0.1:9999"),
	})
}

// TestStrangers connects to servers that are not HAProxy, or that close the connection
// early.
func TestStrangers(t *testing.T) {
	scenariotest.Table(t, "testdata/strangers.txt", func(t *testing.T, test struct{ Says string }) string {
		spec := &usherv1alpha1.HAProxyRegistry{Addresses: []string{"tcp://" + registrytest.Listen(t, registrytest.Say(test.Says))}}
		_, err := registrytest.Connect(New(spec, nil))(t).List(t.Context(), "web")
		return registrytest.Verdict(t, err)
	})
}

// FuzzDecode decodes the servers of a process and, after a prompt, their sessions.
func FuzzDecode(f *testing.F) {
	r := &Registry{targets: []target{{address: "a"}}}
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		s := &session{answers: answersOf(strings.NewReader(text))}
		state, _ := s.answer()
		stat, _ := s.answer()
		servers, err := parseServers(state)
		if err != nil {
			return nil
		}
		sessions, _ := parseSessions("web", stat)
		for i := range servers {
			servers[i].sessions = sessions[servers[i].name]
		}
		return registry.Entries(r.merge([][]server{servers}), view.asEntry)
	})
}

// process is a server that answers like a process with these answers by command.
func process(answers map[string]string) func(net.Conn) {
	return func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			if _, err := io.WriteString(conn, answers[lines.Text()]+prompt); err != nil {
				return
			}
		}
	}
}

// TestSessionsOfTheRightBackend asks for the sessions of backends whose names mean something else
// in "show stat", as HAProxy 2.6 answers. A server whose sessions nobody counted is not idle.
func TestSessionsOfTheRightBackend(t *testing.T) {
	e := owned("demo.web-x7k2p.0a1b2c3d")
	name := checktest.Must(nameOf(e))(t)
	busy := func(backend, server string) string {
		return "# pxname,svname,qcur,scur\nother,o1,0,0\n" + backend + "," + server + ",0,2\n"
	}
	for backend, test := range map[string]struct{ named, all, want string }{
		"both":   {"# pxname,svname,qcur,scur\n", busy("both", name), "waits for 2 sessions"}, // A frontend has the name, too.
		"domain": {"Invalid statistics domain.\n", busy("domain", name), "waits for 2 sessions"},
		"3":      {busy("one", name), busy("3", name), "waits for 2 sessions"}, // The proxy with the number 3.
		"3web":   {busy("3web", name), "", "waits for 2 sessions"},
		"nobody": {busy("nobody", "another"), busy("other", name), "does not count the sessions"},
	} {
		address := registrytest.Listen(t, process(map[string]string{
			"show servers state " + backend:  "1\n" + columns + "3 " + backend + " 1 " + name + " 192.0.2.1 2 0 0 80\n",
			"show stat " + backend + " 4 -1": test.named,
			"show stat -1 4 -1":              test.all,
		}))
		r := registrytest.Connect(New(&usherv1alpha1.HAProxyRegistry{Addresses: []string{"tcp://" + address}}, nil))(t)
		have := "nothing"
		entries, err := r.List(t.Context(), backend)
		if err != nil {
			registrytest.Check(t, backend, err, registry.ErrTransient)
			have = err.Error()
		} else if len(entries) == 1 {
			have = entries[0].Unsettled
			checktest.Same(t, "the connections that are left of "+backend, new(int32(2)), entries[0].Connections)
		}
		if !strings.Contains(have, test.want) {
			t.Errorf("backend %s: %q, want %q", backend, have, test.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
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

func TestNamesOfOthersHaveNoOwner(t *testing.T) {
	for _, name := range []string{
		"web1", "demo.web-x7k2p.0a1b2c3d", "a:b", "a:usher:b:c", "a:other:5e0c:web:" + uid, ":usher:5e0c:web:" + uid,
		"a:usher::web:" + uid, "a:usher:5e0c:web:", "a:usher:5e0c:web:u:demo", "a:usher:5e0c:web:u:demo:pod:more",
	} {
		if have := identify(name); have.Owner != (registry.Owner{}) || have.ID != name {
			t.Errorf("%q became %+v", name, have)
		}
	}
}

func TestNamesThatWouldBeCommands(t *testing.T) {
	for _, id := range []string{"a;b", "a:b", "a#b", "a\\b"} {
		_, err := nameOf(owned(id))
		registrytest.Check(t, "the id "+id, err, registry.ErrPermanent)
	}
}

const columns = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port\n"

func TestParseServers(t *testing.T) {
	have, err := parseServers("1\n" + columns +
		"3 web 1 theirs 192.0.2.1 0 5 1 80\n3 web 2 another:usher:5e0c:web:" + uid + ":demo:web-x7k2p fd00::2 2 8 10 8080\n")
	if err != nil || len(have) != 2 {
		t.Fatalf("%d servers, %v", len(have), err)
	}
	mine := owned("another")
	mine.Address, mine.Port, mine.Weight = "fd00::2", 8080, 10
	if diff := cmp.Diff(mine, have[1].entry); diff != "" || have[1].admin != 8 {
		t.Errorf("admin state %d, and the entry differs (-want +have):\n%s", have[1].admin, diff)
	}
	if !have[0].foreign() || have[1].foreign() {
		t.Error("foreign is the wrong one")
	}
}

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

func TestSessionsAndQueueCount(t *testing.T) {
	have, err := parseSessions("web", "# pxname,svname,qcur,qmax,scur\nweb,a,1,9,2\nother,a,0,0,7\nweb,b,0,3,0\n")
	if diff := cmp.Diff(map[string]int{"a": 3, "b": 0}, have); err != nil || diff != "" {
		t.Errorf("%v (-want +have):\n%s", err, diff)
	}
}

func TestAnswersOfCommands(t *testing.T) {
	for _, test := range []struct {
		success *regexp.Regexp
		answer  string
		want    error
	}{
		{added, "New server registered.\n", nil},
		{added, "a warning\nNew server registered.\n", nil},
		{added, "", registry.ErrPermanent},
		{added, alreadyExists, registry.ErrConflict},
		{added, noSuchBackend, registry.ErrPermanent},
		{silent, "", nil},
		{silent, noSuchServer, registry.ErrConflict},
		{silent, "Permission denied\n", registry.ErrPermanent},
		{silent, "Unknown command, but maybe …", registry.ErrPermanent},
		{silent, "something new", registry.ErrPermanent},
		{deleted, "Server deleted.", nil},
		{deleted, noSuchServer, nil},
		{deleted, "Server still has connections attached to it, cannot remove it.", nil},
		{deleted, notInMaint, registry.ErrConflict},
		{moved, "IP changed from '127.0.0.1' to '127.0.0.2', no need to change the port by 'stats socket command'", nil},
		{moved, "no need to change the addr, port changed from '1' to '2' by 'stats socket command'", nil},
		{moved, "", registry.ErrPermanent},
	} {
		err := command{id: "a", line: "set server web/a", success: test.success}.check(test.answer)
		registrytest.Check(t, "the answer "+test.answer, err, test.want)
	}
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
	versions := map[string]string{}
	for _, test := range []struct {
		name string
		a, b []server
		want string
	}{
		{"both have it", one(up), one(up), ""},
		{"one has it", one(up), nil, "HAProxy b does not have it"},
		{"the other has it", nil, one(up), "HAProxy a does not have it"},
		{"they differ", one(up), one(heavy), "HAProxy b has it with another address, port, weight or owner"},
		{"one drains", one(draining), one(up), "it waits for 2 sessions on HAProxy a"},
		{"one drains, the other is done", nil, one(draining), "it waits for 2 sessions on HAProxy b"},
		{"one is idle", one(up), one(idle), "it is out of service on HAProxy b and about to be deleted"},
		{"two servers of one entry", []server{draining, up}, one(up), "it waits for 2 sessions on HAProxy a"},
		{"it is held back", one(held), one(held), ""},
		{"held back, and it has a session", one(busy), nil, "it waits for 1 session on HAProxy a"},
		{"held back on one alone", one(held), one(up), "HAProxy b has it with another address, port, weight or owner"},
		{"held back on one alone, and it has a session", one(up), one(busy), "it waits for 1 session on HAProxy b"},
		{"somebody else's, in maintenance", one(theirs), nil, ""},
	} {
		have := r.settle([][]server{test.a, test.b})
		checktest.Same(t, test.name, test.want, have.Unsettled)
		if other := versions[have.Version]; other != "" {
			t.Errorf("%s and %s have the same version", test.name, other)
		}
		versions[have.Version] = test.name
	}
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
	for _, test := range []struct {
		name, says string
		want       error
	}{
		{"another protocol", "HTTP/1.1 400 Bad Request\r\n\r\n", registry.ErrPermanent},
		{"the master", "\nmaster> ", registry.ErrPermanent},
		{"breaks off", "\n> 1\n" + columns, registry.ErrTransient},
		{"says nothing", "", registry.ErrTransient},
		{"a text of its own", "\n> hello > world\n> ", registry.ErrPermanent},
	} {
		spec := &usherv1alpha1.HAProxyRegistry{Addresses: []string{"tcp://" + registrytest.Listen(t, registrytest.Say(test.says))}}
		_, err := registrytest.Connect(New(spec, nil))(t).List(t.Context(), "web")
		registrytest.Check(t, test.name, err, test.want)
	}
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
	}, "1\n"+columns+"3 web 1 a:usher:5e0c:web:u 10.0.0.1 2 8 10 8080\n3 web 2 theirs 192.0.2.1 0 5 1 80"+prompt+
		"# pxname,svname,qcur,qmax,scur\nweb,a:usher:5e0c:web:u,1,9,2\n"+prompt, "1\n# srv_name\nx > y"+prompt, "\n>"+prompt)
}

// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// mark is the second part of the names that Usher assigns.
const mark = "usher"

// plain matches the parts of names: nothing that ends a command or is a separator.
var plain = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// server is one server of a backend in one process.
type server struct {
	name  string
	entry registry.Entry
	// admin is srv_admin_state: 0 in service, otherwise bits for maintenance and drain.
	admin int
	// sessions counts the sessions on the server and in its queue. It is read only for
	// Usher's servers that are not in service.
	sessions int
}

// idle reports whether the server gets no new requests. HAProxy never chooses a server
// of weight 0.
func (s server) idle() bool { return s.admin != 0 || s.entry.Weight == 0 }

// leaving reports whether the server still drains. One that is held back does until its
// last session ends.
func (s server) leaving() bool { return s.admin != 0 || s.idle() && s.sessions > 0 }

func (s server) foreign() bool { return s.entry.Owner == registry.Owner{} }

// nameOf returns the name of an entry's server. Errors are permanent.
func nameOf(e registry.Entry) (string, error) {
	parts := []string{e.ID, mark, e.Owner.Cluster, e.Owner.Registration, e.Owner.PodUID}
	if namespace, pod := ownerFromID(e.ID, e.Owner.PodUID); namespace != e.Owner.Namespace || pod != e.Owner.Pod {
		parts = append(parts, e.Owner.Namespace, e.Owner.Pod)
	}
	for _, part := range parts {
		if part != "" && !plain.MatchString(part) {
			return "", registry.Permanent(fmt.Errorf("%q cannot be a part of a server's name: "+
				"use letters, digits, dots, dashes and underscores", part))
		}
	}
	return strings.Join(parts, ":"), nil
}

// identify parses a name from nameOf. A server with any other name is foreign.
func identify(name string) registry.Entry {
	parts := strings.Split(name, ":")
	ours := len(parts) == 5 || len(parts) == 7
	if !ours || parts[0] == "" || parts[1] != mark || parts[2] == "" || parts[4] == "" {
		return registry.Entry{ID: name, NoMetadata: true}
	}
	e := registry.Entry{ID: parts[0], NoMetadata: true, Owner: registry.Owner{
		Cluster: parts[2], Registration: parts[3], PodUID: parts[4],
	}}
	e.Owner.Namespace, e.Owner.Pod = ownerFromID(e.ID, e.Owner.PodUID)
	if len(parts) == 7 {
		e.Owner.Namespace, e.Owner.Pod = parts[5], parts[6]
	}
	return e
}

// ownerFromID parses an id of the form <namespace>.<pod>.<first 8 characters of the
// uid>. A namespace has no dots. Both results are empty for other ids.
func ownerFromID(id, uid string) (namespace, pod string) {
	uid = strings.ReplaceAll(uid, "-", "")
	namespace, rest, _ := strings.Cut(id, ".")
	pod, found := strings.CutSuffix(rest, "."+uid[:min(8, len(uid))])
	if !found {
		return "", ""
	}
	return namespace, pod
}

// servers asks a process for the servers of a backend, none if there is no such
// backend. It asks for sessions only if someone waits for their end.
func (s *session) servers(backend string) ([]server, error) {
	answers, err := s.run("show servers state " + backend)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(answers[0]) == noBackend {
		return nil, nil
	}
	servers, err := parseServers(answers[0])
	if err != nil {
		return nil, err
	}
	idle := slices.DeleteFunc(slices.Clone(servers), func(one server) bool { return !one.idle() || one.foreign() })
	if len(idle) == 0 {
		return servers, nil
	}
	sessions, err := s.sessions(backend, idle)
	for i := range servers {
		servers[i].sessions = sessions[servers[i].name]
	}
	return servers, err
}

// table parses an answer in columns: their names after "# ", then a row a line. value returns a
// row's cell, empty if it has none.
func table(question, text string, comma rune) (rows [][]string, value func(row []string, name string) string, err error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(text), "# ")
	reader := csv.NewReader(strings.NewReader(text))
	reader.Comma, reader.FieldsPerRecord, reader.LazyQuotes = comma, -1, true
	rows, err = reader.ReadAll()
	if !ok || err != nil || len(rows) == 0 {
		return nil, nil, notUnderstood(question, text)
	}
	names := rows[0]
	return rows[1:], func(row []string, name string) string {
		if at := slices.Index(names, name); at >= 0 && at < len(row) {
			return row[at]
		}
		return ""
	}, nil
}

// parseServers parses "show servers state": a version, and a table.
func parseServers(text string) ([]server, error) {
	rows, value, err := table("show servers state", strings.TrimPrefix(text, "1\n"), ' ')
	if err != nil {
		return nil, err
	}
	servers := make([]server, 0, len(rows))
	for _, row := range rows {
		one := server{name: value(row, "srv_name")}
		one.entry = identify(one.name)
		one.entry.Address = value(row, "srv_addr")
		admin, err1 := strconv.Atoi(value(row, "srv_admin_state"))
		weight, err2 := strconv.ParseInt(value(row, "srv_uweight"), 10, 32)
		port, err3 := strconv.ParseInt(value(row, "srv_port"), 10, 32)
		if one.name == "" || err1 != nil || err2 != nil || err3 != nil {
			return nil, notUnderstood("show servers state", strings.Join(row, " "))
		}
		one.admin, one.entry.Weight, one.entry.Port = admin, int32(weight), int32(port)
		servers = append(servers, one)
	}
	return servers, nil
}

// everyProxy stands for all proxies in "show stat".
const everyProxy = "-1"

// sessions counts a backend's current sessions by server. Those of the servers of are certainly
// among them: a server that is not counted would look idle. "show stat" takes a backend's name for
// that of a frontend, if one has it, too, for a number if it begins with one and no proxy has the name,
// and for a keyword if it is "domain". Then the servers of all backends are asked for.
func (s *session) sessions(backend string, of []server) (map[string]int, error) {
	var missing string
	for _, which := range []string{backend, everyProxy} {
		answers, err := s.run("show stat " + which + " 4 -1")
		if err != nil {
			return nil, err
		}
		counts, err := parseSessions(backend, answers[0])
		at := slices.IndexFunc(of, func(one server) bool { _, counted := counts[one.name]; return !counted })
		switch {
		case err == nil && at < 0:
			return counts, nil
		case err != nil && which == everyProxy:
			return nil, err
		case err == nil:
			missing = of[at].name
		}
	}
	return nil, registry.Transient(fmt.Errorf("it does not count the sessions of server %s/%s: if that goes on, "+
		"give the backend a name that no other proxy has", backend, missing))
}

// parseSessions parses the relevant columns of "show stat": scur counts the sessions on
// a server, qcur those in its own queue.
func parseSessions(backend, text string) (map[string]int, error) {
	rows, value, err := table("show stat", text, ',')
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, row := range rows {
		sessions, err1 := strconv.Atoi(value(row, "scur"))
		waiting, err2 := strconv.Atoi(value(row, "qcur"))
		if err1 != nil || err2 != nil {
			return nil, notUnderstood("show stat", strings.Join(row, ","))
		}
		if value(row, "pxname") == backend {
			counts[value(row, "svname")] = sessions + waiting
		}
	}
	return counts, nil
}

// view is what all processes have under one ID.
type view struct {
	entry registry.Entry
	// servers lists the servers of each process: none or one, or several while the
	// entry moves to another Registration and so to a server of another name.
	servers [][]server
}

func (v view) asEntry() registry.Entry { return v.entry }

// merge makes one entry of each ID: in service if every process says so, and gone if no
// process has it.
func (r *Registry) merge(found [][]server) []view {
	byID := map[string][][]server{}
	for process, servers := range found {
		for _, s := range servers {
			if byID[s.entry.ID] == nil {
				byID[s.entry.ID] = make([][]server, len(found))
			}
			byID[s.entry.ID][process] = append(byID[s.entry.ID][process], s)
		}
	}
	views := make([]view, 0, len(byID))
	for _, servers := range byID {
		views = append(views, view{entry: r.settle(servers), servers: servers})
	}
	return views
}

// settle makes the entry of one ID. Its version is a digest of everything that can
// change, except session counts. An otherwise healthy server of weight 0 is held back
// once its last session has ended.
func (r *Registry) settle(processes [][]server) registry.Entry {
	var all strings.Builder
	var entry registry.Entry
	var leaving, unequal, lacking []string
	for at, servers := range processes {
		slices.SortFunc(servers, preferred)
		if len(servers) == 0 {
			lacking = append(lacking, fmt.Sprintf("%s does not have it", r.targets[at]))
		}
		for i, s := range servers {
			fmt.Fprintln(&all, at, s.name, s.entry.Address, s.entry.Port, s.entry.Weight, s.admin)
			switch {
			case entry.ID == "":
				entry = s.entry
			case i == 0 && !entry.Same(s.entry):
				unequal = append(unequal, fmt.Sprintf("%s has it with another address, port, weight or owner", r.targets[at]))
			}
			if i > 0 || s.leaving() {
				leaving = append(leaving, s.wait(r.targets[at]))
			}
		}
	}
	entry.Version = registry.Digest([]byte(all.String()))
	if slices.ContainsFunc(slices.Concat(processes...), server.foreign) {
		// Foreign entries need no reasons.
		return entry
	}
	entry.Connections = connections(processes)
	reasons := leaving
	if len(leaving) == 0 {
		// While other processes drain, one that has already deleted the server is no
		// reason.
		reasons = append(unequal, lacking...)
	}
	entry.Unsettled = strings.Join(reasons, "; ")
	return entry
}

// connections counts the sessions of an entry that no process chooses any more; nil if one does, or none has to wait.
func connections(processes [][]server) *int32 {
	n, waits := int32(0), false
	for _, s := range slices.Concat(processes...) {
		if !s.idle() {
			return nil
		}
		n, waits = n+int32(s.sessions), waits || s.leaving()
	}
	if !waits {
		return nil
	}
	return &n
}

// preferred sorts the servers in service first.
func preferred(a, b server) int {
	return cmp.Or(cmp.Compare(min(a.admin, 1), min(b.admin, 1)), strings.Compare(a.name, b.name))
}

// wait describes what a server without new requests waits for.
func (s server) wait(t target) string {
	switch s.sessions {
	case 0:
		return fmt.Sprintf("it is out of service on %s and about to be deleted", t)
	case 1:
		return fmt.Sprintf("it waits for 1 session on %s", t)
	}
	return fmt.Sprintf("it waits for %d sessions on %s", s.sessions, t)
}

// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
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
	if !slices.ContainsFunc(servers, func(one server) bool { return one.idle() && !one.foreign() }) {
		return servers, nil
	}
	sessions, err := s.sessions(backend)
	for i := range servers {
		servers[i].sessions = sessions[servers[i].name]
	}
	return servers, err
}

// parseServers parses "show servers state": a version, the column names, then one
// server per line.
func parseServers(text string) ([]server, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) < 2 || lines[0] != "1" || !strings.HasPrefix(lines[1], "# ") {
		return nil, notUnderstood("show servers state", text)
	}
	column := map[string]int{}
	for i, name := range strings.Fields(lines[1][1:]) {
		column[name] = i
	}
	var servers []server
	for _, line := range lines[2:] {
		one, err := parseServer(column, line)
		if err != nil {
			return nil, err
		}
		servers = append(servers, one)
	}
	return servers, nil
}

func parseServer(column map[string]int, line string) (server, error) {
	fields := strings.Fields(line)
	value := func(name string) string {
		if at, ok := column[name]; ok && at < len(fields) {
			return fields[at]
		}
		return ""
	}
	one := server{name: value("srv_name")}
	one.entry = identify(one.name)
	one.entry.Address = value("srv_addr")
	admin, err1 := strconv.Atoi(value("srv_admin_state"))
	weight, err2 := strconv.ParseInt(value("srv_uweight"), 10, 32)
	port, err3 := strconv.ParseInt(value("srv_port"), 10, 32)
	if one.name == "" || err1 != nil || err2 != nil || err3 != nil {
		return server{}, notUnderstood("show servers state", line)
	}
	one.admin, one.entry.Weight, one.entry.Port = admin, int32(weight), int32(port)
	return one, nil
}

// sessions counts a backend's current sessions by server.
func (s *session) sessions(backend string) (map[string]int, error) {
	answers, err := s.run("show stat " + backend + " 4 -1")
	if err != nil {
		return nil, err
	}
	return parseSessions(backend, answers[0])
}

// parseSessions parses the relevant columns of "show stat": scur counts the sessions on
// a server, qcur those in its own queue.
func parseSessions(backend, text string) (map[string]int, error) {
	reader := csv.NewReader(strings.NewReader(strings.TrimSpace(text)))
	reader.FieldsPerRecord, reader.LazyQuotes = -1, true
	records, err := reader.ReadAll()
	if err != nil || len(records) == 0 || len(records[0]) == 0 || records[0][0] != "# pxname" {
		return nil, notUnderstood("show stat", text)
	}
	column := map[string]int{}
	for i, name := range records[0] {
		column[name] = i
	}
	counts := map[string]int{}
	name, current, queued := column["svname"], column["scur"], column["qcur"]
	for _, record := range records[1:] {
		if len(record) <= max(name, current, queued) {
			return nil, notUnderstood("show stat", strings.Join(record, ","))
		}
		sessions, err1 := strconv.Atoi(record[current])
		waiting, err2 := strconv.Atoi(record[queued])
		if err1 != nil || err2 != nil {
			return nil, notUnderstood("show stat", strings.Join(record, ","))
		}
		if record[0] == backend {
			counts[record[name]] = sessions + waiting
		}
	}
	return counts, nil
}

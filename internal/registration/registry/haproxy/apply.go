// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// job is a change to make, with the servers that each process has for it.
type job struct {
	change registry.Change
	// name is the name of the server to put.
	name    string
	servers [][]server
}

// Apply implements registry.Connector. A failing process does not keep the changes from
// the others.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	views, err := r.look(ctx, service)
	if err != nil {
		return err
	}
	jobs, refused := r.jobs(views, changes)
	said := make([][]error, len(r.targets))
	if len(jobs) > 0 {
		err = r.each(ctx, func(at int, s *session) error {
			w := &worker{session: s, target: r.targets[at], at: at, service: service, options: r.options}
			err := w.work(jobs)
			said[at] = w.refused
			return err
		})
	}
	return errors.Join(append(slices.Concat(said...), refused, err)...)
}

// jobs checks the changes against the current servers.
func (r *Registry) jobs(views []view, changes []registry.Change) (jobs []job, refused error) {
	return registry.Decide(views, view.asEntry, changes, func(change registry.Change, there *view) (j job, err error) {
		j = job{change: change, servers: make([][]server, len(r.targets))}
		if there != nil {
			j.servers = there.servers
		}
		switch {
		case change.Op == registry.Remove:
		case change.Entry.Weight > maxWeight:
			err = registry.Permanent(fmt.Errorf("weight %d is above HAProxy's limit of %d: set a smaller one", change.Entry.Weight, maxWeight))
		default:
			j.name, err = nameOf(change.Entry)
		}
		return j, err
	})
}

// maxWeight is HAProxy's limit.
const maxWeight = 256

// worker makes the changes in one process.
type worker struct {
	*session
	target           target
	at               int
	service, options string
	refused          []error
}

// work puts before it removes, so that an entry that moves to a server of another name
// is always in service.
func (w *worker) work(jobs []job) error {
	var puts []command
	var leaving []server
	for _, j := range jobs {
		for _, s := range j.servers[w.at] {
			if s.entry.Owner.Cluster != j.change.Entry.Owner.Cluster {
				continue
			}
			if j.change.Op == registry.Remove || s.name != j.name {
				leaving = append(leaving, s)
			}
		}
		if j.change.Op == registry.Put {
			puts = append(puts, w.put(j)...)
		}
	}
	if err := w.execute(puts); err != nil {
		return err
	}
	return w.remove(leaving)
}

// put returns the commands that turn the current server into the wanted one.
func (w *worker) put(j job) []command {
	e := j.change.Entry
	full := w.service + "/" + j.name
	do := func(success *regexp.Regexp, words ...string) command {
		return command{id: e.ID, line: strings.Join(words, " "), success: success}
	}
	have := list.Find(j.servers[w.at], func(s *server) bool { return s.name == j.name })
	if have == nil {
		words := []string{"add server", full, e.HostPort(), "weight", strconv.Itoa(int(e.Weight))}
		commands := []command{do(added, append(words, strings.Fields(w.options)...)...)}
		if slices.Contains(strings.Fields(w.options), "check") {
			commands = append(commands, do(silent, "enable health", full))
		}
		// The keyword "enabled" would not do: HAProxy 2.6 shows such a server as up but
		// sends it no requests.
		return append(commands, do(silent, "set server", full, "state ready"))
	}
	var commands []command
	if have.entry.Address != e.Address || have.entry.Port != e.Port {
		commands = append(commands, do(moved, "set server", full, "addr", e.Address, "port", strconv.Itoa(int(e.Port))))
	}
	if have.entry.Weight != e.Weight {
		commands = append(commands, do(silent, "set server", full, "weight", strconv.Itoa(int(e.Weight))))
	}
	if have.admin != 0 {
		commands = append(commands, do(silent, "set server", full, "state ready"))
	}
	return commands
}

// remove hides servers from callers, and deletes those without a session. HAProxy
// itself refuses to delete a server that a request has chosen but not reached yet.
func (w *worker) remove(leaving []server) error {
	if len(leaving) == 0 {
		return nil
	}
	var drains, deletions []command
	for _, s := range leaving {
		if s.admin == 0 {
			drains = append(drains, command{s.entry.ID, "set server " + w.service + "/" + s.name + " state drain", silent})
		}
	}
	if err := w.execute(drains); err != nil {
		return err
	}
	sessions, err := w.sessions(w.service, leaving)
	if err != nil {
		return err
	}
	for _, s := range leaving {
		if full := w.service + "/" + s.name; sessions[s.name] == 0 {
			deletions = append(deletions, command{s.entry.ID, "set server " + full + " state maint", silent},
				command{s.entry.ID, "del server " + full, deleted})
		}
	}
	return w.execute(deletions)
}

// execute runs commands. A refusal by HAProxy is reported for its change.
func (w *worker) execute(commands []command) error {
	answers, err := w.run(list.Map(commands, func(c command) string { return c.line })...)
	if err != nil {
		return err
	}
	for i, c := range commands {
		if err := c.check(answers[i]); err != nil {
			w.refused = append(w.refused, &registry.ChangeError{ID: c.id, Err: fmt.Errorf("%s: %w", w.target, err)})
		}
	}
	return nil
}

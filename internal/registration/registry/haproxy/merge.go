// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

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
	at := map[string]int{}
	var views []view
	for process, servers := range found {
		for _, s := range servers {
			i, known := at[s.entry.ID]
			if !known {
				i = len(views)
				at[s.entry.ID] = i
				views = append(views, view{servers: make([][]server, len(r.targets))})
			}
			views[i].servers[process] = append(views[i].servers[process], s)
		}
	}
	for i := range views {
		views[i].entry = r.settle(views[i].servers)
	}
	slices.SortFunc(views, func(a, b view) int { return strings.Compare(a.entry.ID, b.entry.ID) })
	return views
}

// settle makes the entry of one ID. Its version is a digest of everything that can
// change, except session counts. An otherwise healthy server of weight 0 is held back
// once its last session has ended.
func (r *Registry) settle(processes [][]server) registry.Entry {
	var all strings.Builder
	var entry registry.Entry
	var leaving, unequal []string
	missing := make([]bool, len(processes))
	for at, servers := range processes {
		slices.SortFunc(servers, preferred)
		missing[at] = len(servers) == 0
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
	if slices.ContainsFunc(processes, hasForeign) {
		// Foreign entries need no reasons.
		return entry
	}
	reasons := leaving
	if len(leaving) == 0 {
		// While other processes drain, one that has already deleted the server is no
		// reason.
		reasons = append(unequal, r.lacking(missing)...)
	}
	entry.Unsettled = strings.Join(reasons, "; ")
	return entry
}

func hasForeign(servers []server) bool { return slices.ContainsFunc(servers, server.foreign) }

func (r *Registry) lacking(missing []bool) []string {
	var reasons []string
	for at, target := range r.targets {
		if missing[at] {
			reasons = append(reasons, fmt.Sprintf("%s does not have it", target))
		}
	}
	return reasons
}

// preferred sorts the servers in service first.
func preferred(a, b server) int {
	if out := min(a.admin, 1) - min(b.admin, 1); out != 0 {
		return out
	}
	return strings.Compare(a.name, b.name)
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

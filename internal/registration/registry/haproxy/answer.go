// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"fmt"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// HAProxy's answers. It has no status codes: any other text is an error.
const (
	noBackend       = "Can't find backend."
	noSuchBackend   = "No such backend."
	noSuchServer    = "No such server."
	added           = "New server registered."
	deleted         = "Server deleted."
	alreadyExists   = "Already exists a server with the same name in backend."
	stillConnected  = "still has connections attached"
	notInMaint      = "Only servers in maintenance mode can be deleted."
	permissionError = "Permission denied"
	unknownCommand  = "Unknown command"
)

// command is a line for HAProxy, with the answers that it may give.
type command struct {
	id, line string
	// accepts reports whether an answer means success.
	accepts func(answer string) bool
}

// check converts an answer to an error: nil if the command succeeded.
func (c command) check(answer string) error {
	answer = strings.TrimSpace(answer)
	switch {
	case c.accepts(answer):
		return nil
	case answer == alreadyExists, answer == noSuchServer, answer == notInMaint:
		return fmt.Errorf("%s: %w", answer, registry.ErrConflict)
	case answer == noSuchBackend:
		return registry.Permanent(fmt.Errorf("no backend has the service's name: add it to the configuration"))
	case strings.HasPrefix(answer, permissionError):
		return registry.Permanent(fmt.Errorf("permission denied: add \"level admin\" to its stats socket"))
	case strings.HasPrefix(answer, unknownCommand):
		return registry.Permanent(fmt.Errorf("it does not know %q: HAProxy 2.6 or newer is needed", verb(c.line)))
	}
	return registry.Permanent(fmt.Errorf("%q answered: %s", verb(c.line), registry.Excerpt(answer)))
}

// verb returns the command without its arguments.
func verb(line string) string {
	words := strings.Fields(line)
	return strings.Join(words[:min(2, len(words))], " ")
}

func notUnderstood(question, answer string) error {
	return registry.Permanent(fmt.Errorf("cannot read the answer to %q, HAProxy 2.6 or newer is needed: %s", question, registry.Excerpt(answer)))
}

func silent(answer string) bool { return answer == "" }

func isAdded(answer string) bool { return answer == added || strings.HasSuffix(answer, "\n"+added) }

// moved accepts the answers of "set server … addr …", which describe the change.
func moved(answer string) bool {
	return strings.HasPrefix(answer, "IP changed from ") || strings.HasPrefix(answer, "port changed from ") ||
		strings.HasPrefix(answer, "no need to change the addr")
}

// isDeleted also accepts a server that cannot go yet: it stays listed and is deleted
// later.
func isDeleted(answer string) bool {
	return answer == deleted || answer == noSuchServer || strings.Contains(answer, stillConnected)
}

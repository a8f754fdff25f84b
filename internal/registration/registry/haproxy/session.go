// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// prompt ends every answer in interactive mode.
	prompt = "\n> "
	// pipelined is how many commands are sent before their answers are read. HAProxy
	// stops reading if nobody reads its answers.
	pipelined = 16
)

// session is one connection to a process, in interactive mode.
type session struct {
	conn    net.Conn
	answers *bufio.Scanner
}

// with opens a session for one call. Errors name the process and are typed.
func (t target) with(ctx context.Context, call func(*session) error) error {
	err := t.try(ctx, call)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err() // The connection's own error only says that it was cut.
	}
	named := fmt.Errorf("%s: %w", t, err)
	switch {
	case errors.Is(err, registry.ErrPermanent), errors.Is(err, registry.ErrTransient):
		return named
	case refuses(err):
		return registry.Permanent(named)
	}
	return registry.Transient(named)
}

func (t target) try(ctx context.Context, call func(*session) error) error {
	conn, err := t.dial(ctx, t.network, t.address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // Every answer was read, or the call failed.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	reader := bufio.NewReader(registry.Taking(ctx, conn))
	if err := greet(conn, reader); err != nil {
		return err
	}
	return call(&session{conn: conn, answers: answersOf(reader)})
}

// refuses reports whether a connection failed for a permanent reason.
func refuses(err error) bool {
	// An alert from the other side, such as "certificate required", has no type.
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return true
	}
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, otherProtocol := errors.AsType[tls.RecordHeaderError](err)
	return unverified || otherProtocol || errors.Is(err, fs.ErrPermission)
}

// greet turns the prompt on. It detects anything that speaks another protocol.
func greet(conn net.Conn, reader *bufio.Reader) error {
	if _, err := conn.Write([]byte("prompt\n")); err != nil {
		return err
	}
	head, err := reader.Peek(len(prompt))
	if !strings.HasPrefix(prompt, string(head)) {
		return registry.Permanent(errors.New("this is not the runtime API of a worker process: " +
			"use the address of a stats socket, not the master's or another service's"))
	}
	if err == nil {
		_, err = reader.Discard(len(prompt))
	}
	return err
}

// run sends commands and returns their answers, in order.
func (s *session) run(commands ...string) ([]string, error) {
	answers := make([]string, 0, len(commands))
	for batch := range slices.Chunk(commands, pipelined) {
		if _, err := s.conn.Write([]byte(strings.Join(batch, "\n") + "\n")); err != nil {
			return nil, err
		}
		for range batch {
			answer, err := s.answer()
			if err != nil {
				return nil, err
			}
			answers = append(answers, answer)
		}
	}
	return answers, nil
}

// answer reads up to the next prompt.
func (s *session) answer() (string, error) {
	if !s.answers.Scan() {
		return "", fmt.Errorf("in the middle of an answer: %w", cmp.Or(s.answers.Err(), io.EOF))
	}
	return s.answers.Text(), nil
}

// answersOf separates the answers that a process gives by their prompts.
func answersOf(reader io.Reader) *bufio.Scanner {
	answers := bufio.NewScanner(reader)
	answers.Buffer(nil, math.MaxInt) // The reader has a bound of its own.
	answers.Split(func(data []byte, atEOF bool) (advance int, token []byte, err error) {
		if answer, _, found := bytes.Cut(data, []byte(prompt)); found {
			return len(answer) + len(prompt), answer, nil
		}
		if atEOF {
			return 0, nil, io.EOF // Without a prompt, an answer is not whole.
		}
		return 0, nil, nil
	})
	return answers
}

// HAProxy's answers. It has no status codes: any text but these is an error.
var (
	silent = regexp.MustCompile(`^$`)
	// added may follow a warning.
	added = regexp.MustCompile(`(^|\n)New server registered\.$`)
	// moved are the answers of "set server … addr …", which describe the change.
	moved = regexp.MustCompile(`^(IP changed from |port changed from |no need to change the addr)`)
	// deleted is also a server that cannot go yet: it stays listed and is deleted later.
	deleted = regexp.MustCompile(`^Server deleted\.$|^No such server\.$|still has connections attached`)
)

// What it says of an error.
const (
	noBackend       = "Can't find backend."
	noSuchBackend   = "No such backend."
	noSuchServer    = "No such server."
	alreadyExists   = "Already exists a server with the same name in backend."
	notInMaint      = "Only servers in maintenance mode can be deleted."
	permissionError = "Permission denied"
	unknownCommand  = "Unknown command"
)

// command is a line for HAProxy, with the answers that it may give.
type command struct {
	id, line string
	// success matches the answers that mean it.
	success *regexp.Regexp
}

// check converts an answer to an error: nil if the command succeeded.
func (c command) check(answer string) error {
	answer = strings.TrimSpace(answer)
	switch {
	case c.success.MatchString(answer):
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

// SPDX-License-Identifier: Apache-2.0

package haproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
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
	conn   net.Conn
	reader *bufio.Reader
}

// with opens a session for one call. Errors name the process and are typed.
func (t target) with(ctx context.Context, call func(*session) error) error {
	err := t.try(ctx, call)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		// The connection's own error only says that it was cut.
		return registry.Transient(fmt.Errorf("%s: %w", t, ctx.Err()))
	case errors.Is(err, registry.ErrPermanent), errors.Is(err, registry.ErrTransient):
		return fmt.Errorf("%s: %w", t, err)
	case refuses(err):
		return registry.Permanent(fmt.Errorf("%s: %w", t, err))
	}
	return registry.Transient(fmt.Errorf("%s: %w", t, err))
}

func (t target) try(ctx context.Context, call func(*session) error) error {
	conn, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // Every answer was read, or the call failed.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s := &session{conn: conn, reader: bufio.NewReader(conn)}
	if err := s.greet(); err != nil {
		return err
	}
	return call(s)
}

// refuses reports whether a connection failed for a permanent reason.
func refuses(err error) bool {
	// An alert from the other side, such as "certificate required", has no type.
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return true
	}
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	return errors.As(err, &verification) || errors.As(err, &record) ||
		errors.As(err, &authority) || errors.Is(err, fs.ErrPermission)
}

// greet turns the prompt on. It detects anything that speaks another protocol.
func (s *session) greet() error {
	if _, err := s.conn.Write([]byte("prompt\n")); err != nil {
		return err
	}
	head := make([]byte, 0, len(prompt))
	for len(head) < len(prompt) {
		b, err := s.reader.ReadByte()
		if err != nil {
			return err
		}
		head = append(head, b)
		if !strings.HasPrefix(prompt, string(head)) {
			return registry.Permanent(errors.New("this is not the runtime API of a worker process: " +
				"use the address of a stats socket, not the master's or another service's"))
		}
	}
	return nil
}

// run sends commands and returns their answers, in order.
func (s *session) run(commands ...string) ([]string, error) {
	answers := make([]string, 0, len(commands))
	for len(commands) > 0 {
		batch := commands[:min(len(commands), pipelined)]
		commands = commands[len(batch):]
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
	var text []byte
	for {
		part, err := s.reader.ReadSlice('>')
		text = append(text, part...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return "", fmt.Errorf("in the middle of an answer: %w", err)
		}
		if len(text) > registry.MaxAnswer {
			return "", registry.TooMuch("it")
		}
		if err != nil || !endsLine(text) {
			continue
		}
		space, err := s.reader.ReadByte()
		if err != nil {
			return "", fmt.Errorf("in the middle of an answer: %w", err)
		}
		text = append(text, space)
		if space == ' ' {
			return string(text[:max(len(text)-len(prompt), 0)]), nil
		}
	}
}

// endsLine reports whether a > begins a line, as a prompt's does. An answer without
// text is just the prompt.
func endsLine(text []byte) bool {
	return len(text) >= 2 && text[len(text)-2] == '\n'
}

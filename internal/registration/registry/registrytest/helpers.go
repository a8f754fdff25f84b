// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/conformance"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const (
	// Secret is the password or token of tests. No error may contain it.
	Secret = "s3cret"
	// patience bounds every wait: Java servers react slowly when many tests share a
	// processor.
	patience = 2 * time.Minute
	// poll is how often to check a condition.
	poll = 20 * time.Millisecond
)

// Counted is the context of a call where Usher holds at most so many bytes of answers.
func Counted(t *testing.T, bytes int64) context.Context {
	t.Helper()
	ctx, release := registry.NewAnswers(bytes).Share(t.Context())
	t.Cleanup(release)
	ctx, done := registry.Counted(ctx)
	t.Cleanup(func() { done(nil) })
	return ctx
}

// Bounded returns a context that ends with the test, or when a server takes too long.
func Bounded(t *testing.T) context.Context {
	t.Helper()
	return within(t, patience)
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits until check returns "". If it never does, the test fails with its
// last answer.
func Eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	for ctx := Bounded(t); ; {
		wrong := check()
		if wrong == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %s for %s: %s", patience, what, wrong)
		case <-time.After(poll):
		}
	}
}

// Unless returns "" if the condition holds, and otherwise what is wrong: an answer for
// Eventually.
func Unless(holds bool, wrong string) string {
	if holds {
		return ""
	}
	return wrong
}

// Until is Eventually for a condition that has nothing to say.
func Until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	Eventually(t, what, func() string { return Unless(holds(), "it is not so") })
}

// Connect is checktest.Must for a connector, or another client, that is closed at the end of the test.
func Connect[C io.Closer](c C, err error) func(*testing.T) C {
	return func(t *testing.T) C {
		t.Helper()
		checktest.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// Serve runs an HTTP server for the duration of the test, and returns its URL.
func Serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// Entry returns the entry of a Pod.
func Entry(id string) registry.Entry {
	return registry.Entry{
		ID: id, Address: "10.0.0.1", Port: 8080, Weight: 10, Metadata: map[string]string{"zone": "a"},
		Owner: registry.Owner{Cluster: "here", Namespace: "demo", Registration: "web", Pod: id, PodUID: "uid-" + id},
	}
}

// SixEntry returns the entry of a Pod with an IPv6 address.
func SixEntry() registry.Entry {
	e := Entry("demo.web-1.0a")
	e.Address, e.Port = "fd00::1", 80
	return e
}

// List lists the service "web".
func List(t *testing.T, c registry.Connector) []registry.Entry {
	t.Helper()
	return listed(t, c, service)
}

func listed(t *testing.T, c registry.Connector, service string) []registry.Entry {
	t.Helper()
	return checktest.Must(c.List(Bounded(t), service))(t)
}

// Only returns the only entry of the service "web".
func Only(t *testing.T, c registry.Connector) registry.Entry {
	t.Helper()
	entries := List(t, c)
	if len(entries) != 1 {
		t.Fatalf("%d entries are listed, want one: %+v", len(entries), entries)
	}
	return entries[0]
}

// Find returns the entry with the ID, nil if it is not listed.
func Find(entries []registry.Entry, id string) *registry.Entry {
	for i := range entries {
		if entries[i].ID == id {
			return &entries[i]
		}
	}
	return nil
}

// Put registers entries in the service "web", as a pass does: it starts from a list. It
// returns the list afterwards.
func Put(t *testing.T, c registry.Connector, entries ...registry.Entry) []registry.Entry {
	t.Helper()
	return change(t, c, service, put(entries...))
}

// Remove is Put for entries that leave.
func Remove(t *testing.T, c registry.Connector, entries ...registry.Entry) []registry.Entry {
	t.Helper()
	return change(t, c, service, remove(entries...))
}

// PutMany registers n entries with ports of their own, and checks that all are listed.
func PutMany(t *testing.T, c registry.Connector, n int) (all []registry.Entry) {
	t.Helper()
	for i := range n {
		e := Entry(fmt.Sprintf("demo.web-%04d.00000000", i))
		e.Port = int32(1000 + i)
		all = append(all, e)
	}
	checktest.Same(t, "how many are listed", n, len(Put(t, c, all...)))
	return all
}

// Heals registers an entry, and checks that it is listed like that, whatever was there before.
func Heals(t *testing.T, what string, c registry.Connector, want registry.Entry) {
	t.Helper()
	if have := Find(Put(t, c, want), want.ID); have == nil || !have.Same(want) {
		t.Errorf("%s: the entry is %+v after the repair, want %+v", what, have, want)
	}
}

// CheckNone checks that no entries are listed.
func CheckNone(t *testing.T, what string, listed []registry.Entry) {
	t.Helper()
	if len(listed) > 0 {
		t.Errorf("%s: %d are listed: %.3v", what, len(listed), listed)
	}
}

func change(t *testing.T, c registry.Connector, service string, changes []registry.Change) []registry.Entry {
	t.Helper()
	checktest.NoError(t, tryChange(t, c, service, changes))
	return listed(t, c, service)
}

// TryChange is Put or Remove, but returns the connector's error.
func TryChange(t *testing.T, c registry.Connector, op registry.Op, entries ...registry.Entry) error {
	t.Helper()
	return tryChange(t, c, service, changes(op, entries))
}

func tryChange(t *testing.T, c registry.Connector, service string, changes []registry.Change) error {
	t.Helper()
	versions := map[string]string{}
	for _, e := range listed(t, c, service) {
		versions[e.ID] = e.Version
	}
	for i := range changes {
		changes[i].Entry.Version = versions[changes[i].Entry.ID]
	}
	return c.Apply(Bounded(t), service, changes)
}

func put(entries ...registry.Entry) []registry.Change { return changes(registry.Put, entries) }

func remove(entries ...registry.Entry) []registry.Change { return changes(registry.Remove, entries) }

func changes(op registry.Op, entries []registry.Entry) []registry.Change {
	return list.Map(entries, func(e registry.Entry) registry.Change { return registry.Change{Op: op, Entry: e} })
}

// TryPut registers new entries in the service "web" and returns the connector's error.
func TryPut(t *testing.T, c registry.Connector, entries ...registry.Entry) error {
	t.Helper()
	return c.Apply(Bounded(t), service, put(entries...))
}

// Check checks that an error has the mark, nil for no error, and mentions all the words,
// but not Secret.
func Check(t *testing.T, what string, err, mark error, words ...string) {
	t.Helper()
	if conformance.Check(t, what, err, mark, words...) && strings.Contains(fmt.Sprint(err), Secret) {
		t.Errorf("%s: the error reveals a secret: %v", what, err)
	}
}

// Verdict says in a word what an error means, which must not contain Secret.
func Verdict(t *testing.T, err error) string {
	t.Helper()
	for word, mark := range map[string]error{
		"well": nil, "permanent": registry.ErrPermanent, "transient": registry.ErrTransient, "conflict": registry.ErrConflict,
	} {
		if (err == nil) == (mark == nil) && errors.Is(err, mark) {
			Check(t, "the error", err, mark)
			return word
		}
	}
	return fmt.Sprint(err)
}

// CheckRefused is Check for the error of Apply that refuses exactly one change.
func CheckRefused(t *testing.T, what string, err error, id string, mark error, words ...string) {
	t.Helper()
	if reason := conformance.CheckRefused(t, what, err, id); reason != nil {
		Check(t, what, reason, mark, words...)
	}
}

// FuzzDecode decodes whatever a registry may answer: decode must not panic, and must return the
// same entries each time. It begins with the seeds; without any, with the answers in
// testdata/decode.txt, of which the entries come that stand there.
func FuzzDecode(f *testing.F, decode func(text string) []registry.Entry, seeds ...string) {
	f.Helper()
	if len(seeds) == 0 {
		for _, s := range scenariotest.Read(f, "testdata/decode.txt") {
			seeds = append(seeds, strings.Join(s.Given, "\n"))
			checktest.Same(f, s.Name, strings.Join(s.Want, "\n"), shown(decode(seeds[len(seeds)-1])))
		}
	}
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if first, second := decode(text), decode(text); !reflect.DeepEqual(first, second) {
			t.Errorf("%q is first %+v, and then %+v", text, first, second)
		}
	})
}

// shown are entries as testdata/decode.txt has them.
func shown(entries []registry.Entry) string {
	var lines []string
	for _, e := range entries {
		line := fmt.Sprintf("%s: %s, weight %d, %v, %s; %s", e.ID, e.HostPort(), e.Weight, e.Metadata, e.Owner, e.Unsettled)
		lines = append(lines, strings.TrimRight(line, "; "))
	}
	return strings.Join(lines, "\n")
}

// CheckAddresses checks that each of these is refused permanently: addresses that are none, and a
// Secret for https.
func CheckAddresses[C registry.Connector](t *testing.T, connect func(address string, secret map[string][]byte) (C, error)) {
	t.Helper()
	CheckOptions(t, map[string]error{
		"no address":      Refusal(connect("", nil)),
		"no scheme":       Refusal(connect("localhost:8500", nil)),
		"no host":         Refusal(connect("://", nil)),
		"another scheme":  Refusal(connect("ftp://localhost", nil)),
		"user in address": Refusal(connect("http://me:"+Secret+"@localhost:8500", nil)),
		"no certificate":  Refusal(connect("https://localhost", map[string][]byte{credentials.KeyCA: []byte(Secret)})),
	})
}

// CheckOptions checks that each of these options was refused permanently.
func CheckOptions(t *testing.T, refused map[string]error) {
	t.Helper()
	for name, err := range refused {
		Check(t, name, err, registry.ErrPermanent)
	}
}

// Refusal is the error of a connector's New, for CheckOptions.
func Refusal[C any](_ C, err error) error { return err }

// Listen runs a server on loopback that calls serve with each connection, and returns its
// address.
func Listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	checktest.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}

// Say sends every client of Listen the same text and closes the connection.
func Say(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Write([]byte(text))
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // The client may still be sending.
		}
	}
}

// Answer is what a server answers to a list, and how to another request that tells it from other
// servers.
type Answer struct {
	Code   int
	Header http.Header
	Body   string
	Other  int
}

// CheckAnswers checks what a connector makes of the answers in testdata/answers.txt, beside it and
// here. list calls List with a server that gives the answer.
func CheckAnswers(t *testing.T, list func(t *testing.T, a Answer) error) {
	t.Helper()
	for _, file := range []string{"../registrytest/testdata/answers.txt", "testdata/answers.txt"} {
		scenariotest.Table(t, file, func(t *testing.T, a Answer) string { return Verdict(t, list(t, a)) })
	}
}

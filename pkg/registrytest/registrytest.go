// SPDX-License-Identifier: Apache-2.0

// Package registrytest tries whether a server does what Usher needs of a webhook registry
// (docs/registry/webhook.md). The command usher-conformance prints what it finds. In a Go test of your own server:
//
//	rows, err := registrytest.Webhook{URL: server.URL}.Try(t.Context())
//	if err != nil {
//		t.Fatal(err)
//	}
//	for _, row := range rows {
//		if row.Result == registrytest.Fails {
//			t.Errorf("%s: the server must %s\n%s", row.Name, row.Must, row.Seen)
//		}
//	}
//
// The connectors of Usher's own kinds pass the same cases.
package registrytest

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/conformance"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/webhook"
)

// Webhook is a server to be tried, which should be none that callers use: several hundred entries come and go.
type Webhook struct {
	// URL is what spec.webhook.url of a Registry would be, such as https://registrar.example.com/usher.
	URL string
	// HMAC is the key that signs requests. Default: none, and the server's check of signatures is not tried.
	HMAC []byte
	// CA is the PEM bundle that verifies the server's certificate. Default: the system's roots.
	CA []byte
	// Timeout limits each call, as spec.timeout does. Default: 5 s.
	Timeout time.Duration
	// Service is the one service to use, for servers that know only services made elsewhere. It must be empty, and is
	// empty afterwards. Default: services of new names that begin with "usher-conformance-".
	Service string
	// Foreign names an entry as SERVICE/ID that something other than Usher has written, for instance by hand. It is
	// listed, and changes to it are asked for, which the server must refuse. Default: none, and that is not tried.
	Foreign string
	// Stay is how long an entry must remain listed without a heartbeat. Default: that is not tried.
	Stay time.Duration
}

// Result is what became of a row.
type Result string

// The results.
const (
	// Holds: the server does it.
	Holds Result = "holds"
	// Fails: it does not.
	Fails Result = "does not hold"
	// NotTried: it could not be tried.
	NotTried Result = "not tried"
)

// Row is something that must hold.
type Row struct {
	// Name says what must hold.
	Name string
	// Must is what the server must do, as the end of a sentence that begins with "the server must".
	Must string
	// Result says whether it holds.
	Result Result
	// Seen is, if it does not hold, what was seen, in one line or several; if it was not tried, why.
	Seen string
}

// rowLimit bounds a row, and cleanLimit what removes its entries.
const (
	rowLimit   = 3 * time.Minute
	cleanLimit = 30 * time.Second
)

// Try tries the server, row after row, which takes some seconds and Stay. A row that would only repeat what an
// earlier one has shown is not tried. The entries of a row are removed at its end, as far as the server does
// that. The error is about the options, or ctx; it is nil whatever the server does.
func (w Webhook) Try(ctx context.Context) ([]Row, error) {
	w.Timeout = cmp.Or(w.Timeout, conformance.CallTimeout)
	client, err := webhook.New(w.URL, w.secret())
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // Its connections are idle.
	foreign, id, named := strings.Cut(w.Foreign, "/")
	if w.Foreign != "" && (!named || foreign == "" || id == "") {
		return nil, fmt.Errorf("foreign is %q: write it like SERVICE/ID", w.Foreign)
	}
	var rows []Row
	for _, c := range slices.Concat(probes(w, client), w.cases()) { //nolint:contextcheck // Cases get theirs when they are played.
		if c.Must == "" || c.Name == conformance.Held { // about Usher's side alone, or of other kinds
			continue
		}
		rows = append(rows, w.row(ctx, client, c, rows))
		if ctx.Err() != nil {
			return rows, fmt.Errorf("%s: %w", c.Name, context.Cause(ctx))
		}
	}
	return rows, nil
}

// secret is what the credentials Secret would have.
func (w Webhook) secret() map[string][]byte {
	secret := map[string][]byte{}
	if len(w.HMAC) > 0 {
		secret[webhook.KeyHMAC] = w.HMAC
	}
	if len(w.CA) > 0 {
		secret[credentials.KeyCA] = w.CA
	}
	return secret
}

// cases are those of all registries, and those of this protocol.
func (w Webhook) cases() []conformance.Case {
	all := append(conformance.Cases(), ours()...)
	all[0].After = append(all[0].After, ends) // the first one lists
	return append(all, w.stays())
}

// row tries one case after others.
func (w Webhook) row(ctx context.Context, client *webhook.Registry, c conformance.Case, before []Row) Row {
	row := Row{Name: c.Name, Must: c.Must, Result: NotTried}
	f := w.fixture(client)
	if c.Lacks != nil {
		row.Seen = c.Lacks(f)
	}
	for _, name := range c.After {
		if slices.ContainsFunc(before, func(r Row) bool { return r.Name == name && r.Result != Holds }) {
			row.Seen = "first, this must hold: " + name
		}
	}
	if row.Seen != "" {
		return row
	}
	if f.Seed != nil && c.Name == conformance.Foreign {
		f.Service, f.Foreign, _ = strings.Cut(w.Foreign, "/")
	}
	row.Result = Holds
	wrong := play(ctx, c, f)
	if f.Foreign == "" {
		clean(ctx, client, f.Service)
	}
	if len(wrong) > 0 {
		row.Result, row.Seen = Fails, strings.Join(wrong, "\n")
	}
	return row
}

func (w Webhook) fixture(client registry.Connector) conformance.Fixture {
	f := conformance.Fixture{
		Connector: client, Timeout: w.Timeout, Service: w.Service, OneService: w.Service != "", Atomic: true,
	}
	if w.Service == "" {
		f.Service = "usher-conformance-" + strings.ToLower(rand.Text()[:8])
	}
	if w.Foreign != "" {
		f.Seed = func(string, string) {} // Somebody has.
	}
	return f
}

// player gathers what does not hold in a case.
type player struct {
	ctx   context.Context // of the case, as long as which it lives
	mu    sync.Mutex
	wrong []string
}

// Helper implements conformance.T.
func (p *player) Helper() {}

// Context implements conformance.T.
func (p *player) Context() context.Context { return p.ctx }

// Errorf implements conformance.T.
func (p *player) Errorf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// Fatalf implements conformance.T.
func (p *player) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

// play returns what does not hold.
func play(ctx context.Context, c conformance.Case, f conformance.Fixture) []string {
	ctx, cancel := context.WithTimeout(ctx, rowLimit)
	defer cancel()
	p := &player{ctx: ctx}
	var playing sync.WaitGroup
	playing.Go(func() { c.Run(p, f) }) // Fatalf ends its goroutine
	playing.Wait()
	return p.wrong
}

// clean removes what a case has left, as far as the server does what it should: its rows say whether it does.
func clean(ctx context.Context, client registry.Connector, service string) {
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	entries, _ := client.List(ctx, service)
	byCluster := map[string][]registry.Change{}
	for _, e := range entries {
		if cluster := e.Owner.Cluster; cluster != "" {
			byCluster[cluster] = append(byCluster[cluster], registry.Change{Op: registry.Remove, Entry: e})
		}
	}
	for _, changes := range byCluster {
		_ = client.Apply(ctx, service, changes)
	}
}

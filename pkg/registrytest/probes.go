// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/conformance"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/webhook"
)

// The names of rows that others come after.
const (
	answers   = "it answers"
	redirects = "it redirects nothing"
	codes     = "its status codes say success"
	ends      = "its answers end"
)

// maxAnswer is how long an answer about an empty service may be, in bytes.
const maxAnswer = 1 << 20

// probes are rows about HTTP, before those that need entries.
func probes(w Webhook, client *webhook.Registry) []conformance.Case {
	p := &prober{webhook: w, at: client.URL}
	return []conformance.Case{
		{Name: answers, Must: "answer POST requests at " + client.URL(webhook.PathPing), Run: p.answers},
		{Name: redirects, Must: "answer by itself: redirects are never followed, because they would carry signed requests to " +
			"another host", After: []string{answers}, Run: p.redirects},
		{Name: codes, Must: "answer list with 200, and ping and apply with 200 or 204; refused changes are in the body of a " +
			"200, not in the status code", After: []string{redirects}, Run: p.codes},
		{Name: ends, Must: fmt.Sprintf("end each answer within %s, and one about an empty service within %d bytes", w.Timeout, maxAnswer),
			After: []string{codes}, Run: p.ends},
		{Name: "only genuine requests are obeyed", Must: "refuse, for instance with 401, requests without a signature, with that of another " +
			"key, path or body, and with one whose timestamp is an hour old", After: []string{codes}, Lacks: p.unsigned, Run: p.genuine},
	}
}

// prober sends requests past the connector, whose answers it looks at.
type prober struct {
	webhook Webhook
	at      func(path string) string
}

// question is a request that changes nothing.
type question struct {
	what, path string
	body       any
	// signature says how it is signed; nil as it should be.
	signature func(key []byte, timestamp, path string, body []byte) (stamp, signature string)
}

// questions are one of each operation.
func questions() []question {
	nobody := registry.Entry{ID: "here.web-000", Owner: registry.Owner{Cluster: "here", PodUID: "uid-0"}}
	const service = "usher-conformance-none"
	return []question{
		{what: "ping", path: webhook.PathPing, body: struct{}{}},
		{what: "list", path: webhook.PathList, body: webhook.ListRequest{Service: service}},
		{what: "apply", path: webhook.PathApply, body: webhook.ApplyRequest{
			Service: service, Changes: []registry.Change{{Op: registry.Remove, Entry: nobody}},
		}},
	}
}

// ask sends a question; then reads its answer.
func (p *prober) ask(ctx context.Context, q question, then func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.webhook.Timeout)
	defer cancel()
	body := encode.JSON(q.body)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.at(q.path), bytes.NewReader(body))
	if err != nil {
		return err
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	signature := webhook.Sign(p.webhook.HMAC, stamp, q.path, body)
	if q.signature != nil {
		stamp, signature = q.signature(p.webhook.HMAC, stamp, q.path, body)
	}
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"}, webhook.HeaderTimestamp: {stamp},
	}
	if len(p.webhook.HMAC) > 0 && signature != "" {
		request.Header.Set(webhook.HeaderSignature, signature)
	}
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // then has read what it needs.
	return then(response)
}

// client is one that follows no redirect.
func (p *prober) client() (*http.Client, error) {
	config, err := credentials.TLS(p.webhook.secret())
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: refuse}, nil
}

// each asks all questions, and reports what is wrong with an answer.
func (p *prober) each(t conformance.T, all []question, wrong func(question, *http.Response) error) {
	for _, q := range all {
		if err := p.ask(t.Context(), q, func(r *http.Response) error { return wrong(q, r) }); err != nil {
			t.Errorf("%s: %v", q.what, err)
		}
	}
}

func (p *prober) answers(t conformance.T, _ conformance.Fixture) {
	p.each(t, questions()[:1], func(question, *http.Response) error { return nil })
}

func (p *prober) redirects(t conformance.T, _ conformance.Fixture) {
	p.each(t, questions(), func(_ question, r *http.Response) error {
		if r.StatusCode >= 300 && r.StatusCode < 400 {
			return fmt.Errorf("it answered %s, to %s", r.Status, registry.Excerpt(r.Header.Get("Location")))
		}
		return nil
	})
}

func (p *prober) codes(t conformance.T, _ conformance.Fixture) {
	p.each(t, questions(), func(q question, r *http.Response) error {
		if r.StatusCode == http.StatusOK || r.StatusCode == http.StatusNoContent && q.path != webhook.PathList {
			return nil
		}
		start, _ := io.ReadAll(io.LimitReader(r.Body, 512)) // what there is of it
		return fmt.Errorf("it answered %s: %s", r.Status, registry.Excerpt(string(start)))
	})
}

func (p *prober) ends(t conformance.T, _ conformance.Fixture) {
	p.each(t, questions(), func(_ question, r *http.Response) error {
		read, err := io.Copy(io.Discard, io.LimitReader(r.Body, maxAnswer+1))
		switch {
		case read > maxAnswer:
			return fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("the answer had not ended after %s: %d bytes came", p.webhook.Timeout, read)
		}
		return err
	})
}

// unsigned says why signatures are not tried.
func (p *prober) unsigned(conformance.Fixture) string {
	if len(p.webhook.HMAC) == 0 {
		return "no key is given that signs requests"
	}
	return ""
}

// genuine sends requests that somebody else could send.
func (p *prober) genuine(t conformance.T, _ conformance.Fixture) {
	all := questions()[1:]
	forged := []question{}
	for what, sign := range map[string]func(key []byte, stamp, path string, body []byte) (string, string){
		"without a signature": func(_ []byte, stamp, _ string, _ []byte) (string, string) { return stamp, "" },
		"signed by another key": func(_ []byte, s, path string, b []byte) (string, string) {
			return s, webhook.Sign([]byte("x"), s, path, b)
		},
		"with the signature of another path": func(key []byte, s, _ string, b []byte) (string, string) {
			return s, webhook.Sign(key, s, webhook.PathPing, b)
		},
		"with the signature of another body": func(key []byte, s, path string, _ []byte) (string, string) {
			return s, webhook.Sign(key, s, path, []byte("{}"))
		},
		"with a timestamp that is an hour old": func(key []byte, _, path string, b []byte) (string, string) {
			old := strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
			return old, webhook.Sign(key, old, path, b)
		},
	} {
		for _, q := range all {
			forged = append(forged, question{what: q.what + " " + what, path: q.path, body: q.body, signature: sign})
		}
	}
	p.each(t, forged, func(_ question, r *http.Response) error {
		if r.StatusCode < 400 || r.StatusCode >= 500 {
			return fmt.Errorf("it answered %s, want 401 or another of 4xx", r.Status)
		}
		return nil
	})
}

// ours are cases of this protocol that other registries need not pass.
func ours() []conformance.Case {
	return []conformance.Case{{
		Name: "texts come back as they went", After: []string{conformance.RoundTrip}, Run: texts,
		Must: "store metadata as they are, with quotes, spaces, signs and letters of any language",
	}}
}

func texts(t conformance.T, f conformance.Fixture) {
	e := sample()
	e.ID, e.Metadata = "demo.web-x7k2p.0a1b2c3d", map[string]string{
		"quotes": `"it's" \ <b>&amp;</b>`, "letters": "żółw 亀 🐢",
		"space": " two  spaces ", "empty": "", "long": strings.Repeat("0123456789", 400),
	}
	conformance.NoError(t, f.Connector.Apply(t.Context(), f.Service, []registry.Change{{Op: registry.Put, Entry: e}}))
	listed(t, f, e)
}

// sample is an entry.
func sample() registry.Entry {
	return registry.Entry{ID: "here.web-001", Address: "10.0.0.1", Port: 8080, Weight: 10, Owner: registry.Owner{
		Cluster: "here", Namespace: "demo", Registration: "web", Pod: "web-001", PodUID: "uid-1",
	}}
}

// listed checks that nothing but the entry is listed.
func listed(t conformance.T, f conformance.Fixture, want registry.Entry) {
	have, err := f.Connector.List(t.Context(), f.Service)
	conformance.NoError(t, err)
	if len(have) != 1 || !have[0].Same(want) {
		t.Errorf("service %s lists %+v, want %+v", f.Service, have, want)
	}
}

// stays is the row about entries without heartbeats.
func (w Webhook) stays() conformance.Case {
	return conformance.Case{
		Name: "entries stay", After: []string{conformance.RoundTrip},
		Must: fmt.Sprintf("keep entries without heartbeats, here for %s: Usher may be down", w.Stay),
		Lacks: func(conformance.Fixture) string {
			if w.Stay <= 0 {
				return "no time is given for which they must stay"
			}
			return ""
		},
		Run: func(t conformance.T, f conformance.Fixture) {
			e := sample()
			conformance.NoError(t, f.Connector.Apply(t.Context(), f.Service, []registry.Change{{Op: registry.Put, Entry: e}}))
			select {
			case <-time.After(w.Stay): // nothing happens that could be waited for
			case <-t.Context().Done():
			}
			listed(t, f, e)
		},
	}
}

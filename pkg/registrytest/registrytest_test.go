// SPDX-License-Identifier: Apache-2.0

package registrytest_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-dev/usher/examples/webhook/receiver"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/pkg/registrytest"
)

// stay is how long entries must stay, and lease when those of a server with leases vanish if nobody asks.
const (
	stay  = 6 * time.Second
	lease = 4 * time.Second
	// patience is how long calls may take, and hurry of a server that never ends: processors may be busy.
	patience = 20 * time.Second
	hurry    = 3 * time.Second
)

// try tries a server that has the entry theirs of somebody else in the service legacy.
func try(t *testing.T, r *receiver.Receiver, handler http.Handler, key string, w registrytest.Webhook) []registrytest.Row {
	t.Helper()
	r.Base = "/usher"
	r.Put("legacy", receiver.Entry{ID: "theirs", Address: "192.0.2.1", Port: 1, Weight: 1})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	w.URL, w.HMAC, w.Foreign, w.Timeout = server.URL+"/usher", []byte(key), "legacy/theirs", cmp.Or(w.Timeout, patience)
	return checktest.Must(w.Try(t.Context()))(t)
}

// named are the rows with a result.
func named(rows []registrytest.Row, result registrytest.Result) []string {
	some := list.Only(rows, func(r registrytest.Row) bool { return r.Result == result })
	return list.Map(some, func(r registrytest.Row) string { return r.Name })
}

// TestExample: the example passes every row, and nothing remains.
func TestExample(t *testing.T) {
	t.Parallel()
	r := &receiver.Receiver{Key: []byte("a secret of the test")}
	rows := try(t, r, r, "a secret of the test", registrytest.Webhook{Stay: stay})
	if holds := named(rows, registrytest.Holds); len(holds) != len(rows) || len(rows) < 20 {
		t.Errorf("not everything holds:\n%s", registrytest.Table(rows))
	}
	checktest.Same(t, "which services have entries", []string{"legacy"}, r.Services())
}

// faulty is a server in front of the example.
type faulty struct {
	*receiver.Receiver
	// ask may change a question, and answers it itself by returning false.
	ask func(w http.ResponseWriter, path string, q *receiver.Question) bool
	// answer may change an answer.
	answer func(path string, q receiver.Question, a *reply)
	// unending is the path below which an answer begins and does not end; empty for none.
	unending string
	// with are other options than usual.
	with registrytest.Webhook
}

// reply is an answer, of which Entries or Refused is nil.
type reply struct {
	Code    int                `json:"-"`
	Entries []receiver.Entry   `json:"entries,omitzero"`
	Refused []receiver.Refusal `json:"refused,omitzero"`
}

// ServeHTTP implements http.Handler.
func (f faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q receiver.Question
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &q)
	path := strings.TrimPrefix(r.URL.Path, "/usher/v1/")
	if f.unending == path {
		_, _ = io.WriteString(w, `{"entries":[`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // the client has given up
		return
	}
	if f.ask != nil && !f.ask(w, path, &q) {
		return
	}
	body, _ = json.Marshal(q)
	inner := httptest.NewRecorder()
	f.Receiver.ServeHTTP(inner, httptest.NewRequestWithContext(r.Context(), http.MethodPost, r.URL.Path, bytes.NewReader(body)))
	a := reply{Code: inner.Code}
	_ = json.Unmarshal(inner.Body.Bytes(), &a)
	if f.answer != nil {
		f.answer(path, q, &a)
	}
	w.WriteHeader(a.Code)
	_ = json.NewEncoder(w).Encode(a)
}

// changes lets a server forget or change what it is asked to do.
func changes(change func(c receiver.Change) (receiver.Change, bool)) faulty {
	return faulty{ask: func(_ http.ResponseWriter, _ string, q *receiver.Question) bool {
		var kept []receiver.Change
		for _, c := range q.Changes {
			if c, made := change(c); made {
				kept = append(kept, c)
			}
		}
		q.Changes = kept
		return true
	}}
}

// lists lets a server list entries in another way.
func lists(show func(service string, entries []receiver.Entry) []receiver.Entry) faulty {
	return faulty{answer: func(path string, q receiver.Question, a *reply) {
		if path == "list" {
			a.Entries = show(q.Service, a.Entries)
		}
	}}
}

// codes lets a server answer in another way than its code says.
func codes(code func(path string, q receiver.Question, a reply) int) faulty {
	return faulty{answer: func(path string, q receiver.Question, a *reply) { a.Code = code(path, q, *a) }}
}

// answers lets a server answer by itself what is asked below a path.
func answers(path string, with func(w http.ResponseWriter)) faulty {
	return faulty{ask: func(w http.ResponseWriter, at string, _ *receiver.Question) bool {
		if at == path {
			with(w)
		}
		return at != path
	}}
}

// faults are servers that are broken in one way each, by the row that must show it.
func faults() map[string][]faulty {
	return map[string][]faulty{
		"it answers":                   {answers("ping", func(http.ResponseWriter) { panic(http.ErrAbortHandler) })},
		"it redirects nothing":         {redirecting("ping"), redirecting("list"), redirecting("apply")},
		"its status codes say success": {accepting("ping"), accepting("list"), accepting("apply")},
		"its answers end":              {endless("ping"), endless("list"), endless("apply"), unending("list")},
		"an unknown service is empty":  {answers("list", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") })},
		"what is written is listed at once": {
			stale(1), stale(3), lists(changed(func(e *receiver.Entry) { e.Weight = 1 })), lists(changed(func(e *receiver.Entry) { e.Version = "" })),
		},
		"the owner is kept": {
			lists(changed(func(e *receiver.Entry) { e.Owner = receiver.Owner{} })),
			lists(changed(func(e *receiver.Entry) { e.Owner.UID = "" })),
		},
		"register, read back, deregister": {
			changes(func(c receiver.Change) (receiver.Change, bool) { return c, c.Op != "remove" }),
			slowToForget(),
		},
		"registering twice changes nothing": {rewriting()},
		"deregistering twice is no error":   {missing()},
	}
}

// laterFaults are faults in the rows that come after the first ones.
func laterFaults() map[string][]faulty {
	return map[string][]faulty{
		"weight, metadata and address can change": {frozen(func(now, next receiver.Entry) receiver.Entry {
			next.Metadata = now.Metadata
			return next
		}), frozen(func(now, next receiver.Entry) receiver.Entry {
			next.Address = now.Address
			return next
		})},
		"an outdated change is a conflict": {
			lastWriterWins(), codes(func(_ string, _ receiver.Question, a reply) int {
				if len(a.Refused) > 0 && a.Refused[0].Code == "conflict" {
					return http.StatusConflict
				}
				return a.Code
			}),
			refusing(func(r receiver.Refusal) receiver.Refusal {
				if r.Code == "conflict" {
					r.Code = "outdated"
				}
				return r
			}),
		},
		"a foreign entry is listed and left alone": {lists(func(_ string, all []receiver.Entry) []receiver.Entry {
			return slices.DeleteFunc(all, func(e receiver.Entry) bool { return e.Owner.Cluster == "" })
		})},
		"two clusters share a service": {lists(func(_ string, all []receiver.Entry) []receiver.Entry {
			if n := len(all); n > 1 && all[0].Owner.Cluster == "here" && all[n-1].Owner.Cluster == "there" {
				return all[:n-1]
			}
			return all
		})},
		"a Pod of the same name is another instance": {lists(func(_ string, all []receiver.Entry) []receiver.Entry {
			return slices.CompactFunc(all, func(a, b receiver.Entry) bool {
				return a.Owner.Pod == b.Owner.Pod && a.Owner.Cluster == b.Owner.Cluster
			})
		})},
		"services do not see each other":         {prefixed()},
		"one refused change keeps no other back": {allOrNothing()},
		"a batch of 300":                         {changesOf(100), listsOf(250)},
		"of changes at once, one is made":        {racing()},
		"texts come back as they went": {lists(changed(func(e *receiver.Entry) {
			for key, value := range e.Metadata {
				e.Metadata[key] = strings.TrimSpace(value)
			}
		}))},
		"entries stay": {leasing()},
	}
}

// TestFaults: a server that is broken in one way fails in the row meant, and in no other.
func TestFaults(t *testing.T) {
	t.Parallel()
	all := faults()
	maps.Copy(all, laterFaults())
	for row, servers := range all {
		for n, server := range servers {
			t.Run(fmt.Sprint(row, " ", n), func(t *testing.T) {
				t.Parallel()
				if server.Receiver == nil {
					server.Receiver = &receiver.Receiver{}
				}
				rows := try(t, server.Receiver, server, "", server.with)
				if fails := named(rows, registrytest.Fails); !slices.Equal(fails, []string{row}) {
					t.Errorf("what fails is %q, want %q:\n%s", fails, row, registrytest.Table(rows))
				}
			})
		}
	}
}

// TestForgeries: a server that checks no signatures, or not all that they say, obeys others than Usher.
func TestForgeries(t *testing.T) {
	t.Parallel()
	r := &receiver.Receiver{}
	rows := try(t, r, r, "a secret of the test", registrytest.Webhook{})
	checktest.Same(t, "what fails", []string{"only genuine requests are obeyed"}, named(rows, registrytest.Fails))
	checktest.Says(t, "the table", registrytest.Table(rows), "list without a signature", "apply signed by another key", "an hour old")
}

func redirecting(path string) faulty {
	return answers(path, func(w http.ResponseWriter) {
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
}

func accepting(path string) faulty {
	return codes(func(at string, _ receiver.Question, a reply) int {
		if at == path {
			return http.StatusAccepted
		}
		return a.Code
	})
}

func endless(path string) faulty {
	return answers(path, func(w http.ResponseWriter) {
		for spaces := bytes.Repeat([]byte(" "), 1<<16); ; {
			if _, err := w.Write(spaces); err != nil {
				return
			}
		}
	})
}

// unending begins an answer and says no more.
func unending(path string) faulty {
	return faulty{unending: path, with: registrytest.Webhook{Timeout: hurry}}
}

// stale lists what there was some lists before.
func stale(lists int) faulty {
	var mu sync.Mutex
	seen := map[string][][]receiver.Entry{}
	return faulty{answer: func(path string, q receiver.Question, a *reply) {
		if path != "list" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all := append(seen[q.Service], a.Entries)
		seen[q.Service] = all
		a.Entries = all[max(len(all)-1-lists, 0)]
	}}
}

// slowToForget lists a removed entry once more.
func slowToForget() faulty {
	var mu sync.Mutex
	last := map[string][]receiver.Entry{}
	return lists(func(service string, all []receiver.Entry) []receiver.Entry {
		mu.Lock()
		defer mu.Unlock()
		before := last[service]
		last[service] = all
		if len(before) > len(all) {
			return before
		}
		return all
	})
}

// changed changes each entry that is listed.
func changed(change func(e *receiver.Entry)) func(string, []receiver.Entry) []receiver.Entry {
	return func(service string, all []receiver.Entry) []receiver.Entry {
		for i := range all {
			if service != "legacy" {
				change(&all[i])
			}
		}
		return all
	}
}

// frozen keeps something of an entry that is there.
func frozen(keep func(now, next receiver.Entry) receiver.Entry) faulty {
	r := &receiver.Receiver{}
	return faulty{Receiver: r, ask: func(_ http.ResponseWriter, _ string, q *receiver.Question) bool {
		there := found(r, q.Service)
		for i, c := range q.Changes {
			if now := there[c.Entry.ID]; now != nil {
				q.Changes[i].Entry = keep(*now, c.Entry)
			}
		}
		return true
	}}
}

// found are the entries of a service, by their IDs.
func found(r *receiver.Receiver, service string) map[string]*receiver.Entry {
	all := map[string]*receiver.Entry{}
	for _, e := range r.List(service) {
		all[e.ID] = &e
	}
	return all
}

// rewriting writes an entry again although nothing of it changes.
func rewriting() faulty {
	r := &receiver.Receiver{}
	return faulty{Receiver: r, answer: func(path string, q receiver.Question, a *reply) {
		for _, c := range q.Changes {
			if path == "apply" && c.Op == "put" && len(a.Refused) == 0 {
				r.Put(q.Service, c.Entry)
			}
		}
	}}
}

// missing refuses to remove what is not there any more.
func missing() faulty {
	r := &receiver.Receiver{}
	return faulty{Receiver: r, ask: func(w http.ResponseWriter, _ string, q *receiver.Question) bool {
		gone, there := []receiver.Refusal{}, found(r, q.Service)
		for _, c := range q.Changes {
			if c.Op == "remove" && c.Entry.Version != "" && there[c.Entry.ID] == nil {
				gone = append(gone, receiver.Refusal{ID: c.Entry.ID, Code: "invalid", Message: "no such entry"})
			}
		}
		if len(gone) > 0 {
			_ = json.NewEncoder(w).Encode(reply{Refused: gone})
		}
		return len(gone) == 0
	}}
}

// lastWriterWins looks at no version of the same cluster.
func lastWriterWins() faulty {
	r := &receiver.Receiver{}
	return faulty{Receiver: r, ask: func(_ http.ResponseWriter, _ string, q *receiver.Question) bool {
		there := found(r, q.Service)
		for i, c := range q.Changes {
			q.Changes[i].Entry.Version = ""
			if now := there[c.Entry.ID]; now != nil {
				q.Changes[i].Entry.Version = now.Version
			}
		}
		return true
	}}
}

func refusing(as func(receiver.Refusal) receiver.Refusal) faulty {
	return faulty{answer: func(_ string, _ receiver.Question, a *reply) {
		for i := range a.Refused {
			a.Refused[i] = as(a.Refused[i])
		}
	}}
}

// prefixed keeps the services whose names begin alike in one.
func prefixed() faulty {
	return faulty{ask: func(_ http.ResponseWriter, _ string, q *receiver.Question) bool {
		q.Service = q.Service[:min(len(q.Service), len("usher-conformance-")+4)]
		return true
	}}
}

// allOrNothing makes no change of a batch of which one is outdated.
func allOrNothing() faulty {
	r := &receiver.Receiver{}
	return faulty{Receiver: r, ask: func(w http.ResponseWriter, _ string, q *receiver.Question) bool {
		var outdated []receiver.Refusal
		there := found(r, q.Service)
		for _, c := range q.Changes {
			if now := there[c.Entry.ID]; len(q.Changes) > 1 && now != nil && now.Version != c.Entry.Version {
				outdated = append(outdated, receiver.Refusal{ID: c.Entry.ID, Code: "conflict"})
			}
		}
		if len(outdated) > 0 {
			_ = json.NewEncoder(w).Encode(reply{Refused: outdated})
		}
		return len(outdated) == 0
	}}
}

// changesOf makes so many changes of a batch.
func changesOf(most int) faulty {
	return faulty{ask: func(_ http.ResponseWriter, _ string, q *receiver.Question) bool {
		q.Changes = q.Changes[:min(len(q.Changes), most)]
		return true
	}}
}

// listsOf lists so many entries.
func listsOf(most int) faulty {
	return lists(func(_ string, all []receiver.Entry) []receiver.Entry { return all[:min(len(all), most)] })
}

// racing compares a change with what there is, and writes it a moment later.
func racing() faulty {
	r := &receiver.Receiver{}
	return faulty{Receiver: r, ask: func(w http.ResponseWriter, path string, q *receiver.Question) bool {
		if path != "apply" || len(q.Changes) != 1 || q.Changes[0].Op != "put" {
			return true
		}
		c := q.Changes[0]
		now := found(r, q.Service)[c.Entry.ID]
		time.Sleep(20 * time.Millisecond) // the latency of this server's database: others compare meanwhile
		if now != nil && now.Version != c.Entry.Version || now == nil && c.Entry.Version != "" {
			return true // the example refuses it
		}
		r.Put(q.Service, c.Entry)
		_ = json.NewEncoder(w).Encode(reply{Refused: []receiver.Refusal{}})
		return false
	}}
}

// leasing forgets entries that nobody asks for.
func leasing() faulty {
	r := &receiver.Receiver{}
	var mu sync.Mutex
	last := time.Now()
	return faulty{Receiver: r, with: registrytest.Webhook{Stay: stay}, answer: func(path string, _ receiver.Question, a *reply) {
		mu.Lock()
		defer mu.Unlock()
		if path == "list" && time.Since(last) > lease {
			a.Entries = []receiver.Entry{}
		}
		last = time.Now()
	}}
}

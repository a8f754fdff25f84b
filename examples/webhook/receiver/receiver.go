// SPDX-License-Identifier: Apache-2.0

// Package receiver is a webhook registry that keeps its entries in memory. It uses nothing of Usher but the protocol
// (docs/registry/webhook.md), so that it can be copied into a program of yours: put your load balancer's or your
// database's calls where entries are read and written.
package receiver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxBody bounds a request, in bytes.
const maxBody = 32 << 20

// Receiver is an http.Handler that answers Usher's requests.
type Receiver struct {
	// Base is the path of spec.webhook.url, such as "/usher". Default: none.
	Base string
	// Key checks signatures. Default: none, and every request is obeyed.
	Key []byte

	mu       sync.Mutex
	version  int
	services map[string]map[string]Entry
}

// Entry is an instance of a service.
type Entry struct {
	ID       string            `json:"id"`
	Address  string            `json:"address"`
	Port     int               `json:"port"`
	Weight   int               `json:"weight"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Owner    Owner             `json:"owner"`
	// Version changes whenever the entry does.
	Version string `json:"version,omitempty"`
}

// Owner says who wrote an entry. It is empty if that was not Usher.
type Owner struct {
	Cluster      string `json:"cluster"`
	Namespace    string `json:"namespace"`
	Registration string `json:"registration"`
	Pod          string `json:"pod"`
	UID          string `json:"uid"`
}

// same reports whether callers and owners see no difference.
func (e Entry) same(other Entry) bool {
	return e.Address == other.Address && e.Port == other.Port && e.Weight == other.Weight && e.Owner == other.Owner &&
		maps.Equal(e.Metadata, other.Metadata)
}

// Question is the body of every request.
type Question struct {
	Service string   `json:"service"`
	Changes []Change `json:"changes"`
}

// Change writes or removes an entry.
type Change struct {
	Op    string `json:"op"`
	Entry Entry  `json:"entry"`
}

// Refusal is a change that was not made.
type Refusal struct {
	ID      string `json:"id"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := r.verify(w, request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var q Question
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch strings.TrimPrefix(request.URL.Path, r.Base) {
	case "/v1/ping":
		w.WriteHeader(http.StatusNoContent)
	case "/v1/list":
		answer(w, map[string]any{"entries": r.List(q.Service)})
	case "/v1/apply":
		answer(w, map[string]any{"refused": r.apply(q)})
	default:
		http.NotFound(w, request)
	}
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // The client has gone if this fails.
}

// verify returns the body of a genuine request.
func (r *Receiver) verify(w http.ResponseWriter, request *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
	if err != nil || len(r.Key) == 0 {
		return body, err
	}
	timestamp := request.Header.Get("Usher-Timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return nil, errors.New("the request is too old, or the clocks differ")
	}
	mac := hmac.New(sha256.New, r.Key)
	mac.Write([]byte(timestamp + "\n" + strings.TrimPrefix(request.URL.Path, r.Base) + "\n"))
	mac.Write(body)
	want := "v1=" + hex.EncodeToString(mac.Sum(nil))
	if !hmac.Equal([]byte(want), []byte(request.Header.Get("Usher-Signature"))) {
		return nil, errors.New("the signature does not match")
	}
	return body, nil
}

// List returns the entries of a service, sorted by ID. An empty list is not nil, because it must be sent as [].
func (r *Receiver) List(service string) []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := []Entry{}
	for _, id := range slices.Sorted(maps.Keys(r.services[service])) {
		entries = append(entries, r.services[service][id])
	}
	return entries
}

// Services returns the services that have entries, sorted.
func (r *Receiver) Services() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Sorted(maps.Keys(r.services))
	return slices.DeleteFunc(names, func(name string) bool { return len(r.services[name]) == 0 })
}

// Put writes an entry as somebody other than Usher does.
func (r *Receiver) Put(service string, e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(service, e)
}

func (r *Receiver) put(service string, e Entry) {
	if r.services == nil {
		r.services = map[string]map[string]Entry{}
	}
	if r.services[service] == nil {
		r.services[service] = map[string]Entry{}
	}
	r.version++
	e.Version = strconv.Itoa(r.version)
	r.services[service][e.ID] = e
}

// apply makes changes, each of which is compared and written under the lock, and returns those that it refuses.
func (r *Receiver) apply(q Question) []Refusal {
	refused := []Refusal{}
	for _, c := range q.Changes {
		if code, why := r.change(q.Service, c); code != "" {
			refused = append(refused, Refusal{ID: c.Entry.ID, Code: code, Message: why})
		}
	}
	return refused
}

func (r *Receiver) change(service string, c Change) (code, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, there := r.services[service][c.Entry.ID]
	if !there {
		return r.create(service, c)
	}
	switch {
	case c.Op == "put" && now.same(c.Entry):
		return "", ""
	case now.Owner.Cluster != c.Entry.Owner.Cluster:
		return "foreign", "it belongs to another cluster, or to nobody"
	case now.Version != c.Entry.Version:
		return "conflict", "it changed since it was listed"
	case c.Op == "remove":
		delete(r.services[service], c.Entry.ID)
		return "", ""
	}
	r.put(service, c.Entry)
	return "", ""
}

// create is change for an entry that is not there.
func (r *Receiver) create(service string, c Change) (code, why string) {
	switch {
	case c.Op == "remove":
		return "", ""
	case c.Entry.Version != "":
		return "conflict", "it is gone"
	}
	r.put(service, c.Entry)
	return "", ""
}

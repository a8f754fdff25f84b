// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

func stored(t *testing.T, e registry.Entry) instance {
	t.Helper()
	return checktest.Must(encoded(e))(t)
}

func TestEntryRoundTrip(t *testing.T) {
	i, want := stored(t, registrytest.SixEntry()), registrytest.SixEntry()
	want.Version = i.version()
	checktest.Same(t, "the entry read back", want, i.entry())
	for name, spoil := range map[string]func(*instance){
		"unhealthy": func(i *instance) { i.Healthy = false }, "disabled": func(i *instance) { i.Enabled = false },
		"without weight": func(i *instance) { i.Weight = 0 },
	} {
		spoiled := i
		spoil(&spoiled)
		if e := spoiled.entry(); e.Weight != 0 || e.Version == want.Version {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestWhatNacosCannotHoldIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*registry.Entry){
		"a key of Usher's": func(e *registry.Entry) { e.Metadata = map[string]string{"usher-uid": "x"} },
		"a large weight":   func(e *registry.Entry) { e.Weight = maxWeight + 1 },
	} {
		e := registrytest.SixEntry()
		spoil(&e)
		_, err := encoded(e)
		registrytest.Check(t, name, err, registry.ErrPermanent)
	}
}

// TestTwoPutsOfOneAddress checks that only one is made: Nacos would take the second for
// a change of the first.
func TestTwoPutsOfOneAddress(t *testing.T) {
	a, b := registrytest.SixEntry(), registrytest.SixEntry()
	b.ID = "other"
	p := newPlan(nil, []registry.Change{{Op: registry.Put, Entry: a}, {Op: registry.Put, Entry: b}})
	if len(p.steps) != 1 || !errors.Is(errors.Join(p.refused...), registry.ErrConflict) {
		t.Errorf("steps %+v, refused %v", p.steps, p.refused)
	}
}

// TestAddressChange checks that the new address is registered before the old one is
// removed.
func TestAddressChange(t *testing.T) {
	old, moved := stored(t, registrytest.SixEntry()), registrytest.SixEntry()
	moved.Address, moved.Version = "fd00::2", old.version()
	p := newPlan([]instance{old}, []registry.Change{{Op: registry.Put, Entry: moved}})
	if len(p.steps) != 1 || p.steps[0].put.IP != "fd00::2" || len(p.steps[0].gone) != 1 || p.steps[0].gone[0].IP != "fd00::1" {
		t.Fatalf("steps %+v, refused %v", p.steps, p.refused)
	}
	after := stored(t, moved)
	for name, test := range map[string]struct {
		have []instance
		want int
	}{
		"before": {[]instance{old}, 1}, "between": {[]instance{old, after}, 1}, "after": {[]instance{after}, 0},
	} {
		checktest.Same(t, name+": changes that are not seen", test.want, len(unseen(p.steps, test.have)))
	}
}

func TestOptions(t *testing.T) {
	registrytest.CheckAddresses(t, func(address string, secret map[string][]byte) (*Registry, error) { return New(address, root, secret) })
	registrytest.CheckOptions(t, map[string]error{
		"no cluster":   registrytest.Refusal(New("http://localhost", "public/DEFAULT_GROUP", nil)),
		"half a login": registrytest.Refusal(New("http://localhost", root, map[string][]byte{credentials.KeyPassword: []byte("s3cret")})),
	})
}

const root = "public/DEFAULT_GROUP/DEFAULT"

// connect serves the handler as Nacos, and logs in.
func connect(t *testing.T, handler http.HandlerFunc) *Registry {
	t.Helper()
	secret := map[string][]byte{credentials.KeyUsername: []byte("me"), credentials.KeyPassword: []byte(registrytest.Secret + "\n")}
	return registrytest.Connect(New(registrytest.Serve(t, handler), root, secret))(t)
}

// versions are the APIs.
var versions = map[string]*api{"Nacos 3": &admin3, "Nacos 2": &open1}

// TestAnswersThatAreNone: the other answer is whether the server is ready.
func TestAnswersThatAreNone(t *testing.T) {
	registrytest.CheckAnswers(t, func(t *testing.T, a registrytest.Answer) error {
		r := connect(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case admin3.login:
				_, _ = w.Write([]byte(`{"accessToken":"t0ken","tokenTtl":100}`))
			case admin3.ready:
				w.WriteHeader(a.Other)
				_, _ = w.Write([]byte(`{"code":0,"data":"ok"}`))
			case admin3.list:
				w.WriteHeader(a.Code)
				_, _ = w.Write([]byte(a.Body))
			default:
				t.Errorf("Nacos does not have the path %s", r.URL.Path)
			}
		})
		_, err := r.List(t.Context(), "web")
		return err
	})
}

// TestAnswersOfNacos2 is the same for the older API. The other answer is the status of the server.
func TestAnswersOfNacos2(t *testing.T) {
	scenariotest.Table(t, "testdata/answers2.txt", func(t *testing.T, c struct {
		Code   int
		Body   string
		Status string
	}) string {
		r := connect(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case open1.login:
				_, _ = w.Write([]byte(`{"accessToken":"t0ken","tokenTtl":100}`))
			case open1.probe:
				_, _ = w.Write([]byte(`{"healthCheckEnabled":true,"name":"nacos"}`))
			case open1.ready:
				_, _ = fmt.Fprintf(w, `{"status":%q}`, c.Status)
			case open1.list:
				w.WriteHeader(c.Code)
				_, _ = w.Write([]byte(c.Body))
			default:
				http.NotFound(w, r)
			}
		})
		_, err := r.List(t.Context(), "web")
		return registrytest.Verdict(t, err)
	})
}

// TestWhichServer: what a server answers shows which API it has, and one that is none is named.
func TestWhichServer(t *testing.T) {
	names := map[*api]string{&admin3: "Nacos 3", &open1: "Nacos 2"}
	scenariotest.Table(t, "testdata/servers.txt", func(t *testing.T, c struct {
		Answers map[string]registrytest.Answer
	}) string {
		r := connect(t, func(w http.ResponseWriter, r *http.Request) {
			a := c.Answers[r.URL.Path]
			w.WriteHeader(cmp.Or(a.Code, http.StatusNotFound))
			_, _ = w.Write([]byte(a.Body))
		})
		switch a, err := r.known(t.Context()); {
		case errors.Is(err, errRNacos):
			return "r-nacos"
		case errors.Is(err, rest.ErrDenied):
			return "denied"
		case err != nil:
			return registrytest.Verdict(t, err)
		default:
			return names[a]
		}
	})
}

// TestUpgrade: a server that is of another version from then on is asked by its API.
func TestUpgrade(t *testing.T) {
	m := &memory{version: &open1, instances: map[string]instance{}, updates: map[string]instance{}}
	r := connect(t, m.ServeHTTP)
	registrytest.Put(t, r, registrytest.Entry("a"))
	m.version = &admin3
	registrytest.Only(t, r)
}

// TestLogins checks that a login is renewed before its end, and after the server
// refuses it.
func TestLogins(t *testing.T) {
	now := time.Now()
	var logins, valid atomic.Int64
	valid.Store(1)
	r := connect(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case admin3.login:
			_, _ = fmt.Fprintf(w, `{"accessToken":"t%d","tokenTtl":100}`, logins.Add(1))
			return
		case admin3.probe:
			_, _ = w.Write([]byte(`{"code":0}`))
			return
		}
		if r.Header.Get("Authorization") != fmt.Sprintf("Bearer t%d", valid.Load()) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(`{"code":0,"data":[]}`))
	})
	r.now = func() time.Time { return now }
	list := func(name string, want int64) {
		t.Helper()
		if _, err := r.List(t.Context(), "web"); err != nil || logins.Load() != want {
			t.Errorf("%s: %v after %d logins, want %d", name, err, logins.Load(), want)
		}
	}
	list("first", 1)
	list("again", 1)
	valid.Store(2)
	list("refused", 2)
	now = now.Add(91 * time.Second)
	valid.Store(3)
	list("about to end", 3)
}

func FuzzDecode(f *testing.F) {
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		var list []instance
		if json.Unmarshal([]byte(text), &list) != nil {
			return nil
		}
		return registry.Entries(identify(list), listed.asEntry)
	})
}

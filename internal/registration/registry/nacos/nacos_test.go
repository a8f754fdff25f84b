// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
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

// TestAnswersThatAreNone: the other answer is whether the server is ready.
func TestAnswersThatAreNone(t *testing.T) {
	registrytest.CheckAnswers(t, func(t *testing.T, a registrytest.Answer) error {
		r := connect(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/nacos/v3/auth/user/login":
				_, _ = w.Write([]byte(`{"accessToken":"t0ken","tokenTtl":100}`))
			case "/nacos/v3/admin/core/state/readiness":
				w.WriteHeader(a.Other)
				_, _ = w.Write([]byte(`{"code":0,"data":"ok"}`))
			case "/nacos/v3/admin/ns/instance/list":
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

// TestLogins checks that a login is renewed before its end, and after the server
// refuses it.
func TestLogins(t *testing.T) {
	now := time.Now()
	var logins, valid atomic.Int64
	valid.Store(1)
	r := connect(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, pathLogin) {
			_, _ = fmt.Fprintf(w, `{"accessToken":"t%d","tokenTtl":100}`, logins.Add(1))
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

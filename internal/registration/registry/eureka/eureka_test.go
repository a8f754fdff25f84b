// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func stored(t *testing.T) instance {
	t.Helper()
	return checktest.Must(encode("web", registrytest.SixEntry(), time.Hour, 7))(t)
}

func TestEntryRoundTrip(t *testing.T) {
	data := checktest.Must(json.Marshal(stored(t)))(t)
	var back instance
	checktest.NoError(t, json.Unmarshal(data, &back))
	want := registrytest.SixEntry()
	want.Version = back.version()
	checktest.Same(t, "the entry read back", want, back.entry())
	for name, spoil := range map[string]func(*instance){
		"a status":           func(i *instance) { i.Status = "OUT_OF_SERVICE" },
		"metadata":           func(i *instance) { i.Metadata["zone"] = "b" },
		"a weight":           func(i *instance) { i.Metadata[metaWeight] = "heavy" },
		"a new registration": func(i *instance) { i.LastDirtyTimestamp++ },
	} {
		i := stored(t)
		spoil(&i)
		if i.version() == want.Version {
			t.Errorf("%s does not change the version", name)
		}
	}
}

// TestHostNamesMakeURLs: callers write http:// in front of the host name, and the port after it.
func TestHostNamesMakeURLs(t *testing.T) {
	for _, address := range []string{"10.0.0.7", "fd00::7"} {
		e := registrytest.SixEntry()
		e.Address = address
		i := checktest.Must(encode("web", e, time.Hour, 7))(t)
		made, err := url.Parse(fmt.Sprintf("http://%s:%d/", i.HostName, i.Port.Number))
		if err != nil || made.Hostname() != address || made.Port() != "80" {
			t.Errorf("host name %q: %v, %v", i.HostName, made, err)
		}
		checktest.Same(t, "the plain address", address, i.IPAddr)
		checktest.Same(t, "the address read back", address, i.entry().Address)
	}
}

func TestWhatEurekaCannotHoldIsRefused(t *testing.T) {
	for _, key := range []string{"usher-uid", metaWeight, "@class", "a/b", ""} {
		e := registrytest.SixEntry()
		e.Metadata = map[string]string{key: "x"}
		_, err := encode("web", e, time.Hour, 7)
		registrytest.Check(t, "the key "+key, err, registry.ErrPermanent)
	}
}

func TestOptions(t *testing.T) {
	registrytest.CheckAddresses(t, func(address string, secret map[string][]byte) (*Registry, error) {
		return New(&usherv1alpha1.EurekaRegistry{Address: address}, secret, clock.RealClock{})
	})
}

// connect serves the handler as Eureka.
func connect(t *testing.T, secret map[string][]byte, clock clock.WithTicker, handler http.HandlerFunc) *Registry {
	t.Helper()
	spec := &usherv1alpha1.EurekaRegistry{Address: registrytest.Serve(t, handler), ResponseCache: &metav1.Duration{}}
	return registrytest.Connect(New(spec, secret, clock))(t)
}

// TestAnswersThatAreNone: the other answer is that of /apps/delta, and of /apps unless it is 403.
func TestAnswersThatAreNone(t *testing.T) {
	registrytest.CheckAnswers(t, func(t *testing.T, a registrytest.Answer) error {
		secret := map[string][]byte{credentials.KeyUsername: []byte("me"), credentials.KeyPassword: []byte(registrytest.Secret + "\n")}
		r := connect(t, secret, clock.RealClock{}, func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			switch {
			case user != "me" || password != registrytest.Secret:
				t.Errorf("the login is %s, %s", user, password)
			case r.URL.Path == "/apps/WEB":
				w.WriteHeader(a.Code)
				_, _ = w.Write([]byte(a.Body))
				return
			case r.URL.Path == "/apps/delta" || a.Other != http.StatusForbidden:
				w.WriteHeader(a.Other)
			}
			_, _ = w.Write([]byte(`{"applications":{}}`))
		})
		_, err := r.List(t.Context(), "web")
		return err
	})
}

// frozen is a server whose list never changes, and that records its requests.
type frozen struct {
	mu    sync.Mutex
	there map[string]instance
	list  []instance
	seen  chan string
}

func (f *frozen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := strings.TrimPrefix(r.URL.Path, "/apps/WEB/")
	i, found := f.there[id]
	switch {
	case r.URL.Path == "/apps/WEB" && r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(map[string]any{"application": map[string]any{"instance": f.list}})
	case r.Method == http.MethodPost:
		var said map[string]instance
		_ = json.NewDecoder(r.Body).Decode(&said)
		f.there[said["instance"].InstanceID] = said["instance"]
	case r.Method == http.MethodPut:
		f.seen <- id
		if !found {
			w.WriteHeader(http.StatusNotFound)
		}
	case !found:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(f.there, id)
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"instance": i})
	}
}

// TestOwnWritesAreSeenPastTheCache puts one entry and removes another while the list
// stays unchanged.
func TestOwnWritesAreSeenPastTheCache(t *testing.T) {
	old := stored(t)
	server := &frozen{there: map[string]instance{old.InstanceID: old}, list: []instance{old}}
	r := connect(t, nil, clock.RealClock{}, server.ServeHTTP)
	gone, next := registrytest.Only(t, r), registrytest.SixEntry()
	next.ID = "next"
	err := r.Apply(t.Context(), "web", []registry.Change{{Op: registry.Remove, Entry: gone}, {Op: registry.Put, Entry: next}})
	checktest.NoError(t, err)
	checktest.Same(t, "listed", "next", registrytest.Only(t, r).ID)
	server.mu.Lock()
	server.list = []instance{server.there["next"]}
	server.mu.Unlock()
	if registrytest.Only(t, r); len(r.writtenTo("WEB")) != 0 {
		t.Errorf("%v are still requested one by one, though the list has them right", r.writtenTo("WEB"))
	}
}

// TestRenewals checks that renewals cover Usher's instances, recreate nothing, and end
// with Close.
func TestRenewals(t *testing.T) {
	theirs := instance{InstanceID: "theirs", Status: up}
	server := &frozen{there: map[string]instance{}, list: []instance{stored(t), theirs}, seen: make(chan string, 10)}
	clock := clocktesting.NewFakeClock(time.Now())
	r := connect(t, nil, clock, server.ServeHTTP)
	registrytest.List(t, r)
	for range 2 {
		clock.Step(RenewInterval)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		select {
		case id := <-server.seen:
			checktest.Same(t, "who was renewed", registrytest.SixEntry().ID, id)
		case <-ctx.Done():
			t.Error("nothing was renewed")
		}
		cancel()
	}
	checktest.NoError(t, r.Close())
	clock.Step(forgotten + RenewInterval)
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.there) != 0 || len(server.seen) != 0 {
		t.Errorf("after the end: %v, and %d renewals", server.there, len(server.seen))
	}
	if due := r.due(); len(due) != 0 {
		t.Errorf("%v are due though nobody lists them", due)
	}
}

func FuzzDecode(f *testing.F) {
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		var list several
		if json.Unmarshal([]byte(text), &list) != nil {
			return nil
		}
		return registry.Entries(list, instance.entry)
	})
}

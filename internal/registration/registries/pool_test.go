// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const namespace = "demo"

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestBackOff(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	p := New(nil, nil, clock, 1)
	broken, object := errors.New("broken"), &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "discovery"}}
	object.Spec.Timeout = &metav1.Duration{Duration: 2 * time.Second}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		have, _ := p.BeginBackOff(object, broken)
		checktest.Same(t, fmt.Sprintf("back-off %d", i), want*time.Second, have)
	}
	until, err := p.Down("discovery")
	if !errors.Is(err, broken) || !until.Equal(epoch.Add((30+2+1)*time.Second)) {
		t.Errorf("it is down until %s with %v", until, err)
	}
	if !p.EndBackOff("discovery") || p.EndBackOff("discovery") {
		t.Error("an outage ends once")
	}
	if _, err := p.Down("discovery"); err != nil {
		t.Errorf("after that it is down with %v", err)
	}
	have, _ := p.BeginBackOff(object, broken)
	checktest.Same(t, "the back-off when it fails again at once", maxBackOff, have)
	clock.SetTime(epoch.Add(time.Hour))
	have, _ = p.BeginBackOff(object, broken)
	checktest.Same(t, "the back-off when it fails again after an hour", minBackOff, have)
}

// secured is a Registry with a Secret, and a pool that notes the passwords it connects with.
func secured() (object *usherv1alpha1.Registry, poolOf func(api client.Client) *Pool, seen *[]string) {
	object = &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{Name: "secured", UID: "secured"},
		Spec: usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{
			CredentialsSecret: &usherv1alpha1.SecretReference{Namespace: namespace, Name: "rotated"},
		}},
	}
	seen = &[]string{}
	return object, func(api client.Client) *Pool {
		return New(api, func(_ *usherv1alpha1.Registry, _ string, secret map[string][]byte) (registry.Connector, error) {
			*seen = append(*seen, string(secret["password"]))
			return memory.New(), nil
		}, clocktesting.NewFakePassiveClock(epoch), 1)
	}, seen
}

// TestSecretsAreMissed: without its Secret a Registry is of no use until somebody acts.
func TestSecretsAreMissed(t *testing.T) {
	object, poolOf, _ := secured()
	forbidden := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewForbidden(corev1.Resource("secrets"), key.Name, errors.New("no"))
		},
	})
	for want, api := range map[string]client.Client{"there is no Secret": fake.NewClientBuilder().Build(), "rbac.secretNamespaces": forbidden} {
		if _, err := poolOf(api).Get(t.Context(), object, "", true); !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), want) {
			t.Errorf("without the Secret: %v, want a permanent error with %q", err, want)
		}
	}
}

// TestSecretsAreFollowed makes a new connector when the credentials change.
func TestSecretsAreFollowed(t *testing.T) {
	object, poolOf, seen := secured()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rotated"},
		Data: map[string][]byte{"password": []byte("old")}}
	api := fake.NewClientBuilder().WithObjects(secret).Build()
	p := poolOf(api)
	for range 3 {
		checktest.Must(p.Get(t.Context(), object, "", true))(t)
	}
	secret.Data["password"] = []byte("new")
	checktest.NoError(t, api.Update(t.Context(), secret))
	for _, fresh := range []bool{false, true} {
		checktest.Must(p.Get(t.Context(), object, "", fresh))(t)
	}
	checktest.Same(t, "what connectors were made with", []string{"old", "new"}, *seen)
}

// at is a time so many seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// TestOutagesAreNoticed tells a pool what registries answer.
func TestOutagesAreNoticed(t *testing.T) {
	answers := map[string]error{
		"answers": nil, "refuses": registry.Permanent(errors.New("refused")), "fails": registry.Transient(errors.New("down")),
		"ends": registry.Transient(context.Canceled), // with the pass
	}
	scenariotest.Table(t, "testdata/outages.txt", func(t *testing.T, test struct {
		// Known is what another process has left behind, Worked that it saw the registry work then.
		Known  []int
		Worked int
		// Calls are seconds and answers.
		Calls []string
	}) string {
		var known plan.Outage
		for i, when := range []*time.Time{&known.From, &known.To} {
			if i < len(test.Known) {
				*when = at(test.Known[i])
			}
		}
		clock := clocktesting.NewFakePassiveClock(epoch)
		p := New(nil, nil, clock, 1)
		object := &usherv1alpha1.Registry{Status: leftBy(known, test.Worked)}
		object.CreationTimestamp = metav1.NewTime(epoch)
		p.open("a").reachability = reachabilityOf(object)
		for _, call := range test.Calls {
			when, answer, _ := strings.Cut(call, " ")
			clock.SetTime(at(scenariotest.Number(when)))
			p.RecordCall(t.Context(), "a", answers[answer])
		}
		return told(p.Outage("a"))
	})
}

// told describes an outage.
func told(o plan.Outage) string {
	switch {
	case o == plan.Outage{}:
		return "none"
	case o.To.IsZero():
		return fmt.Sprintf("since %s", o.From.Sub(epoch))
	}
	return fmt.Sprintf("from %s to %s", o.From.Sub(epoch), o.To.Sub(epoch)) + map[bool]string{true: ", recalled"}[o.Recalled]
}

// leftBy is what a process leaves behind that saw the outage, and the registry
// work since so many seconds after the epoch, if that is not 0.
func leftBy(o plan.Outage, since int) usherv1alpha1.RegistryStatus {
	s := usherv1alpha1.RegistryStatus{LastOutage: o.Status()}
	if since != 0 {
		s.Conditions = []metav1.Condition{{Type: usherv1alpha1.ConditionReachable, Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(at(since))}}
	}
	return s
}

// entryOf returns an entry that can be put.
func entryOf(id string) registry.Entry {
	return registry.Entry{ID: id, Address: "10.0.0.1", Port: 80, Weight: 1, Owner: registry.Owner{Cluster: "here", PodUID: "uid"}}
}

// TestBatchesAreValidated checks that a connector gets no batch that cannot be applied. What a change does
// not say is that of one that puts an entry a.
func TestBatchesAreValidated(t *testing.T) {
	scenariotest.Table(t, "testdata/batches.txt", func(t *testing.T, batch struct {
		Service   string
		HoldsBack bool
		Changes   []json.RawMessage
	}) string {
		store := memory.New()
		c := &Conn{workers: semaphore.NewWeighted(1), Connector: store, timeout: time.Minute, holdsBack: batch.HoldsBack}
		var changes []registry.Change
		for _, fields := range batch.Changes {
			change := registry.Change{Op: registry.Put, Entry: entryOf("a")}
			checktest.NoError(t, json.Unmarshal(fields, &change))
			changes = append(changes, change)
		}
		verdict := registrytest.Verdict(t, c.Apply(t.Context(), batch.Service, changes))
		return fmt.Sprintf("%s, %d calls", verdict, store.Calls().Apply)
	})
}

// careless is a connector that does not survive what its registry answers.
type careless struct{ registry.Connector }

// TestPanicsAreErrors: what one registry answers does not end the process.
func TestPanicsAreErrors(t *testing.T) {
	object := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "odd"}}
	p := New(nil, func(_ *usherv1alpha1.Registry, prefix string, _ map[string][]byte) (registry.Connector, error) {
		if prefix == "bad" {
			panic("no such prefix")
		}
		return careless{}, nil
	}, clocktesting.NewFakePassiveClock(epoch), 1)
	_, connect := p.Get(t.Context(), object, "bad", false)
	c := checktest.Must(p.Get(t.Context(), object, "good", false))(t)
	_, list := c.List(t.Context(), "web")
	each := registry.Each(t.Context(), 2, 2, func(int) error { return careless{}.Ping(t.Context()) })
	for where, err := range map[string]error{
		"connect": connect, "list": list, "apply": c.Apply(t.Context(), "web", nil), "ping": c.Ping(t.Context()), "each": each[1],
	} {
		if !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "bug in Usher") {
			t.Errorf("%s: the error is %v", where, err)
		}
	}
}

// patient is a connector whose calls wait until the test lets them go on.
type patient struct {
	registry.Connector
	begun, goOn chan struct{}
}

func (p patient) List(context.Context, string) ([]registry.Entry, error) {
	p.begun <- struct{}{}
	<-p.goOn
	return nil, nil
}

func (p patient) Ping(context.Context) error { return nil }

// TestCallsWaitInLine: a registry has as many calls at a time as it has workers, a probe more, and
// another registry has its own.
func TestCallsWaitInLine(t *testing.T) {
	calls := map[string]patient{"slow": {begun: make(chan struct{}, 9), goOn: make(chan struct{})}, "fast": {begun: make(chan struct{}, 9), goOn: make(chan struct{})}}
	p := New(nil, func(r *usherv1alpha1.Registry, _ string, _ map[string][]byte) (registry.Connector, error) {
		return calls[r.Name], nil
	},
		clocktesting.NewFakePassiveClock(epoch), 2)
	conn := func(name, prefix string) *Conn {
		return checktest.Must(p.Get(t.Context(), &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: name}}, prefix, false))(t)
	}
	var all errgroup.Group
	for _, prefix := range []string{"a", "b", "c", "a"} {
		c := conn("slow", prefix)
		all.Go(func() error { _, err := c.List(t.Context(), "web"); return err })
	}
	<-calls["slow"].begun
	<-calls["slow"].begun
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conn("slow", "a").List(ended, "web"); !errors.Is(err, registry.ErrTransient) || len(calls["slow"].begun) > 0 {
		t.Errorf("a third call: %v, and %d begun", err, len(calls["slow"].begun))
	}
	checktest.NoError(t, conn("slow", "a").Ping(t.Context()))
	all.Go(func() error { _, err := conn("fast", "").List(t.Context(), "web"); return err })
	<-calls["fast"].begun
	close(calls["fast"].goOn)
	close(calls["slow"].goOn)
	if err := all.Wait(); err != nil || len(calls["slow"].begun) != 2 {
		t.Errorf("the others: %v, and %d begun", err, len(calls["slow"].begun))
	}
}

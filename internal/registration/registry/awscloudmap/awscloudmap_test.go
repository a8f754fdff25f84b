// SPDX-License-Identifier: Apache-2.0

package awscloudmap

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/cloudmap"
	"github.com/usher-dev/usher/internal/scenariotest"
)

var secret = map[string][]byte{awsapi.KeyID: []byte("AKID"), awsapi.KeySecret: []byte(registrytest.Secret)}

// custom is a service that callers find by DiscoverInstances alone, whose instances Usher may hide.
var custom = cloudmap.Service{Custom: true}

func newFake(t *testing.T, times cloudmap.Times) *cloudmap.Server {
	t.Helper()
	f := cloudmap.New(times)
	t.Cleanup(f.Close)
	return f
}

func spec(f *cloudmap.Server) *usherv1alpha1.AWSCloudMapRegistry {
	return &usherv1alpha1.AWSCloudMapRegistry{Region: "eu-west-1", NamespaceID: cloudmap.Namespace, Endpoint: f.URL()}
}

func connect(t *testing.T, f *cloudmap.Server) *Registry {
	t.Helper()
	return registrytest.Connect(New(spec(f), nil, cloudmap.Namespace, secret))(t)
}

// short is the context of a call that does not wait for long.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// TestConformance runs the suite.
func TestConformance(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		f := newFake(t, cloudmap.Times{})
		f.Add("web", custom)
		address := strings.TrimPrefix(f.URL(), "http://")
		c := checktest.Must(New(spec(f), nil, cloudmap.Namespace, secret))(t)
		return registrytest.Fixture{
			Connector: c, HoldsBack: true,
			Seed: func(service, id string) {
				f.Register(service, id, map[string]string{"AWS_INSTANCE_IPV4": "192.0.2.1", "AWS_INSTANCE_PORT": "1"})
			},
			Break: func() error { f.Close(); return nil },
			Mend:  func(ctx context.Context) error { return f.Restart(ctx, address) },
		}
	})
}

// TestAttributes: what callers find of an entry.
func TestAttributes(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", custom)
	c := connect(t, f)
	registrytest.Put(t, c, registrytest.Entry("demo.web-1"))
	checktest.Same(t, "the attributes", map[string]string{
		"AWS_INSTANCE_IPV4": "10.0.0.1", "AWS_INSTANCE_PORT": "8080", "zone": "a", "usher-weight": "10",
		"usher-cluster": "here", "usher-namespace": "demo", "usher-registration": "web", "usher-pod": "demo.web-1", "usher-uid": "uid-demo.web-1",
	}, f.Attributes("web", "demo.web-1"))
	long := registrytest.SixEntry()
	long.ID = "demo." + strings.Repeat("web-", 20) + "1"
	listed := registrytest.Find(registrytest.Put(t, c, long), long.ID)
	if listed == nil || !listed.Same(long) {
		t.Fatalf("an entry with a long ID is listed as %+v", listed)
	}
	registrytest.Remove(t, c, long)
	registrytest.Only(t, c)
}

// TestAttributesOfAWS is an attack: a Registration's metadata must not have AWS lead callers elsewhere.
func TestAttributesOfAWS(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", custom)
	c := connect(t, f)
	for _, key := range []string{"AWS_ALIAS_DNS_NAME", "AWS_INSTANCE_CNAME", "aws_instance_ipv4", "AWS_EC2_INSTANCE_ID", "usher-uid"} {
		e := registrytest.Entry("a")
		e.Metadata = map[string]string{key: "evil.example"}
		registrytest.CheckRefused(t, key, registrytest.TryPut(t, c, e), "a", registry.ErrPermanent, key)
	}
	checktest.Same(t, "registrations", 0, f.Called("RegisterInstance"))
}

// TestOperations: a change is awaited. One that takes longer than the call is not made twice, and is found by the next.
func TestOperations(t *testing.T) {
	f := newFake(t, cloudmap.Times{Operation: time.Minute, Discovery: time.Minute})
	f.Add("web", custom)
	c := connect(t, f)
	a := registrytest.Entry("a")
	put := []registry.Change{{Op: registry.Put, Entry: a}}
	registrytest.CheckRefused(t, "a registration that goes on", c.Apply(short(t), "web", put), "a", registry.ErrTransient, "not find the change")
	if f.Called("GetOperation") == 0 {
		t.Error("nobody asked for the operation")
	}
	registrytest.CheckNone(t, "while it goes on", registrytest.List(t, c))
	f.Pass(time.Minute)
	registrytest.Only(t, c)
	checktest.NoError(t, c.Apply(short(t), "web", put))
	checktest.Same(t, "registrations", 1, f.Called("RegisterInstance"))
}

// TestFailedOperations: what an operation says that failed refuses its change, for good or for now.
func TestFailedOperations(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", custom)
	c := connect(t, f)
	a := registrytest.Put(t, c, registrytest.Entry("a"))[0]
	for code, mark := range map[string]error{"INVALID_CHANGE_BATCH": registry.ErrPermanent, "THROTTLED_REQUEST": registry.ErrTransient} {
		f.Fail(code)
		for _, change := range []registry.Change{{Op: registry.Remove, Entry: a}, {Op: registry.Put, Entry: registrytest.Entry("b")}} {
			err := c.Apply(registrytest.Bounded(t), "web", []registry.Change{change})
			registrytest.CheckRefused(t, code+" of "+change.String(), err, change.Entry.ID, mark, code)
		}
	}
	registrytest.Only(t, c)
}

// TestDNS: an instance of which DNS has records counts as listed until its deregistration has ended, and as registered
// when its registration has.
func TestDNS(t *testing.T) {
	f := newFake(t, cloudmap.Times{Operation: time.Minute})
	f.Add("web", cloudmap.Service{Custom: true, DNS: true})
	c := connect(t, f)
	a := registrytest.Entry("a")
	err := c.Apply(short(t), "web", []registry.Change{{Op: registry.Put, Entry: a}})
	registrytest.CheckRefused(t, "a registration of which DNS has not heard", err, "a", registry.ErrTransient)
	f.Pass(time.Minute)
	a = registrytest.Only(t, c)
	remove := func() error { return c.Apply(short(t), "web", []registry.Change{{Op: registry.Remove, Entry: a}}) }
	registrytest.CheckRefused(t, "a deregistration of which DNS has not heard", remove(), "a", registry.ErrTransient)
	left := registrytest.Only(t, c)
	checktest.Same(t, "its weight", int32(0), left.Weight)
	checktest.Says(t, "it", left.Unsettled, "DNS may have it yet")
	a = left
	registrytest.CheckRefused(t, "once more", remove(), "a", registry.ErrTransient)
	checktest.Same(t, "deregistrations", 1, f.Called("DeregisterInstance"))
	f.Pass(time.Minute)
	registrytest.CheckNone(t, "when it has ended", registrytest.List(t, c))
	checktest.NoError(t, remove())
}

// TestFailedDNS: an instance whose deregistration failed half way stays listed, and is deregistered again.
func TestFailedDNS(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", cloudmap.Service{Custom: true, DNS: true})
	c := connect(t, f)
	a := registrytest.Put(t, c, registrytest.Entry("a"))[0]
	f.FailHalf("HOSTED_ZONE_NOT_FOUND")
	remove := func() error { return c.Apply(short(t), "web", []registry.Change{{Op: registry.Remove, Entry: a}}) }
	registrytest.CheckRefused(t, "a deregistration that fails", remove(), "a", registry.ErrPermanent, "HOSTED_ZONE_NOT_FOUND")
	for range 2 {
		a = registrytest.Only(t, c)
		checktest.Says(t, "it", a.Unsettled, "DNS may have it yet")
	}
	f.Fail("")
	checktest.NoError(t, remove()) // there is no such instance
	checktest.Same(t, "deregistrations", 2, f.Called("DeregisterInstance"))
	registrytest.CheckNone(t, "then", registrytest.List(t, c))
}

// TestTakenBack: a Pod that comes back while its instance is being deregistered is registered again.
func TestTakenBack(t *testing.T) {
	f := newFake(t, cloudmap.Times{Operation: time.Minute})
	f.Add("web", cloudmap.Service{Custom: true, DNS: true})
	c := connect(t, f)
	f.Register("web", "a", checktest.Must(wanted(registrytest.Entry("a"), nil))(t).attributes)
	a := registrytest.Only(t, c)
	_ = c.Apply(short(t), "web", []registry.Change{{Op: registry.Remove, Entry: a}}) // it goes on
	back := registrytest.Only(t, c)
	back.Weight, back.Unsettled = 10, ""
	_ = c.Apply(short(t), "web", []registry.Change{{Op: registry.Put, Entry: back}}) // as well
	f.Pass(time.Minute)
	if again := registrytest.Only(t, c); !again.Same(a) {
		t.Errorf("it came back as %+v", again)
	}
}

// TestHealth: Cloud Map shows another health half a minute after Usher has set it. Without a custom health check, an
// instance cannot be hidden.
func TestHealth(t *testing.T) {
	f := newFake(t, cloudmap.Times{Health: 30 * time.Second})
	f.Add("web", custom)
	c := connect(t, f)
	held := registrytest.Put(t, c, registrytest.Entry("a"))[0]
	held.Weight = 0
	hold := func() error { return c.Apply(short(t), "web", []registry.Change{{Op: registry.Put, Entry: held}}) }
	registrytest.CheckRefused(t, "a health that Cloud Map does not show yet", hold(), "a", registry.ErrTransient)
	checktest.Same(t, "how often Usher sets the health", 1, f.Called("UpdateInstanceCustomHealthStatus"))
	checktest.Same(t, "the weight meanwhile", int32(10), registrytest.Only(t, c).Weight)
	f.Pass(30 * time.Second)
	checktest.Same(t, "the weight then", int32(0), registrytest.Only(t, c).Weight)
	checktest.NoError(t, hold())

	f.Add("web", cloudmap.Service{})
	plain := connect(t, f)
	registrytest.Put(t, plain, registrytest.Entry("b"))
	b := registrytest.Entry("c")
	b.Weight = 0
	err := plain.Apply(short(t), "web", []registry.Change{{Op: registry.Put, Entry: b}})
	registrytest.CheckRefused(t, "no custom health check", err, "c", registry.ErrPermanent, "HealthCheckCustomConfig", "onInPlaceUpdate: Deregister")
	f.SetHealth("web", "b", "UNHEALTHY")
	again := registrytest.Only(t, plain)
	again.Weight = 10
	err = plain.Apply(short(t), "web", []registry.Change{{Op: registry.Put, Entry: again}})
	registrytest.CheckRefused(t, "a health check that fails", err, "b", registry.ErrTransient, "Route 53")
}

// TestUnhealthyStranger: an entry of others that gets no callers says why.
func TestUnhealthyStranger(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", custom)
	f.Register("web", "theirs", map[string]string{"AWS_INSTANCE_IPV4": "192.0.2.1"})
	f.SetHealth("web", "theirs", "UNHEALTHY")
	listed := registrytest.Only(t, connect(t, f))
	checktest.Same(t, "its weight", int32(0), listed.Weight)
	checktest.Says(t, "why", listed.Hidden, "unhealthy")
}

// TestServices: a service has to be there, and is looked for again when it has been made anew.
func TestServices(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	c := connect(t, f)
	registrytest.CheckRefused(t, "no service", registrytest.TryPut(t, c, registrytest.Entry("a")), "a", registry.ErrPermanent, "create-service --name web")
	f.Add("web", custom)
	registrytest.Put(t, c, registrytest.Entry("a"))
	checktest.Same(t, "lists of services", 2, f.Called("ListServices"))
	registrytest.Put(t, c, registrytest.Entry("b"))
	checktest.Same(t, "lists of services, when it is known", 2, f.Called("ListServices"))
	f.Remove("web")
	registrytest.CheckNone(t, "a service that is gone", registrytest.List(t, c))
	registrytest.CheckRefused(t, "a service that is gone", registrytest.TryPut(t, c, registrytest.Entry("c")), "c", registry.ErrTransient, "any more")
	f.Add("web", custom)
	registrytest.Put(t, c, registrytest.Entry("c"))
	other := registrytest.Connect(New(spec(f), nil, "ns-other", secret))(t)
	registrytest.Check(t, "no namespace", other.Ping(registrytest.Bounded(t)), registry.ErrPermanent, "spec.awsCloudMap.namespaceID")
}

// TestTooMany: a list that may be a part of all is an error.
func TestTooMany(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", custom)
	for n := range maxInstances {
		f.Register("web", fmt.Sprint("i-", n), map[string]string{"AWS_INSTANCE_IPV4": "192.0.2.1"})
	}
	_, err := connect(t, f).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "a thousand instances", err, registry.ErrPermanent, "1000 instances")
	registrytest.Check(t, "a thousand instances", err, registry.ErrOneService)
	_, err = connect(t, f).List(registrytest.Counted(t, 64<<10), "web")
	registrytest.Check(t, "an answer that takes too much memory", err, registry.ErrOneService, "more than 16384 bytes")
}

// TestRefusals: what AWS answers becomes an error with a mark. A name that AWS refuses, which a tenant may have
// chosen, is an error of that service alone.
func TestRefusals(t *testing.T) {
	scenariotest.Table(t, "testdata/refusals.txt", func(t *testing.T, test struct {
		Code   string
		Status int
	}) string {
		f := newFake(t, cloudmap.Times{})
		f.Add("web", custom)
		c := connect(t, f)
		registrytest.List(t, c)
		f.Refuse(test.Code, test.Status)
		_, err := c.List(registrytest.Bounded(t), "web")
		said := registrytest.Verdict(t, err)
		if errors.Is(err, registry.ErrOneService) {
			said += ", of this service alone"
		}
		return said + ": " + fmt.Sprint(err)
	})
}

// TestAnswersOfOthers: an answer that is none of AWS's is not an empty list.
func TestAnswersOfOthers(t *testing.T) {
	for _, answer := range []string{"{}", "[]", "null", "<html><body>It works!</body></html>", `{"Instances": null}`, `{"Instances": {}}`, `{"Services": []}`} {
		f := newFake(t, cloudmap.Times{})
		f.Add("web", custom)
		c := connect(t, f)
		registrytest.List(t, c) // and with it the namespace's name
		f.Answer(answer)
		if listed, err := c.List(registrytest.Bounded(t), "web"); err == nil {
			t.Errorf("%q is a list of %v", answer, listed)
		}
		fresh := connect(t, f)
		if err := fresh.Ping(registrytest.Bounded(t)); err == nil {
			t.Errorf("%q is a namespace", answer)
		}
	}
}

// TestThrottled: AWS's throttling is transient, for reads and for writes, and the change is made later.
func TestThrottled(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	f.Add("web", custom)
	c := connect(t, f)
	registrytest.List(t, c)
	f.Refuse("RequestLimitExceeded", http.StatusBadRequest)
	registrytest.Check(t, "a throttled change", registrytest.TryPut(t, c, registrytest.Entry("a")), registry.ErrTransient, "AWS is busy")
	f.Refuse("", 0)
	registrytest.Put(t, c, registrytest.Entry("a"))
}

// TestCredentials: the calls are signed with the Secret's keys, or with those of the role.
func TestCredentials(t *testing.T) {
	f := newFake(t, cloudmap.Times{})
	checktest.NoError(t, connect(t, f).Ping(registrytest.Bounded(t)))
	checktest.Same(t, "calls", []string{"GetNamespace AKID"}, f.Calls())
	_, err := New(spec(f), nil, cloudmap.Namespace, map[string][]byte{awsapi.KeyID: []byte("AKID")})
	registrytest.Check(t, "half of the keys", err, registry.ErrPermanent, awsapi.KeySecret)
	clients := NewClients()
	one := checktest.Must(New(spec(f), clients, cloudmap.Namespace, secret))(t)
	two := checktest.Must(New(spec(f), clients, cloudmap.Namespace, secret))(t)
	checktest.Same(t, "clients of one account", 1, clients.Len())
	checktest.NoError(t, one.Close())
	checktest.NoError(t, two.Close())
	checktest.Same(t, "clients when none is used", 0, clients.Len())
}

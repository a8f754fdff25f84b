// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
)

func managed(t *testing.T, f *elb.Server, reader client.Reader, change ...func(*usherv1alpha1.AWSTargetGroupRegistry)) *Managed {
	t.Helper()
	s := spec(f, "web")
	s.Manage = true
	for _, c := range change {
		c(s)
	}
	return checktest.Must(NewManaged(s, reader, nil, "demo", secret))(t)
}

// TestManagedConformance runs the suite. A target group keeps no metadata, and has the targets of one Registration.
func TestManagedConformance(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		f := elb.New(elb.Times{}, arn("web"))
		t.Cleanup(f.Close)
		address := strings.TrimPrefix(f.URL(), "http://")
		return registrytest.Fixture{
			Connector: managed(t, f, cluster().Build()), NoMetadata: true, OneOwner: true, AddressIsIdentity: true, Foreign: "192.0.2.1:1",
			Seed:  func(string, string) { f.Register(arn("web"), "192.0.2.1", 1) },
			Break: func() error { f.Close(); return nil },
			Mend:  func(ctx context.Context) error { return f.Restart(ctx, address) },
		}
	})
}

// entryOf is the entry of a Pod of the namespace demo.
func entryOf(pod *corev1.Pod) registry.Entry {
	e := registrytest.Entry(registry.PodID(pod.Namespace, pod.Name, string(pod.UID)))
	e.Address, e.Metadata, e.Weight, e.NoMetadata = pod.Status.PodIPs[0].IP, nil, 1, true
	e.Owner.Pod, e.Owner.PodUID = pod.Name, string(pod.UID)
	return e
}

func podAt(name, address string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID("0123-4567-" + name)},
		Status:     corev1.PodStatus{Phase: phase, PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

// TestManagedLife: a target is registered, comes, serves, drains and is gone; each is an entry with its reason.
func TestManagedLife(t *testing.T) {
	f := newFake(t, arn("web"))
	c := managed(t, f, cluster().Build())
	a := entryOf(podAt("a", "10.0.0.1", corev1.PodRunning))
	shows := func(weight int32, unsettled string) registry.Entry {
		t.Helper()
		e := registrytest.Only(t, c)
		checktest.Same(t, "the weight", weight, e.Weight)
		checktest.Says(t, "the reason", e.Unsettled, unsettled)
		return e
	}
	change := func(op registry.Op) error {
		return c.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: op, Entry: a}})
	}
	checktest.NoError(t, change(registry.Put))
	checktest.Same(t, "the tag", map[string]string{"usher.dev/owner": "here/demo/web"}, f.Tags(arn("web")))
	a.Version = shows(1, "target group web has it as initial").Version
	registrytest.CheckRefused(t, "a target that comes", change(registry.Put), a.ID, registry.ErrTransient, "as initial")
	checktest.Same(t, "registrations", 1, f.Called("RegisterTargets"))
	f.Pass(times.Registration + times.Checks)
	a.Version = shows(1, "").Version
	checktest.NoError(t, change(registry.Put))
	checktest.NoError(t, change(registry.Remove))
	a.Version = shows(0, "target group web has it as draining").Version
	checktest.NoError(t, change(registry.Remove))
	checktest.Same(t, "deregistrations", 1, f.Called("DeregisterTargets"))
	// It comes back while it drains.
	checktest.NoError(t, change(registry.Put))
	f.Pass(times.Registration + times.Checks)
	a.Version = shows(1, "").Version
	checktest.NoError(t, change(registry.Remove))
	f.Pass(times.Delay)
	registrytest.CheckNone(t, "when its drain is over", registrytest.List(t, c))
	propagation := managed(t, f, cluster().Build(), func(s *usherv1alpha1.AWSTargetGroupRegistry) { s.Draining = usherv1alpha1.TargetDrainingPropagation })
	registrytest.Put(t, propagation, a)
	registrytest.CheckNone(t, "a drain that counts as propagation", registrytest.Remove(t, propagation, a))
}

// TestManagedRestart: a process that knows nothing finds whose a target is by the addresses of Pods. One that no Pod
// has is an entry that can be removed.
func TestManagedRestart(t *testing.T) {
	f := elb.New(elb.Times{}, arn("web"))
	defer f.Close()
	pods := []client.Object{podAt("a", "10.0.0.1", corev1.PodRunning), podAt("old", "10.0.0.1", corev1.PodSucceeded), podAt("b", "10.0.0.2", corev1.PodRunning)}
	f.Tag(arn("web"), ownerTag, "here/demo/web")
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		f.Register(arn("web"), address, 8080)
	}
	c := managed(t, f, cluster(pods...).Build())
	listed := registrytest.List(t, c)
	for _, pod := range []*corev1.Pod{pods[0].(*corev1.Pod), pods[2].(*corev1.Pod)} {
		want := entryOf(pod)
		if have := registrytest.Find(listed, want.ID); have == nil || !have.Same(want) {
			t.Errorf("%s is listed as %+v, want %+v", pod.Name, have, want)
		}
	}
	orphan := registrytest.Find(listed, "10.0.0.3:8080")
	if orphan == nil || orphan.Owner.Cluster != "here" || orphan.Owner.Registration != "web" {
		t.Fatalf("the target of no Pod is %+v", orphan)
	}
	removal := []registry.Change{{Op: registry.Remove, Entry: *orphan}}
	checktest.NoError(t, registry.Validate("web", removal, false))
	checktest.NoError(t, c.Apply(registrytest.Bounded(t), "web", removal))
	checktest.Same(t, "targets", 2, len(registrytest.List(t, c)))
	// With another weight, nothing is registered again.
	a := entryOf(pods[0].(*corev1.Pod))
	a.Weight = 5
	registrytest.Heals(t, "a weight", c, a)
	checktest.Same(t, "registrations", 0, f.Called("RegisterTargets"))
}

// TestManagedOwners is an attack, or a slip: a group has the targets of one Registration, and of nobody else.
func TestManagedOwners(t *testing.T) {
	f := elb.New(elb.Times{}, arn("web"))
	defer f.Close()
	c := managed(t, f, cluster().Build())
	f.Register(arn("web"), "192.0.2.1", 80)
	refused := func(what string, words ...string) {
		t.Helper()
		registrytest.CheckRefused(t, what, registrytest.TryPut(t, c, registrytest.Entry("a")), "a", registry.ErrForeign, words...)
	}
	refused("targets of somebody else", "no tag usher.dev/owner")
	for _, owner := range []string{"there/demo/web", "here/other/web", "here/demo/other"} {
		f.Tag(arn("web"), ownerTag, owner)
		refused("targets of "+owner, "one only")
	}
	checktest.Same(t, "registrations", 0, f.Called("RegisterTargets"))
	f.Deregister(arn("web"), "192.0.2.1")
	registrytest.Put(t, c, registrytest.Entry("a"))
	checktest.Same(t, "the tag of a group that was empty", "here/demo/web", f.Tags(arn("web"))[ownerTag])
	f.Tag(arn("web"), ownerTag, "there/demo/web")
	taken := registrytest.Only(t, c)
	checktest.Same(t, "the owner, when another has got the group", "there", taken.Owner.Cluster)
	mine := registrytest.Entry("a")
	mine.ID, mine.Version = taken.ID, taken.Version
	registrytest.CheckRefused(t, "its removal", registrytest.TryChange(t, c, registry.Remove, mine), mine.ID, registry.ErrForeign)
	f.Tag(arn("web"), ownerTag, "here/demo/web")
	long := registrytest.Entry("b")
	long.Owner.Registration = strings.Repeat("a", maxTag)
	registrytest.CheckRefused(t, "a long name", registrytest.TryPut(t, c, long), "b", registry.ErrPermanent, "shorter")
}

// TestManagedBound: a group that a TargetGroupBinding names, in whichever namespace, is a controller's.
func TestManagedBound(t *testing.T) {
	other := binding("theirs", "web", arn("web"))
	other.SetNamespace("other")
	fails := func(err error) client.Reader {
		return cluster().WithInterceptorFuncs(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return err }}).Build()
	}
	for name, test := range map[string]struct {
		reader client.Reader
		mark   error
		words  string
	}{
		"bound":       {cluster(other).Build(), registry.ErrPermanent, "other/theirs"},
		"forbidden":   {fails(apierrors.NewForbidden(schema.GroupResource{}, "", nil)), registry.ErrPermanent, "rbac.targetGroupBindings=true"},
		"unavailable": {fails(apierrors.NewServiceUnavailable("later")), registry.ErrTransient, ""},
	} {
		f := newFake(t, arn("web"))
		err := registrytest.TryPut(t, managed(t, f, test.reader), registrytest.Entry("a"))
		registrytest.Check(t, name, err, test.mark, test.words)
		registrytest.Check(t, name, err, registry.ErrOneService)
		checktest.Same(t, name+": writes", 0, f.Called("RegisterTargets")+f.Called("AddTags"))
	}
}

// TestManagedCalls: 450 Pods need three calls, and one address that AWS refuses keeps out nobody else.
func TestManagedCalls(t *testing.T) {
	f := elb.New(elb.Times{}, arn("web"))
	defer f.Close()
	c := managed(t, f, cluster().Build())
	var all []registry.Entry
	for n := range 450 {
		e := registrytest.Entry(fmt.Sprintf("demo.web-%03d", n))
		e.Address = fmt.Sprintf("10.0.%d.%d", n/200, n%200+1)
		all = append(all, e)
	}
	checktest.Same(t, "targets", 450, len(registrytest.Put(t, c, all...)))
	checktest.Same(t, "calls that register", 3, f.Called("RegisterTargets"))
	registrytest.Remove(t, c, all...)
	checktest.Same(t, "calls that deregister", 3, f.Called("DeregisterTargets"))
	f.Unusable("10.0.0.3")
	err := registrytest.TryPut(t, managed(t, f, cluster().Build()), all[:8]...)
	registrytest.CheckRefused(t, "an address of another network", err, all[2].ID, registry.ErrPermanent, "not within the VPC")
	checktest.Same(t, "targets, without that one", 7, len(f.Targets(arn("web"))))
	f.Refuse("Throttling", 400)
	began := time.Now()
	registrytest.Check(t, "throttled", registrytest.TryPut(t, managed(t, f, cluster().Build()), all[:8]...), registry.ErrTransient)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a call that is throttled was tried for %s", took)
	}
}

// TestManagedServices: a Service that the Registry does not name has no entries, and gets none.
func TestManagedServices(t *testing.T) {
	f := newFake(t, arn("web"))
	c := managed(t, f, cluster().Build(), func(s *usherv1alpha1.AWSTargetGroupRegistry) { s.TargetGroups[0].Namespace = "other" })
	registrytest.CheckNone(t, "a Service of another namespace", registrytest.List(t, c))
	registrytest.Check(t, "a Service of another namespace", registrytest.TryPut(t, c, registrytest.Entry("a")), registry.ErrPermanent, "namespace demo")
	checktest.Same(t, "calls", 0, len(f.Calls()))
	gone := managed(t, newFake(t), cluster().Build())
	_, err := gone.List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "a group that is gone", err, registry.ErrOneService, "no such target group")
}

// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// arn is that of a target group.
func arn(name string) string { return elb.ARN(name) }

var times = elb.Times{Registration: 2 * time.Second, Checks: 10 * time.Second, Delay: 30 * time.Second}

func newFake(t *testing.T, arns ...string) *elb.Server {
	t.Helper()
	f := elb.New(times, arns...)
	t.Cleanup(f.Close)
	return f
}

var secret = map[string][]byte{awsapi.KeyID: []byte("AKID"), awsapi.KeySecret: []byte(registrytest.Secret)}

// spec is a Registry that names target groups of the Service web, at a fake.
func spec(f *elb.Server, groups ...string) *usherv1alpha1.AWSTargetGroupRegistry {
	s := &usherv1alpha1.AWSTargetGroupRegistry{Region: "eu-west-1", Endpoint: f.URL()}
	if len(groups) > 0 {
		one := usherv1alpha1.AWSTargetGroups{Namespace: "demo", Service: "web"}
		for _, name := range groups {
			one.ARNs = append(one.ARNs, arn(name))
		}
		s.TargetGroups = []usherv1alpha1.AWSTargetGroups{one}
	}
	return s
}

func connector(t *testing.T, s *usherv1alpha1.AWSTargetGroupRegistry, reader client.Reader, secret map[string][]byte) registry.Connector {
	t.Helper()
	lister := checktest.Must(New(s, reader, nil, "demo", secret))(t)
	return registry.Follower(lister)
}

// TestConformance runs the suite's part for connectors that only list.
func TestConformance(t *testing.T) {
	registrytest.RunFollower(t, func(t *testing.T) registrytest.Followed {
		f := newFake(t, arn("web"))
		address := strings.TrimPrefix(f.URL(), "http://")
		return registrytest.Followed{
			Connector: connector(t, spec(f, "web"), nil, secret),
			Write:     func(_ *testing.T, _, address string, port int32) { f.Register(arn("web"), address, port) },
			Serve:     func(*testing.T, string, string, int32) { f.Pass(times.Registration + times.Checks) },
			Leave:     func(_ *testing.T, _, address string, _ int32) { f.Deregister(arn("web"), address) },
			End:       func(*testing.T, string, string, int32) { f.Pass(times.Delay) },
			Break:     func() error { f.Close(); return nil },
			Mend:      func(ctx context.Context) error { return f.Restart(ctx, address) },
			Throttle: func(on bool) {
				f.Refuse(map[bool]string{true: "Throttling"}[on], http.StatusBadRequest)
			},
		}
	})
}

// TestStates: what each state of a target, with each reason, is to callers, and what is said of it.
func TestStates(t *testing.T) {
	scenariotest.Table(t, "testdata/states.txt", func(_ *testing.T, test struct {
		State, Reason string
		Draining      usherv1alpha1.TargetDraining
	}) string {
		e := target{group: "web", address: "10.0.0.1", port: 80, state: test.State, reason: test.Reason}.target(test.Draining).Entry()
		what := "gets requests"
		switch {
		case e.Unsettled != "" && e.Weight == 0:
			what = "leaves"
		case e.Unsettled != "":
			what = "between"
		case e.Weight == 0:
			what = "gets none"
		}
		return strings.TrimSuffix(what+": "+e.Unsettled+e.Hidden, ": ")
	})
}

// TestSeveralGroups: a Pod is in service when each group has it as healthy, and gone when none has it.
func TestSeveralGroups(t *testing.T) {
	f := newFake(t, arn("alb"), arn("nlb"))
	c := connector(t, spec(f, "alb", "nlb"), nil, secret)
	in := func() (n int, why string) {
		for _, e := range registrytest.List(t, c) {
			if why = cmp.Or(why, e.Unsettled); e.Weight > 0 && e.Unsettled == "" {
				n++
			}
		}
		return n, why
	}
	f.Register(arn("alb"), "10.0.0.1", 8080)
	f.Pass(time.Minute)
	n, why := in()
	checktest.Same(t, "in service in one group of two", 0, n)
	checktest.Same(t, "why", "target group nlb does not have it yet", why)
	f.Register(arn("nlb"), "10.0.0.1", 8443)
	_, why = in()
	checktest.Says(t, "why, while the other group checks it", why, "target group nlb has it as initial")
	f.Pass(time.Minute)
	n, _ = in()
	checktest.Same(t, "targets in service", 2, n)
	f.Deregister(arn("alb"), "10.0.0.1")
	f.Pass(times.Delay)
	if left := registrytest.Only(t, c); left.ID != "nlb/10.0.0.1:8443" {
		t.Errorf("%+v is left, and the other group has it yet", left)
	}
	f.Remove(arn("alb"))
	f.Pass(0)
	registrytest.Only(t, c) // a group that is gone has nobody
	f.Remove(arn("nlb"))
	_, err := c.List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "no group is left", err, registry.ErrNoService, "no such target group")
}

// TestAddresses: addresses are as Kubernetes writes them.
func TestAddresses(t *testing.T) {
	f := newFake(t, arn("web"))
	f.Register(arn("web"), "2001:DB8:0:0::1", 80)
	checktest.Same(t, "the address", "2001:db8::1", registrytest.Only(t, connector(t, spec(f, "web"), nil, secret)).Address)
}

// TestInstances: the health of nodes says nothing of Pods, and the error says what to do.
func TestInstances(t *testing.T) {
	f := newFake(t, arn("web"))
	f.SetKind("instance")
	_, err := connector(t, spec(f, "web"), nil, secret).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "targets that are nodes", err, registry.ErrPermanent, "type instance", "target-type: ip", "kube-proxy")
	registrytest.Check(t, "targets that are nodes", err, registry.ErrOneService)
}

// TestRefusals: what AWS answers becomes an error with a mark, which stays the same for each attempt.
func TestRefusals(t *testing.T) {
	scenariotest.Table(t, "testdata/refusals.txt", func(t *testing.T, test struct {
		Code   string
		Status int
	}) string {
		f := newFake(t, arn("web"))
		f.Refuse(test.Code, test.Status)
		c := connector(t, spec(f, "web"), nil, secret)
		_, err := c.List(registrytest.Bounded(t), "web")
		_, again := c.List(registrytest.Bounded(t), "web")
		checktest.Same(t, "the second error", fmt.Sprint(err), fmt.Sprint(again))
		said := []string{registrytest.Verdict(t, err)}
		if errors.Is(err, registry.ErrOneService) {
			said = append(said, "of this service alone")
		}
		return strings.Join(said, ", ") + ": " + err.Error()
	})
}

// TestAnswersOfOthers: an answer that is none of AWS's is not an empty list.
func TestAnswersOfOthers(t *testing.T) {
	for _, answer := range []string{
		"", "{}", "[]", "<html><body>It works!</body></html>", "<DescribeTargetHealthResponse/>",
		"<DescribeTargetHealthResponse><DescribeTargetHealthResult/></DescribeTargetHealthResponse>",
		"<DescribeTargetHealthResponse><DescribeTargetHealthResult><TargetHealthDescriptions><member/></TargetHealthDescriptions></DescribeTargetHealthResult></DescribeTargetHealthResponse>",
	} {
		f := newFake(t, arn("web"))
		c := connector(t, spec(f, "web"), nil, secret)
		registrytest.List(t, c) // and with it the group's type
		f.Answer(cmp.Or(answer, "\n"))
		if listed, err := c.List(registrytest.Bounded(t), "web"); err == nil {
			t.Errorf("%q is a list of %v", answer, listed)
		}
	}
	f := newFake(t, arn("web"))
	f.Answer("<DescribeTargetGroupsResponse><DescribeTargetGroupsResult><TargetGroups/></DescribeTargetGroupsResult></DescribeTargetGroupsResponse>")
	if _, err := connector(t, spec(f, "web"), nil, secret).List(registrytest.Bounded(t), "web"); err == nil {
		t.Error("a group of which nothing is said is empty")
	}
}

// TestFewCalls: one call lists all targets of a group; its type is asked for once.
func TestFewCalls(t *testing.T) {
	f := newFake(t, arn("web"))
	for n := range 200 {
		f.Register(arn("web"), fmt.Sprintf("10.0.0.%d", n+1), 80)
	}
	clients := NewClients()
	one := checktest.Must(New(spec(f, "web"), nil, clients, "demo", secret))(t)
	two := checktest.Must(New(spec(f, "web"), nil, clients, "demo", secret))(t)
	for _, r := range []*Registry{one, two, one} {
		if listed := checktest.Must(r.List(registrytest.Bounded(t), "web"))(t); len(listed) != 200 {
			t.Errorf("%d targets are listed, want 200", len(listed))
		}
	}
	checktest.Same(t, "calls for three lists", 3, f.Called("DescribeTargetHealth"))
	checktest.Same(t, "calls for the type of a group", 1, f.Called("DescribeTargetGroups"))
	checktest.Same(t, "clients of one account", 1, clients.Len())
	checktest.NoError(t, one.Close())
	checktest.Same(t, "clients while one connector is left", 1, clients.Len())
	checktest.NoError(t, two.Close())
	checktest.Same(t, "clients when none is left", 0, clients.Len())
}

// TestCallsAreBounded: whoever has target groups without end takes no more than the account's turns.
func TestCallsAreBounded(t *testing.T) {
	f := newFake(t, arn("web"))
	c := connector(t, spec(f, "web"), nil, secret)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var err error
	for range 10 * callsBurst {
		if _, err = c.List(ctx, "web"); err != nil {
			break
		}
	}
	registrytest.Check(t, "more calls than there are turns", err, registry.ErrTransient)
	if n := f.Called("DescribeTargetHealth"); n > callsBurst {
		t.Errorf("%d calls, of %d at once", n, callsBurst)
	}
}

// TestCredentials: who calls, as the Registry says.
func TestCredentials(t *testing.T) {
	callers := func(f *elb.Server, s *usherv1alpha1.AWSTargetGroupRegistry, secret map[string][]byte) []string {
		checktest.NoError(t, connector(t, s, nil, secret).Ping(registrytest.Bounded(t)))
		return f.Calls()
	}
	f := newFake(t)
	checktest.Same(t, "with a Secret", []string{"DescribeTargetGroups AKID"}, callers(f, spec(f), secret))
	f = newFake(t)
	assumes := spec(f)
	assumes.RoleARN = "arn:aws:iam::123456789012:role/usher"
	checktest.Same(t, "with a role", []string{"AssumeRole AKID", "DescribeTargetGroups ASSUMED"}, callers(f, assumes, secret))
	t.Setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	f = newFake(t)
	checktest.Same(t, "without a Secret", []string{"DescribeTargetGroups ENVIRONMENT"}, callers(f, spec(f), nil))
	for key := range secret {
		_, err := New(spec(f), nil, nil, "demo", map[string][]byte{key: secret[key]})
		registrytest.Check(t, "the key "+key+" alone", err, registry.ErrPermanent, awsapi.KeyID, awsapi.KeySecret)
	}
	_, err := New(spec(f), nil, nil, "demo", map[string][]byte{credentials.KeyCA: []byte(registrytest.Secret)})
	registrytest.Check(t, "a CA that is none", err, registry.ErrPermanent, credentials.KeyCA)
}

// TestNoCredentials: the error says where they may come from.
func TestNoCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("HOME", t.TempDir())
	f := newFake(t)
	err := connector(t, spec(f), nil, nil).Ping(registrytest.Bounded(t))
	registrytest.Check(t, "nobody has credentials", err, registry.ErrTransient, "service account", "credentialsSecret")
	checktest.Same(t, "calls without credentials", 0, len(f.Calls()))
}

// binding is a TargetGroupBinding of the namespace demo.
func binding(name, service, arn string) *unstructured.Unstructured {
	b := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"serviceRef": map[string]any{"name": service, "port": int64(80)}, "targetGroupARN": arn}}}
	b.SetGroupVersionKind(schema.GroupVersionKind{Group: "elbv2.k8s.aws", Version: "v1beta1", Kind: "TargetGroupBinding"})
	b.SetNamespace("demo")
	b.SetName(name)
	return b
}

// cluster has some TargetGroupBindings.
func cluster(objects ...client.Object) *fake.ClientBuilder {
	b := fake.NewClientBuilder()
	for _, object := range append(objects, binding("any", "any", arn("any"))) {
		b = b.WithObjects(object)
	}
	return b
}

// TestBindings: the target groups of a Service are those that TargetGroupBindings of its namespace name.
func TestBindings(t *testing.T) {
	f := newFake(t, arn("alb"), arn("nlb"), arn("other"))
	f.Register(arn("alb"), "10.0.0.1", 80)
	f.Register(arn("nlb"), "10.0.0.2", 80)
	f.Register(arn("other"), "10.0.0.3", 80)
	elsewhere := binding("elsewhere", "web", arn("other"))
	elsewhere.SetNamespace("other")
	reader := cluster(binding("a", "web", arn("alb")), binding("b", "web", arn("nlb")), binding("c", "other", arn("other")), elsewhere).Build()
	var found []string
	for _, e := range registrytest.List(t, connector(t, spec(f), reader, secret)) {
		found = append(found, e.ID)
	}
	checktest.Same(t, "the targets", []string{"alb/10.0.0.1:80", "nlb/10.0.0.2:80"}, found)
	checktest.Same(t, "those that the Registry names instead", "alb/10.0.0.1:80", registrytest.Only(t, connector(t, spec(f, "alb"), reader, secret)).ID)
}

// TestNoBindings: an error says why no target groups are found, and what to do.
func TestNoBindings(t *testing.T) {
	kind := schema.GroupKind{Group: "elbv2.k8s.aws", Kind: "TargetGroupBinding"}
	fails := func(err error) client.Reader {
		return cluster().WithInterceptorFuncs(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return err }}).Build()
	}
	many := make([]client.Object, maxGroups+1)
	for i := range many {
		many[i] = binding(fmt.Sprint("b", i), "web", arn(fmt.Sprint("g", i)))
	}
	for name, test := range map[string]struct {
		reader client.Reader
		mark   error
		words  []string
	}{
		"no kind":        {fails(&meta.NoKindMatchError{GroupKind: kind}), registry.ErrNoService, []string{"elbv2.k8s.aws/v1beta1", "spec.awsTargetGroup.targetGroups"}},
		"forbidden":      {fails(apierrors.NewForbidden(schema.GroupResource{Resource: "targetgroupbindings"}, "", nil)), registry.ErrPermanent, []string{"rbac.targetGroupBindings=true"}},
		"none":           {cluster().Build(), registry.ErrNoService, []string{"namespace demo", "Service web", "alb"}},
		"no ARN yet":     {cluster(binding("a", "web", "")).Build(), registry.ErrTransient, []string{"targetGroupARN"}},
		"no ARN":         {cluster(binding("a", "web", "arn:aws:s3:::"+registrytest.Secret[:3])).Build(), registry.ErrPermanent, []string{"no ARN"}},
		"another region": {cluster(binding("a", "web", strings.Replace(arn("web"), "eu-west-1", "us-east-1", 1))).Build(), registry.ErrPermanent, []string{"us-east-1", "eu-west-1"}},
		"too many":       {cluster(many...).Build(), registry.ErrPermanent, []string{"9 target groups", "8 at most"}},
		"unavailable":    {fails(apierrors.NewServiceUnavailable("later")), registry.ErrTransient, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			_, err := connector(t, spec(f), test.reader, secret).List(registrytest.Bounded(t), "web")
			registrytest.Check(t, name, err, test.mark, test.words...)
			registrytest.Check(t, name, err, registry.ErrOneService)
			checktest.Same(t, "calls to AWS", 0, len(f.Calls()))
		})
	}
}

// TestForeignBinding is an attack: a tenant names a target group of others in a TargetGroupBinding. What AWS says of
// it is an error of that Service, and keeps the Registry from nobody.
func TestForeignBinding(t *testing.T) {
	for _, code := range []string{"AccessDenied", "ValidationError", "UnsupportedOperation"} {
		f := newFake(t)
		f.Refuse(code, http.StatusForbidden)
		_, err := connector(t, spec(f, "web"), nil, secret).List(registrytest.Bounded(t), "web")
		registrytest.Check(t, code, err, registry.ErrOneService)
	}
}

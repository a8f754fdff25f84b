// SPDX-License-Identifier: Apache-2.0

package awstargetgroup_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ktypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/guard/endpoint"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/neg"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/clouds"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	root = "../../.."
	// fakeLate is how long the fake load balancer sends new requests to a target that drains.
	fakeLate = 500 * time.Millisecond
	// lag is how late the controller's changes come to the load balancer, about as was seen of AWS's controller while
	// it had much to do.
	lag = 250 * time.Millisecond
)

// The times of the fake load balancers. A Network Load Balancer takes longer to let a target go.
var (
	fakeTimes = elb.Times{Registration: 200 * time.Millisecond, Checks: 300 * time.Millisecond, Delay: 2 * time.Second}
	nlbTimes  = elb.Times{Registration: 500 * time.Millisecond, Checks: 500 * time.Millisecond, Delay: 4 * time.Second}
	negTimes  = neg.Times{Attach: 200 * time.Millisecond, Checks: 300 * time.Millisecond, Drain: 2 * time.Second}
)

// world is a cluster whose Pods serve, and whose Services have load balancers.
type world struct {
	*scene.Plane
	fake, nlb *elb.Server
	neg       *neg.Server
	ministack *ministack
}

// requests is how many requests each part of TestTraffic sends at least; the Deployment lives on until then.
var requests = flag.Int("requests", 0, "how many `requests` each part of TestTraffic sends at least; 0 for one round of changes")

// way is how the Pods of a Deployment come into service, and out of it.
type way string

const (
	labelAndGroup way = "label and a Registry that follows"
	managed       way = "awsTargetGroup that Usher manages"
	gateAlone     way = "gate alone"
	withoutUsher  way = "without Usher"
)

// TestTraffic sends requests through load balancers whose controller follows a Service by AWS's or GKE's rule,
// while a Deployment is rolled out, scaled in, drained from its node, and loses Pods. One load balancer is
// ministack, which others have written; it sends real HTTP, and takes targets out at once. The others are fakes
// of an Application and of a Network Load Balancer and of a network endpoint group, with health checks, a
// deregistration delay, and new requests for targets that drain. With the label and a Registry that follows the
// load balancer no request is lost, nor where Usher writes the targets itself. With the readiness gate alone,
// and without Usher, some are: that the test counts them shows that it could.
func TestTraffic(t *testing.T) {
	w := newWorld(t)
	for _, balancer := range []string{"aws.ministack", "aws.fake", "aws.nlb", "gke.fake"} {
		t.Run(balancer, func(t *testing.T) {
			for _, out := range []way{labelAndGroup, managed, gateAlone, withoutUsher} {
				if out == managed && (balancer == "aws.nlb" || balancer == "gke.fake") {
					continue // the API is the one of aws.fake, and Usher writes no endpoints of Google Cloud
				}
				t.Run(string(out), func(t *testing.T) {
					lost := w.play(t, balancer, out)
					if (lost == 0) != (out == labelAndGroup || out == managed) {
						t.Errorf("%d requests were lost", lost)
					}
				})
			}
		})
	}
}

// newWorld starts a control plane with Usher, nodes whose Pods serve, and load balancers with their controller.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		Plane: checktest.Must(scene.New(clustertest.Start(t)))(t),
		fake:  elb.Start(fakeTimes), nlb: elb.Start(nlbTimes), neg: neg.Start(negTimes),
	}
	t.Cleanup(w.fake.Close)
	t.Cleanup(w.nlb.Close)
	t.Cleanup(w.neg.Close)
	ctx := t.Context()
	ctrl.SetLogger(logr.Discard())
	w.impersonate(t)
	checktest.NoError(t, clouds.InstallCRDs(w.RESTConfig()))
	runtime := clouds.Serving{Runtime: node.NewSimulatedRuntime(node.Traits{DeleteDelay: 20 * time.Millisecond})}
	checktest.Must(node.Start(ctx, node.Options{RESTConfig: w.RESTConfig(), Nodes: 2, Runtime: runtime}))(t)
	w.ministack = startMinistack(t, w)
	connect := kinds.Connect(kinds.Cluster{Reader: w, Writer: w})
	service := endpoint.Service{Namespace: "usher-system", Name: checkout.GuardName}
	checktest.Must(w.StartUsher(ctx, root, service, registration.Options{Connect: func(r *usherv1alpha1.Registry, in string, secret map[string][]byte) (registry.Connector, error) {
		return connect(r, in, secret)
	}}))(t)
	controller := &clouds.Controller{Lag: lag, Balancers: map[string]clouds.Balancer{
		"aws.fake": clouds.ELB{Server: w.fake, Client: w}, "aws.ministack": w.ministack,
		"aws.nlb": clouds.ELB{Server: w.nlb, Client: w}, "gke.fake": clouds.NEG{Server: w.neg, Client: w},
	}}
	checktest.Must(w.Manage(ctx, w.RESTConfig(), ctrl.Options{}, func(_ context.Context, mgr ctrl.Manager) error { return controller.SetUp(mgr) }))(t)
	return w
}

// impersonate has the test be somebody other than Usher.
func (w *world) impersonate(t *testing.T) {
	t.Helper()
	config := w.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:masters"}}
	w.WithWatch = checktest.Must(client.NewWithWatch(config, client.Options{Scheme: w.Scheme()}))(t)
}

// game is a Deployment behind a load balancer.
type game struct {
	*scene.Scene
	world    *world
	balancer clouds.Balancer
	callers  *traffic.Client
}

// play takes a Deployment through its life under traffic, and returns how many requests were lost.
func (w *world) play(t *testing.T, balancer string, out way) (lost int) {
	t.Helper()
	g := &game{Scene: w.Begin(t), world: w}
	front := w.front(t, balancer, g.Namespace)
	g.balancer = front.Balancer
	arn := elb.ARN(g.Namespace)
	if out == managed && balancer == "aws.ministack" {
		arn = checktest.Must(w.ministack.make(t.Context(), g.Namespace))(t)
	}
	g.begin(balancer, front, arn, out)
	g.serves("0", 4)
	if out != withoutUsher {
		g.Has(g.Object(`{apiVersion: usher.dev/v1alpha1, kind: Registration, metadata: {name: web}}`), `status: {registered: 4}`)
	}
	server := httptest.NewServer(front.Handler)
	defer server.Close()
	g.callers = traffic.New(traffic.Options{
		Source: traffic.Fixed(strings.TrimPrefix(server.URL, "http://")), Rate: front.rate,
		SlowMin: 200 * time.Millisecond, SlowMax: time.Second, NewConnections: true,
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.callers.Run(ctx) }()
	for round := 1; round == 1 || g.callers.Report().Total().Sent < *requests; round++ {
		g.live(strconv.Itoa(round))
	}
	stop()
	checktest.NoError(t, <-ended)
	return g.log(g.callers.Report())
}

// front is a load balancer: what its controller writes to, what sends requests to its targets, and how Usher asks it.
type front struct {
	clouds.Balancer
	http.Handler
	// registry is the beginning of the Registry's spec of its kind.
	registry string
	// rate is how many requests it gets a second.
	rate int
}

// front returns the load balancer of the Service in a namespace.
func (w *world) front(t *testing.T, name, namespace string) front {
	t.Helper()
	ofELB := func(server *elb.Server) front {
		server.Add(elb.ARN(namespace))
		return front{
			Balancer: clouds.ELB{Server: server, Client: w}, Handler: clouds.OfELB(server, elb.ARN(namespace), fakeLate),
			registry: awsAt(server.URL()), rate: 100,
		}
	}
	switch name {
	case "aws.fake":
		return ofELB(w.fake)
	case "aws.nlb":
		return ofELB(w.nlb)
	case "gke.fake":
		balancer := clouds.NEG{Server: w.neg, Client: w}
		group := balancer.Group(ktypes.NamespacedName{Namespace: namespace, Name: "web"})
		return front{
			Balancer: balancer, Handler: clouds.OfNEG(w.neg, group, fakeLate), rate: 100,
			registry: fmt.Sprintf(`gcpNEG: {project: shop-prod-1, endpoint: "%s", `, w.neg.URL()),
		}
	}
	w.fake.Add(elb.ARN(namespace))
	return front{
		Balancer: w.ministack, Handler: clouds.Forward(w.ministack.host(), "/_alb/"+namespace), registry: awsAt(w.ministack.view(t)), rate: 40,
	}
}

func awsAt(endpoint string) string {
	return fmt.Sprintf(`awsTargetGroup: {region: eu-west-1, endpoint: "%s", `, endpoint)
}

// log prints what was sent and lost during each kind of change, and returns how many were lost.
func (g *game) log(report traffic.Report) (lost int) {
	for _, section := range report.ByName() {
		g.Logf("%-10s %5d sent, %3d lost", section.Name, section.Sent, section.Lost)
	}
	total := report.Total()
	g.Logf("%-10s %5d sent, %3d lost %v", "all", total.Sent, total.Lost, report.Reasons)
	return total.Lost
}

// begin creates the Deployment and what it needs.
func (g *game) begin(balancer string, front front, arn string, out way) {
	selector, registries, gates := "{app: web}", "[service]", "[]"
	labels, manages, port := "app: web", "", "null"
	switch out {
	case labelAndGroup:
		selector = `{app: web, usher.dev/in-service: "true"}`
		registries = "[labels-" + g.Namespace + ", aws-" + g.Namespace + "]"
		labels = `app: web, usher.dev/in-service: "true"`
	case managed:
		balancer, port = "nobody", strconv.Itoa(clouds.Port)
		registries, gates = "[aws-"+g.Namespace+"]", "[{conditionType: usher.dev/registered}]"
		manages = fmt.Sprintf(`manage: true, targetGroups: [{namespace: "%s", service: web, arns: ["%s"]}], `, g.Namespace, arn)
	case gateAlone:
		gates = "[{conditionType: usher.dev/registered}]"
	case withoutUsher:
	}
	for _, text := range []string{
		`{apiVersion: v1, kind: Secret, metadata: {name: aws}, stringData: {aws_access_key_id: me, aws_secret_access_key: secret, ` +
			`key.json: '` + neg.Key(g.world.neg.URL()) + `'}}`,
		fmt.Sprintf(`{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: "labels-%s"}, spec: {service: {label: {}}}}`, g.Namespace),
		fmt.Sprintf(`{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: "aws-%[1]s"}, spec: {insecure: true, `+
			`%[2]s%[3]scredentialsSecret: {namespace: "%[1]s", name: aws}}}}`, g.Namespace, front.registry, manages),
		fmt.Sprintf(`{apiVersion: usher.dev/v1alpha1, kind: Registration, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, `+
			`registries: %s, instance: {service: web, port: %s}, drain: {propagation: 1s}}}`, registries, port),
		fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: web, labels: {%s: %s}}, spec: {clusterIP: None, selector: %s, `+
			`ports: [{port: %d}]}}`, clouds.LabelRule, balancer, selector, clouds.Port),
		fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 4, selector: {matchLabels: {app: web}}, `+
			`template: {metadata: {labels: {version: "0", %s}}, spec: {readinessGates: %s, containers: [{name: web, image: "example.test/web:v1"}]}}}}`,
			labels, gates),
	} {
		if object := g.Object(text); out != withoutUsher || object.GetObjectKind().GroupVersionKind().Group != "usher.dev" {
			g.Make(object)
		}
	}
}

// live takes the Deployment through what happens to it, and to a version.
func (g *game) live(version string) {
	web := g.Object(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}`)
	g.callers.Section("rollout")
	g.Change(web, `spec: {template: {metadata: {labels: {version: "%s"}}}}`, version)
	g.serves(version, 4)
	g.callers.Section("scale-in")
	g.Change(web, `spec: {replicas: 3}`)
	g.serves(version, 3)
	g.callers.Section("drain")
	node := g.Pods()[0].Spec.NodeName
	g.Change(g.Object(fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s}}`, node)), `spec: {unschedulable: true}`)
	g.evict(list.Only(g.Pods(), func(pod corev1.Pod) bool { return pod.Spec.NodeName == node }))
	g.Change(g.Object(fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s}}`, node)), `spec: {unschedulable: false}`)
	g.serves(version, 3)
	g.callers.Section("eviction")
	g.evict(g.Pods()[:1])
	g.serves(version, 3)
	g.callers.Section("delete")
	gone := g.Pods()[0]
	g.until("the deletion of "+gone.Name, func() error { return g.Delete(g.Context(), &gone) })
	g.Gone(&gone)
	g.serves(version, 3)
	g.callers.Section("scale-out")
	g.Change(web, `spec: {replicas: 4}`)
	g.serves(version, 4)
}

// evict evicts Pods, as kubectl drain does.
func (g *game) evict(on []corev1.Pod) {
	var all sync.WaitGroup
	for _, pod := range on {
		all.Go(func() {
			g.until("the eviction of "+pod.Name, func() error {
				return g.SubResource("eviction").Create(g.Context(), &pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}})
			})
		})
	}
	all.Wait()
	for _, pod := range on {
		g.Gone(&pod)
	}
}

// until repeats a request that is refused for now.
func (g *game) until(what string, do func() error) {
	g.Until(what, func() string {
		if err := client.IgnoreNotFound(do()); err != nil && !apierrors.IsTooManyRequests(err) {
			g.Errorf("%s: %v", what, err)
		} else if err != nil {
			return err.Error()
		}
		return ""
	})
}

// serves waits until there are just so many Pods, of a version, and the load balancer has them all, and no others.
func (g *game) serves(version string, n int) {
	service := ktypes.NamespacedName{Namespace: g.Namespace, Name: "web"}
	g.Until(fmt.Sprintf("%d Pods of version %s to serve", n, version), func() string {
		pods := g.Pods()
		targets := checktest.Must(g.balancer.Targets(g.Context(), service))(g)
		for _, pod := range pods {
			if pod.Labels["version"] != version || pod.DeletionTimestamp != nil || !targets[clouds.Target{Address: pod.Status.PodIP, Port: clouds.Port}].Healthy {
				return pod.Name + " does not serve"
			}
		}
		if len(pods) != n || len(targets) != n {
			return fmt.Sprintf("there are %d Pods and %d targets", len(pods), len(targets))
		}
		return ""
	})
}

// ministack is a server of AWS's API whose load balancers send HTTP. It is a Balancer. Pods serve at loopback addresses,
// so these are its targets.
type ministack struct {
	run.HTTP
	client client.Client
	elb    *elbv2.Client

	mu   sync.Mutex
	arns map[string]string
}

func startMinistack(t *testing.T, c client.Client) *ministack {
	t.Helper()
	packages := servers.Fetch(t, func(ctx context.Context) (string, error) { return fetch.Python(ctx, "ministack", "ministack") })
	port := servers.FreePorts(t, 1)[0]
	m := &ministack{HTTP: run.HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d", port)}, client: c, arns: map[string]string{}}
	servers.Start(t, run.Spec{
		Name: "ministack", Path: "python3", Args: []string{"-m", "ministack"},
		Env: append(os.Environ(), "PYTHONPATH="+packages, fmt.Sprint("GATEWAY_PORT=", port), "BIND_HOST=127.0.0.1", "MINISTACK_REGION="+region, "LOG_LEVEL=WARNING"),
		Ready: func(ctx context.Context) error {
			_, err := m.Do(ctx, "GET", "/_ministack/health", nil, nil)
			return err
		},
	})
	m.elb = elbv2.New(elbv2.Options{Region: region, BaseEndpoint: &m.Address, Credentials: credentials.NewStaticCredentialsProvider("me", "secret", "")})
	return m
}

func (m *ministack) host() string { return strings.TrimPrefix(m.Address, "http://") }

// view is the address of the API as Usher sees it: with the addresses that Pods have in the cluster.
func (m *ministack) view(t *testing.T) string {
	t.Helper()
	api := clouds.Forward(m.host(), "")
	api.ModifyResponse = func(r *http.Response) (err error) {
		r.Body, r.ContentLength, err = replaced(r.Body, "<Id>127.", "<Id>10.")
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
		return err
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if r.Body, r.ContentLength, err = replaced(r.Body, ".Id=10.", ".Id=127."); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// replaced is a body with a text in place of another.
func replaced(body io.ReadCloser, old, by string) (io.ReadCloser, int64, error) {
	all, err := io.ReadAll(body)
	all = bytes.ReplaceAll(all, []byte(old), []byte(by))
	return io.NopCloser(bytes.NewReader(all)), int64(len(all)), err
}

// Announce implements clouds.Balancer.
func (m *ministack) Announce(ctx context.Context, service ktypes.NamespacedName) error {
	if m.arn(service) != "" {
		return nil
	}
	arn, err := m.make(ctx, service.Namespace)
	if err != nil {
		return err
	}
	return clouds.AnnounceGroup(ctx, m.client, service, arn)
}

// make makes the target group and the load balancer of a namespace's Service.
func (m *ministack) make(ctx context.Context, namespace string) (arn string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	group, err := m.elb.CreateTargetGroup(ctx, &elbv2.CreateTargetGroupInput{
		Name: &namespace, Protocol: types.ProtocolEnumHttp, Port: aws.Int32(clouds.Port), TargetType: types.TargetTypeEnumIp, VpcId: aws.String("vpc-1"),
	})
	if err != nil {
		return "", err
	}
	balancer, err := m.elb.CreateLoadBalancer(ctx, &elbv2.CreateLoadBalancerInput{Name: &namespace, Subnets: []string{"subnet-1", "subnet-2"}})
	if err != nil {
		return "", err
	}
	_, port, _ := strings.Cut(m.host(), ":")
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return "", err
	}
	arn = *group.TargetGroups[0].TargetGroupArn
	_, err = m.elb.CreateListener(ctx, &elbv2.CreateListenerInput{
		LoadBalancerArn: balancer.LoadBalancers[0].LoadBalancerArn, Protocol: types.ProtocolEnumHttp, Port: aws.Int32(int32(number)),
		DefaultActions: []types.Action{{Type: types.ActionTypeEnumForward, TargetGroupArn: &arn}},
	})
	if err != nil {
		return "", err
	}
	m.arns[namespace] = arn
	return arn, nil
}

func (m *ministack) arn(service ktypes.NamespacedName) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.arns[service.Namespace]
}

// Targets implements clouds.Balancer. A target that was deregistered is unused at once.
func (m *ministack) Targets(ctx context.Context, service ktypes.NamespacedName) (map[clouds.Target]clouds.State, error) {
	all := map[clouds.Target]clouds.State{}
	arn := m.arn(service)
	if arn == "" {
		return all, nil
	}
	answer, err := m.elb.DescribeTargetHealth(ctx, &elbv2.DescribeTargetHealthInput{TargetGroupArn: &arn})
	if err != nil {
		return nil, err
	}
	for _, d := range answer.TargetHealthDescriptions {
		target := clouds.Target{Address: clouds.FromLoopback(*d.Target.Id), Port: *d.Target.Port}
		if d.TargetHealth.State != types.TargetHealthStateEnumUnused {
			all[target] = clouds.State{Healthy: d.TargetHealth.State == types.TargetHealthStateEnumHealthy}
		}
	}
	return all, nil
}

// Register implements clouds.Balancer.
func (m *ministack) Register(ctx context.Context, service ktypes.NamespacedName, t clouds.Target) error {
	_, err := m.elb.RegisterTargets(ctx, &elbv2.RegisterTargetsInput{TargetGroupArn: aws.String(m.arn(service)), Targets: targets(clouds.Loopback(t.Address), t.Port)})
	return err
}

// Deregister implements clouds.Balancer.
func (m *ministack) Deregister(ctx context.Context, service ktypes.NamespacedName, t clouds.Target) error {
	_, err := m.elb.DeregisterTargets(ctx, &elbv2.DeregisterTargetsInput{TargetGroupArn: aws.String(m.arn(service)), Targets: targets(clouds.Loopback(t.Address), t.Port)})
	return err
}

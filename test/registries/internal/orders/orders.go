// SPDX-License-Identifier: Apache-2.0

// Package orders plays applications that register themselves, of Spring Cloud or Dubbo, under callers with the same
// client, through what happens to a workload: nothing of them was written for Usher.
package orders

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/guard/endpoint"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	root = "../../.."
	// image is what the nodes run an application for, with a tag.
	image = "example.test/orders"
	// appPort is where an application serves.
	appPort = 8080
	// Beat is the period of applications' heartbeats, and of callers' listings.
	Beat = time.Second
	// faults is the time in which faults happen while a Pod drains.
	faults = 6 * Beat
	// restarted is the part in which the registry restarts, and unknown why callers send nothing then if it has lost
	// its memory: until applications register again, it lists nobody, with Usher and without.
	restarted, unknown = "deletion, and the registry restarts", "the caller knew no instance"
)

// Flags have Java start soon, and take little memory.
var Flags = []string{"-Xmx96m", "-XX:TieredStopAtLevel=1"}

// requests is how many requests each part of Play sends at least; the workload lives on until then.
var requests = flag.Int("requests", 0, "how many `requests` each part of TestOrders sends at least; 0 for one round of changes")

// App is an application that registers itself, with the registry that it registers in.
type App struct {
	// Name is that of its libraries, whose pom.xml is in Folder. Source is its Java file.
	Name, Folder, Source string
	// Registry is the registry in a Registry's spec, as YAML, for the applications of a game; Drain is what spec.drain
	// of their Registration has besides.
	Registry func(game string) string
	Drain    string
	// Service returns the name under which the application of a game registers.
	Service func(game string) string
	// Serves are the arguments with which the application of a game serves at an address, and Calls those with which it
	// only finds the others of the game.
	Serves func(game, address string, port int) []string
	Calls  func(game string) []string
	// Healthy is the path that its readiness probe asks.
	Healthy string
	// Restart restarts the registry. One that has only memory forgets what has been registered.
	Restart func(context.Context) error
	// Network has the addresses of Pods. Default: those of the loopback interface.
	Network netip.Prefix
	// Propagation is what callers need to learn that an application has left. The game adds some seconds, in which
	// faults happen.
	Propagation time.Duration
}

// SpringCloud is an application of Spring Cloud, which is named after its game. registers returns the arguments with
// which it registers its address, and calls are those with which it only finds others.
func SpringCloud(registers func(address string) []string, calls []string) App {
	const caller = "127.0.0.1"
	return App{
		Source:  "../internal/orders/Orders.java",
		Service: func(game string) string { return game },
		Healthy: "/actuator/health",
		Serves: func(game, address string, port int) []string {
			return slices.Concat(registers(address), springBoot(game, address, port))
		},
		Calls: func(game string) []string {
			return slices.Concat(calls, springBoot("caller", caller, 0), []string{"--call=" + game})
		},
	}
}

// springBoot are the arguments of any application of Spring Boot. It leaves what its callers have begun time to end.
func springBoot(name, address string, port int) []string {
	return []string{
		"--spring.application.name=" + name,
		"--server.address=" + address, fmt.Sprint("--server.port=", port), "--server.shutdown=graceful",
		"--management.endpoints.web.exposure.include=health,serviceregistry",
	}
}

// Java are the arguments with which Java runs it.
func (a App) Java(t *testing.T) []string {
	t.Helper()
	return servers.JavaOf(t, a.Name, a.Folder, a.Source)
}

// Caller follows the applications of a game with the registry's client.
func (a App) Caller(t *testing.T, game string) *servers.Caller {
	t.Helper()
	return servers.Call(t, slices.Concat(a.Java(t), a.Calls(game)))
}

// workload is who makes the Pods, and whether Usher knows of them.
type workload string

const (
	deployment   workload = "a Deployment"
	cloneSet     workload = "a CloneSet, updated in place"
	withoutUsher workload = "a Deployment, without Usher"
)

// Play has an application register itself, from processes on nodes, under callers. While its workload is rolled out,
// scaled, deleted from and evicted from, while the registry restarts, while a container ends in its Pod's drain, and
// while Usher is killed between the departure and the release, no request is lost. Without Usher some are: that the
// test counts them shows that it could.
func Play(t *testing.T, app App) {
	t.Helper()
	w := newWorld(t, app)
	for _, of := range []workload{deployment, cloneSet, withoutUsher} {
		t.Run(string(of), func(t *testing.T) {
			if lost := w.play(t, of); (lost == 0) != (of != withoutUsher) {
				t.Errorf("%d requests were lost", lost)
			}
		})
	}
}

// world is a cluster whose nodes run Java, with Usher.
type world struct {
	*scene.Plane
	app App
	// libraries has the arguments with which Java runs the application.
	libraries []string
}

func newWorld(t *testing.T, app App) *world {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	w := &world{app: app, libraries: app.Java(t)}
	w.Plane = checktest.Must(scene.New(clustertest.Start(t)))(t)
	// The test is somebody other than Usher.
	config := w.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:masters"}}
	w.WithWatch = checktest.Must(client.NewWithWatch(config, client.Options{Scheme: w.Scheme()}))(t)
	java := checktest.Must(exec.LookPath("java"))(t)
	images := func(of string) (string, []string, error) {
		if !strings.HasPrefix(of, image+":") {
			return "", nil, fmt.Errorf("there is no image but %s", image)
		}
		return java, nil, nil
	}
	runtime := node.NewProcessRuntime(node.ProcessOptions{Network: app.Network, LogDir: t.TempDir(), Images: images})
	t.Cleanup(func() { checktest.NoError(t, runtime.Close(context.WithoutCancel(t.Context()))) })
	checktest.Must(node.Start(t.Context(), node.Options{RESTConfig: w.RESTConfig(), Nodes: 2, Runtime: runtime}))(t)
	connect := kinds.Connect(kinds.Cluster{Reader: w, Writer: w})
	service := endpoint.Service{Namespace: "usher-system", Name: checkout.GuardName}
	checktest.Must(w.StartUsher(t.Context(), root, service, registration.Options{
		Connect: func(r *usherv1alpha1.Registry, in string, secret map[string][]byte) (registry.Connector, error) {
			return connect(r, in, secret)
		},
	}))(t)
	return w
}

// game is a workload with its callers.
type game struct {
	*scene.Scene
	world *world
	of    workload
	// name is that of the application.
	name   string
	knows  *servers.Caller
	client *traffic.Client
}

// play takes a workload through its life under traffic, and returns how many requests were lost.
func (w *world) play(t *testing.T, of workload) (lost int) {
	t.Helper()
	g := &game{Scene: w.Begin(t), world: w, of: of}
	g.name = g.Namespace
	g.knows = w.app.Caller(t, g.name)
	g.begin()
	g.serves(1, 3)
	g.client = traffic.New(traffic.Options{
		Source: g.knows, Rate: 50, SlowMin: 200 * time.Millisecond, SlowMax: time.Second, NewConnections: true,
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.client.Run(ctx) }()
	for version := 2; version == 2 || g.client.Report().Total().Sent < *requests; version++ {
		g.live(version)
	}
	stop()
	checktest.NoError(t, <-ended)
	return g.log(g.client.Report())
}

// log prints what was sent and lost during each kind of change, and returns how many were lost, but for those
// that had no instance to choose from while the registry had forgotten all.
func (g *game) log(report traffic.Report) (lost int) {
	var unanswerable int
	for _, section := range report.ByName() {
		g.Logf("%-42s %5d sent, %3d lost", section.Name, section.Sent, section.Lost)
		if section.Name == restarted {
			unanswerable = min(report.Reasons[unknown], section.Lost)
		}
	}
	total := report.Total()
	g.Logf("%-42s %5d sent, %3d lost %v", "all", total.Sent, total.Lost, report.Reasons)
	return total.Lost - unanswerable
}

// container is the one of the Pods, of a version.
func (g *game) container(version int) string {
	serves := g.world.app.Serves(g.name, "${POD_IP}", appPort)
	command := slices.Concat([]string{"java"}, Flags, g.world.libraries, serves)
	return fmt.Sprintf(`{
  name: main, image: "%s:v%d", ports: [{containerPort: %d}], command: %s,
  readinessProbe: {periodSeconds: 1, httpGet: {path: %[5]s, port: %[3]d}}}`,
		image, version, appPort, encode.JSON(command), g.world.app.Healthy)
}

// The objects of a game. The workload has the Pods' labels, their gates, and what its kind has besides.
const (
	registryText = `
apiVersion: usher.dev/v1alpha1
kind: Registry
metadata: {name: "%s"}
spec: {insecure: true, %s}`
	registrationText = `
apiVersion: usher.dev/v1alpha1
kind: Registration
metadata: {name: orders}
spec:
  selector: {matchLabels: {app: orders}}
  registries: ["%s"]
  instance: {registeredBy: Application, service: "%s", port: %d}
  drain: {propagation: %s, afterOutage: 5s}`
	workloadText = `
apiVersion: %s
kind: %s
metadata: {name: orders}
spec:
  replicas: 3
  selector: {matchLabels: {app: orders}}
  template:
    metadata: {labels: {app: orders}}
    spec: {terminationGracePeriodSeconds: 30, readinessGates: %s, containers: [%s]}`
	hooksText = `
spec: {hooks: {inPlaceUpdate: test.usher.dev/update, preDelete: test.usher.dev/delete}}`
	cloneSetText = `
spec:
  template: {metadata: {labels: {test.usher.dev/update: "true", test.usher.dev/delete: "true"}}}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
  lifecycle:
    inPlaceUpdate: {labelsHandler: {test.usher.dev/update: "true"}}
    preDelete: {labelsHandler: {test.usher.dev/delete: "true"}}`
)

// begin creates the workload and what it needs.
func (g *game) begin() {
	version, kind, gates := "apps/v1", "Deployment", "[]"
	app, hooks, more := g.world.app, []string{"{spec: {drain: {" + g.world.app.Drain + "}}}"}, []string{}
	if g.of == cloneSet {
		version, kind = "apps.kruise.io/v1alpha1", "CloneSet"
		hooks, more = append(hooks, hooksText), append(more, cloneSetText)
	}
	if g.of != withoutUsher {
		gates = `[{conditionType: usher.dev/registered}]`
		g.Make(
			g.Object(fmt.Sprintf(registryText, g.Namespace, app.Registry(g.name))),
			g.Object(fmt.Sprintf(registrationText,
				g.Namespace, app.Service(g.name), appPort, app.Propagation+faults), hooks...))
	}
	g.Make(g.Object(fmt.Sprintf(workloadText, version, kind, gates, g.container(1)), more...))
}

func (g *game) workload() client.Object {
	if g.of == cloneSet {
		return g.Object(`{apiVersion: apps.kruise.io/v1alpha1, kind: CloneSet, metadata: {name: orders}}`)
	}
	return g.Object(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: orders}}`)
}

// live takes the workload through what happens to it, and to a version.
func (g *game) live(version int) {
	g.client.Section("rollout")
	g.roll(version)
	g.client.Section("scale-in")
	g.scale(2)
	g.serves(version, 2)
	g.client.Section("scale-out")
	g.scale(3)
	g.serves(version, 3)
	g.client.Section("eviction")
	g.goes(version, g.evict, nothing)
	g.client.Section("deletion")
	g.goes(version, g.delete, nothing)
	if g.of == withoutUsher {
		return
	}
	g.client.Section("deletion, and its container ends meanwhile")
	g.goes(version, g.delete, g.end)
	g.client.Section(restarted)
	g.goes(version, g.delete, func(*corev1.Pod) { checktest.NoError(g, g.world.app.Restart(g.Context())) })
	g.client.Section("deletion, and Usher is killed meanwhile")
	g.goes(version, g.delete, func(*corev1.Pod) { checktest.NoError(g, g.world.RestartUsher()) })
}

func nothing(*corev1.Pod) {}

func (g *game) evict(pod *corev1.Pod) error {
	return g.SubResource("eviction").Create(g.Context(), pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}})
}

func (g *game) delete(pod *corev1.Pod) error { return g.Delete(g.Context(), pod) }

// end ends an application's process, without a word to the registry. It starts again in its Pod, and registers.
func (g *game) end(pod *corev1.Pod) {
	request := checktest.Must(http.NewRequestWithContext(g.Context(), http.MethodGet, "http://"+address(pod)+"/end", nil))(g)
	if answer, err := http.DefaultClient.Do(request); err == nil {
		_ = answer.Body.Close()
		g.Errorf("the application answered %s, and did not end", answer.Status)
	}
}

// roll has all Pods of another version.
func (g *game) roll(version int) {
	g.Change(g.workload(), "spec: {template: {spec: {containers: [%s]}}}", g.container(version))
	g.serves(version, 3)
}

func (g *game) scale(replicas int) { g.Change(g.workload(), `spec: {replicas: %d}`, replicas) }

// goes asks for the end of a Pod until that is granted, does something when callers know of it no more, and waits until
// another one serves in its place.
func (g *game) goes(version int, ask func(*corev1.Pod) error, meanwhile func(*corev1.Pod)) {
	pod, granted := g.Pods()[0], make(chan error, 1)
	go func() {
		err := ask(&pod)
		for apierrors.IsTooManyRequests(err) { // client-go has waited
			err = ask(&pod)
		}
		granted <- client.IgnoreNotFound(err)
	}()
	if g.of != withoutUsher {
		g.Await("callers to know of "+pod.Name+" no more", func() bool { return g.out(&pod) })
		meanwhile(&pod)
	}
	checktest.NoError(g, <-granted)
	g.Gone(&pod)
	g.serves(version, 3)
}

// out reports whether callers know of a Pod no more.
func (g *game) out(pod *corev1.Pod) bool { return !slices.Contains(g.knows.Known(), address(pod)) }

func address(pod *corev1.Pod) string { return fmt.Sprintf("%s:%d", pod.Status.PodIP, appPort) }

// serves waits until there are just so many Pods, of a version, and callers know them all, and no others.
func (g *game) serves(version, n int) {
	g.Until(fmt.Sprintf("%d Pods of version %d to serve", n, version), func() string {
		pods, known := g.Pods(), g.knows.Known()
		for _, pod := range pods {
			switch {
			case pod.DeletionTimestamp != nil || pod.Spec.Containers[0].Image != fmt.Sprintf("%s:v%d", image, version):
				return pod.Name + " is of another version, or terminating"
			case !slices.Contains(known, address(&pod)):
				return pod.Name + " is not known to callers"
			}
		}
		return registrytest.Unless(len(pods) == n && len(known) == n, fmt.Sprintf("there are %d Pods, and callers know %v", len(pods), known))
	})
}

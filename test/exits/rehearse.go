// SPDX-License-Identifier: Apache-2.0

package exits

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	servers "github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

// Rehearsal plays the ways on a development cluster, for a Deployment and a StatefulSet: first without Usher, with
// callers that follow the Pods as an EndpointSlice lists them, and then with Usher and its guard, with callers that
// follow etcd.
type Rehearsal struct {
	// Ways, Rate and Out are those of Options.
	Ways []string
	Rate int
	Out  *os.File
}

// Outcome has the results of one workload.
type Outcome struct {
	// Usher means that it was there.
	Usher bool
	// Kind is the workload's kind.
	Kind    string
	Results []Result
}

const (
	rehearsalNodes = 2
	// lag, slowest and propagation are those of the demonstration: the propagation covers both others.
	lag, slowest, propagation = time.Second, 2 * time.Second, 4 * time.Second
)

//go:embed workload.yaml
var workloadYAML string

// rehearsing is a rehearsal on its stage.
type rehearsing struct {
	Rehearsal
	*stage.Stage
	etcd *cluster.Etcd
	api  kubernetes.Interface
	// usher means that Usher and its guard run.
	usher    bool
	outcomes []Outcome
}

// Run plays all of it and returns the outcomes. When it returns, no process is left.
func (h Rehearsal) Run(ctx context.Context) ([]Outcome, error) {
	r := &rehearsing{Rehearsal: h}
	err := stage.Run{
		Name: "usher-exits", Out: h.Out,
		Setup: []stage.Step{
			func(ctx context.Context, s *stage.Stage) error { return s.StartCluster(ctx, "", s.Usher(), s.Web()) },
			func(ctx context.Context, s *stage.Stage) error { return s.StartWebNodes(ctx, rehearsalNodes, "v1") },
		},
		Play: func(ctx context.Context, s *stage.Stage) error {
			r.Stage = s
			return r.play(ctx)
		},
	}.Run(ctx)
	return r.outcomes, err
}

func (r *rehearsing) play(ctx context.Context) (err error) {
	if r.Kube, err = checkout.NewClient(r.Cluster.RESTConfig()); err != nil {
		return err
	}
	if r.api, err = kubernetes.NewForConfig(r.Cluster.RESTConfig()); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{r.playBoth, r.install, r.playBoth} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// install starts the registry, Usher and its guard.
func (r *rehearsing) install(ctx context.Context) (err error) {
	if r.etcd, err = r.StartEtcd(ctx, "registry", cluster.EtcdOptions{}); err != nil {
		return err
	}
	if err := r.Install(ctx, "registrations"); err != nil {
		return err
	}
	if err := r.Register(ctx, "discovery", r.etcd.Endpoint()); err != nil {
		return err
	}
	ports, err := servers.FreePorts(ctx, 1)
	if err != nil {
		return err
	}
	args, err := checkout.InstallGuard(ctx, r.Kube, r.Root, stage.UsherUser, ports[0])
	if err != nil {
		return err
	}
	if err := r.StartCertificate(); err != nil {
		return err
	}
	if err := r.StartUsher(args...); err != nil {
		return err
	}
	_, err = checkout.AwaitGuard(ctx, r.Kube)
	r.usher = err == nil
	return err
}

// playBoth plays a Deployment and a StatefulSet, each in a namespace of its own.
func (r *rehearsing) playBoth(ctx context.Context) error {
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		o := Outcome{Usher: r.usher, Kind: kind}
		r.say("\n━━ " + o.Title())
		var err error
		o.Results, err = r.playOne(ctx, kind)
		r.outcomes = append(r.outcomes, o)
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *rehearsing) say(text string) { _, _ = fmt.Fprintln(r.Out, text) } // a failed write cannot be reported

// Title names the outcome for people.
func (o Outcome) Title() string {
	if o.Usher {
		return o.Kind + ", with Usher and its guard"
	}
	return o.Kind + ", without Usher"
}

func (r *rehearsing) playOne(ctx context.Context, kind string) ([]Result, error) {
	namespace, listed := strings.ToLower(kind), "pods:8080"
	if r.usher {
		namespace += "-with-usher"
		listed = "etcd:" + strings.TrimPrefix(r.etcd.Endpoint(), "http://") + "/" + stage.EtcdPrefix + "/" + namespace
	}
	if err := stage.OpenNamespace(ctx, r.Kube, namespace); err != nil {
		return nil, err
	}
	if r.usher {
		if err := r.register(ctx, namespace); err != nil {
			return nil, err
		}
	}
	workload, err := newWorkload(kind, namespace)
	if err != nil {
		return nil, err
	}
	if _, err := stage.Apply(ctx, r.Kube, workload); err != nil {
		return nil, err
	}
	source, err := NewListed(listed, r.Kube, r.api, namespace)
	if err != nil {
		return nil, err
	}
	results, err := Run(ctx, Options{
		Kube: r.Kube, Namespace: namespace, Workload: strings.ToLower(kind) + "/web", Listed: source.Source, Several: source.Several,
		Rate: r.Rate, Lag: lag, Slow: slowest, Ways: r.Ways, Out: r.Out,
	})
	if err != nil {
		return results, err
	}
	return results, client.IgnoreNotFound(r.Kube.Delete(ctx, workload))
}

// newWorkload is a workload as anybody writes it.
func newWorkload(kind, namespace string) (*unstructured.Unstructured, error) {
	workload := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(workloadYAML), &workload.Object); err != nil {
		return nil, fmt.Errorf("workload.yaml: %w", err)
	}
	workload.SetKind(kind)
	workload.SetNamespace(namespace)
	return workload, nil
}

func (r *rehearsing) register(ctx context.Context, namespace string) error {
	registration := &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	registration.Spec.Selector = usherv1alpha1.LabelSelector{MatchLabels: map[string]usherv1alpha1.LabelValue{"app": "web"}}
	registration.Spec.Registries = []string{"discovery"}
	registration.Spec.Instance.Service, registration.Spec.Instance.Port.IntVal = namespace, 8080
	registration.Spec.Drain.Propagation = &metav1.Duration{Duration: propagation}
	if err := r.Kube.Create(ctx, registration); err != nil {
		return fmt.Errorf("create the Registration in %s: %w", namespace, err)
	}
	return nil
}

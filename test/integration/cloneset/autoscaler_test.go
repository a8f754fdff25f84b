// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/stage"
)

// young is how long the autoscaler does not count a Pod that became ready. A surge Pod becomes ready before the Pod
// that it replaces leaves service, and a slow machine takes longer for that: the autoscaler must not count both.
const young = 5 * time.Second

// autoscalerArguments have the controller manager run Kubernetes' own autoscaler, once a second. To it, the load
// of a young Pod says nothing for half a minute after the Pod's start, not for five minutes.
var autoscalerArguments = []string{
	"--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=1s",
	"--horizontal-pod-autoscaler-cpu-initialization-period=30s", "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
}

// meters are the metrics APIs of the control plane.
var meters = &metrics{loads: map[string]*load{}}

// metrics serves the metrics APIs that an autoscaler asks, for all stories.
type metrics struct {
	plane *scene.Plane
	mu    sync.Mutex
	loads map[string]*load // by namespace
}

// load is what the Pods of a story have to do.
type load struct {
	// total is shared evenly by the Pods in service, each is what every other Pod takes, in milliCPU.
	total, each int64
	// asked counts the questions of the autoscaler to which no Pod was young.
	asked int
}

// metricsAPIs are the groups of the metrics APIs, and what they have.
var metricsAPIs = map[string]string{"metrics.k8s.io": "pods", "external.metrics.k8s.io": "queue"}

// start serves the metrics until ctx ends, and has the API server pass requests on to them.
func (m *metrics) start(ctx context.Context, p *scene.Plane) error {
	m.plane = p
	server := httptest.NewTLSServer(m)
	context.AfterFunc(ctx, server.Close)
	port := server.URL[strings.LastIndex(server.URL, ":")+1:]
	objects := []string{"{apiVersion: v1, kind: Service, metadata: {name: metrics, namespace: default}, " +
		"spec: {type: ExternalName, externalName: localhost}}"}
	for group := range metricsAPIs {
		objects = append(objects, fmt.Sprintf("{apiVersion: apiregistration.k8s.io/v1, kind: APIService, "+
			"metadata: {name: v1beta1.%[1]s}, spec: {group: %[1]s, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, "+
			"insecureSkipTLSVerify: true, service: {name: metrics, namespace: default, port: %[2]s}}}", group, port))
	}
	for _, text := range objects {
		object, err := scene.Parse(text)
		if err == nil {
			err = p.Create(ctx, object)
		}
		if err != nil {
			return fmt.Errorf("register the metrics APIs: %w", err)
		}
	}
	return nil
}

// ServeHTTP answers /apis/GROUP/v1beta1, and below it /namespaces/NAMESPACE/KIND.
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/apis/"), "/")
	kind, known := metricsAPIs[path[0]]
	var answer any
	err := error(nil)
	switch {
	case known && len(path) == 2:
		answer = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: path[0] + "/v1beta1",
			APIResources: []metav1.APIResource{{Name: kind, Namespaced: true, Kind: "Metrics", Verbs: metav1.Verbs{"get", "list"}}},
		}
	case known && len(path) == 5 && path[4] == kind:
		answer, err = m.measure(r.Context(), path[3], kind, r.URL.Query().Get("labelSelector"))
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the autoscaler asks again
}

// measure is what Pods take, or how long the queue is.
func (m *metrics) measure(ctx context.Context, namespace, kind, selector string) (any, error) {
	var pods corev1.PodList
	if err := m.plane.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	selects, err := labels.Parse(selector)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.load(namespace)
	if !slices.ContainsFunc(pods.Items, isYoung) {
		l.asked++
	}
	if kind == "queue" {
		return answers("external", "ExternalMetricValueList", map[string]any{
			"metricName": kind, "metricLabels": map[string]string{}, "timestamp": metav1.Now(), "value": milli(l.total),
		}), nil
	}
	items := []any{}
	takes := l.share(pods.Items)
	for _, pod := range pods.Items {
		if selects.Matches(labels.Set(pod.Labels)) {
			items = append(items, map[string]any{
				"metadata": map[string]string{"name": pod.Name, "namespace": namespace}, "timestamp": metav1.Now(), "window": young.String(),
				"containers": []any{map[string]any{"name": "main", "usage": map[string]any{"cpu": milli(takes(&pod)), "memory": "1Mi"}}},
			})
		}
	}
	return answers("", "PodMetricsList", items...), nil
}

// answers is a list of a metrics API.
func answers(group, kind string, items ...any) any {
	group = strings.TrimPrefix(group+".metrics.k8s.io/v1beta1", ".")
	return map[string]any{"kind": kind, "apiVersion": group, "metadata": map[string]any{}, "items": items}
}

func milli(n int64) string { return resource.NewMilliQuantity(n, resource.DecimalSI).String() }

// share is what each of the Pods takes of the load.
func (l *load) share(pods []corev1.Pod) func(*corev1.Pod) int64 {
	serves := func(pod *corev1.Pod) bool {
		return stage.Ready(pod) && pod.DeletionTimestamp == nil && state(pod) == apps.StateNormal
	}
	serving := int64(0)
	for i := range pods {
		if serves(&pods[i]) {
			serving++
		}
	}
	return func(pod *corev1.Pod) int64 {
		if serves(pod) {
			return l.total / serving
		}
		return l.each
	}
}

// isYoung says whether the Pod became ready so lately that the autoscaler does not count it. A second more is for
// time stamps, which have no fractions of a second.
func isYoung(pod corev1.Pod) bool {
	return stage.Ready(&pod) && time.Since(podread.Since(&pod, corev1.PodReady)) < young+time.Second
}

// looks is how often the autoscaler has asked for the metrics of a namespace while no Pod was young.
func (m *metrics) looks(namespace string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.load(namespace).asked
}

// set changes the load of a namespace.
func (m *metrics) set(namespace string, total, each int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.load(namespace)
	l.total, l.each = int64(total), int64(each)
}

// load is that of a namespace, 0 before somebody sets it. The caller holds the lock.
func (m *metrics) load(namespace string) *load {
	if m.loads[namespace] == nil {
		m.loads[namespace] = &load{}
	}
	return m.loads[namespace]
}

// carry is "TOTAL[ and EACH]".
func (s *story) carry(rest string) {
	total, each, _ := strings.Cut(rest, " and ")
	if each == "" {
		each = "0"
	}
	meters.set(s.Namespace, scenariotest.Number(total), scenariotest.Number(each))
}

// autoscalerKeeps waits until the autoscaler has decided twice on what is now, and compares its replicas.
func (s *story) autoscalerKeeps(want string) {
	s.Helper()
	// When the third question comes, the answers to the second one have been used.
	until := meters.looks(s.Namespace) + 3
	s.Await("the autoscaler to look again", func() bool { return meters.looks(s.Namespace) >= until })
	s.Same("replicas", fmt.Sprint(s.replicas()), want)
}

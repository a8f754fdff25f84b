// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

const (
	controllers = 100
	mostBytes   = 2048
)

// typical is the Pod of a Deployment as clusters have them: with a sidecar, probes, environment
// variables, volumes, and more than 8 KiB as JSON.
func typical(t testing.TB) *corev1.Pod {
	t.Helper()
	var env, statuses strings.Builder
	for i := range 20 {
		fmt.Fprintf(&env, "    - {name: SETTING_%d, value: %s}\n", i, strings.Repeat("v", 40))
	}
	containers := ""
	for i, name := range []string{"app", "proxy", "log"} {
		containers += fmt.Sprintf(`
  - name: %s
    image: registry.example.com/team/%s@sha256:%064d
    args: [--config=/etc/%s/config.yaml, --verbose]
    ports: [{name: %s-http, containerPort: %d}, {name: %s-metrics, containerPort: %d}]
    resources: {requests: {cpu: 100m, memory: 256Mi}, limits: {memory: 512Mi}}
    readinessProbe: {httpGet: {path: /ready, port: %s-http}, periodSeconds: 5}
    volumeMounts: [{name: config, mountPath: /etc/config}, {name: token, mountPath: /var/run/secrets, readOnly: true}]
    env:
%s`, name, name, i, name, name, 8080+i, name, 9090+i, name, env.String())
		fmt.Fprintf(&statuses, `
  - {name: %s, ready: true, started: true, restartCount: 0, image: "registry.example.com/team/%s", imageID: "sha256:%064d",
     containerID: "containerd://%064d", state: {running: {startedAt: "2026-01-01T00:00:10Z"}}}`, name, name, i, i)
	}
	manifest := `
metadata:
  namespace: shop
  generateName: cart-5d9c7b6f4-
  creationTimestamp: "2026-01-01T00:00:00Z"
  annotations: {prometheus.io/scrape: "true", prometheus.io/port: "9090", kubectl.kubernetes.io/restartedAt: "2026-01-01T00:00:00Z"}
spec:
  nodeName: node-17.example.com
  serviceAccountName: cart
  tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
  volumes: [{name: config, configMap: {name: cart}}, {name: token, projected: {sources: [{serviceAccountToken: {path: token}}]}}]
  containers:` + containers + `
status:
  phase: Running
  hostIP: 192.168.10.17
  podIP: 10.244.17.99
  startTime: "2026-01-01T00:00:00Z"
  conditions:
  - {type: PodReadyToStartContainers, status: "True", lastTransitionTime: "2026-01-01T00:00:05Z"}
  - {type: Initialized, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: Ready, status: "True", lastTransitionTime: "2026-01-01T00:00:10Z"}
  - {type: ContainersReady, status: "True", lastTransitionTime: "2026-01-01T00:00:10Z"}
  - {type: PodScheduled, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
  containerStatuses:` + statuses.String()
	pod := &corev1.Pod{}
	checktest.NoError(t, yaml.UnmarshalStrict([]byte(manifest), pod))
	return pod
}

// numbered is the typical Pod with a name and a controller of its own, as it comes from the
// API server.
func numbered(t testing.TB, pod *corev1.Pod, n int) *corev1.Pod {
	t.Helper()
	set := fmt.Sprintf("cart-%010d", n%controllers)
	pod.Name = fmt.Sprintf("%s-%05d", set, n)
	pod.UID, pod.ResourceVersion = types.UID(fmt.Sprintf("%036d", n)), fmt.Sprint(1_000_000+n)
	pod.Labels = map[string]string{"app": "cart", "tier": "backend", "team": "shop", "version": "v1", "pod-template-hash": set}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: types.UID(fmt.Sprintf("%036d", n%controllers)),
		Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	data := checktest.Must(pod.Marshal())(t)
	arrived := &corev1.Pod{}
	checktest.NoError(t, arrived.Unmarshal(data))
	return arrived
}

// TestForeignPodsAreSmall: Pods of other controllers take little memory, the cache's own indexes
// included.
func TestForeignPodsAreSmall(t *testing.T) {
	const count = 5_000
	pod := typical(t)
	if text, err := yaml.Marshal(pod); err != nil || len(text) < 8<<10 {
		t.Fatalf("the typical Pod has %d bytes, %v", len(text), err)
	}
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	keep := Options().Transform
	before := heap()
	for n := range count {
		kept, err := keep(numbered(t, pod, n))
		if err != nil || store.Add(kept) != nil {
			t.Fatal("a Pod cannot be kept")
		}
	}
	each := int(heap()-before) / count
	runtime.KeepAlive(store)
	if t.Logf("%d bytes each", each); each > mostBytes {
		t.Errorf("a Pod of another controller takes %d bytes, more than %d", each, mostBytes)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestWhatIsKept: a CloneSet's Pod, and one that it may adopt, is kept whole, apart from the
// record of field managers; of that it is known whether it is to be dropped.
func TestWhatIsKept(t *testing.T) {
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	keep := Options().Transform
	made := metav1.ManagedFieldsEntry{Manager: write.Creator, Operation: update, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:restartPolicy":{}}}`)}
	owned := []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "web", UID: "1"}, apps.KindCloneSet)}
	for _, test := range []struct {
		name   string
		owners []metav1.OwnerReference
		record []metav1.ManagedFieldsEntry
		want   []metav1.ManagedFieldsEntry
	}{
		{"a CloneSet's", owned, []metav1.ManagedFieldsEntry{made, {Manager: "kubelet", Operation: update}}, recordToDrop},
		{"somebody applies", owned, []metav1.ManagedFieldsEntry{{Operation: apply}, made}, nil},
		{"nobody's", nil, nil, nil},
	} {
		pod := numbered(t, typical(t), 1)
		pod.OwnerReferences, pod.ManagedFields = test.owners, test.record
		want := pod.DeepCopy()
		want.ManagedFields = test.want
		kept, err := keep(pod)
		if diff := cmp.Diff(want, kept); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", test.name, err, diff)
		}
	}
	checktest.Same[any](t, "what is no Pod", "other", checktest.Must(keep("other"))(t))
}

// TestTemplates: Pods share what they have in common, and nothing else, also when the tables
// are full.
func TestTemplates(t *testing.T) {
	keep := Options().Transform
	kept := func(n int, labels map[string]string) *corev1.Pod {
		pod := numbered(t, typical(t), n)
		pod.Labels = labels
		got := checktest.Must(keep(pod.DeepCopy()))(t)
		checktest.Same(t, fmt.Sprintf("Pod %d", n), []any{pod.Labels, pod.Annotations, pod.OwnerReferences}, []any{got.(*corev1.Pod).Labels, got.(*corev1.Pod).Annotations, got.(*corev1.Pod).OwnerReferences})
		return got.(*corev1.Pod)
	}
	first, second, other := kept(1, nil), kept(1+controllers, nil), kept(2, nil)
	if &first.OwnerReferences[0] != &second.OwnerReferences[0] || &first.Spec.Containers[0] != &other.Spec.Containers[0] {
		t.Error("Pods of one controller share nothing")
	}
	fewer := numbered(t, typical(t), 3)
	fewer.Spec.Containers[2].Ports = nil
	checktest.Same(t, "the ports of a Pod with fewer than others", 4, len(checktest.Must(keep(fewer))(t).(*corev1.Pod).Spec.Containers[0].Ports))
	for n := range 2 * controllers {
		kept(n, map[string]string{"statefulset.kubernetes.io/pod-name": fmt.Sprint("cart-", n)})
	}
	var full templates
	for n := range mostTemplates + 1 {
		shared(&full.maps, uint64(n), nil, func(_, _ map[string]string) bool { return true })
	}
	checktest.Same(t, "entries of a full table", 1, len(full.maps))
}

// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"fmt"
	"os"
	"runtime"
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
	"github.com/usher-dev/usher/internal/list"
)

const controllers = 100

// typical returns the Pod of a Deployment as clusters have them.
func typical(t testing.TB) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	checktest.NoError(t, yaml.UnmarshalStrict(checktest.Must(os.ReadFile("testdata/pod.yaml"))(t), pod))
	return pod
}

// numbered returns the typical Pod with a name and a controller of its own, as it comes from the API
// server.
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
// included, and those of CloneSets not much more.
func TestForeignPodsAreSmall(t *testing.T) {
	const count = 5_000
	for kind, most := range map[string]int{"ReplicaSet": 2 << 10, apps.KindCloneSet.Kind: 4 << 10} {
		pod := typical(t)
		if text, err := yaml.Marshal(pod); err != nil || len(text) < 8<<10 {
			t.Fatalf("the typical Pod has %d bytes, %v", len(text), err)
		}
		store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
		keep := New().Options().Transform
		before := heap()
		for n := range count {
			pod := numbered(t, pod, n)
			pod.OwnerReferences[0].Kind = kind
			kept, err := keep(pod)
			if err != nil || store.Add(kept) != nil {
				t.Fatal("a Pod cannot be kept")
			}
		}
		each := int(heap()-before) / count
		runtime.KeepAlive(store)
		if t.Logf("%s: %d bytes each", kind, each); each > most {
			t.Errorf("a Pod of a %s takes %d bytes, more than %d", kind, each, most)
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestWhatIsKept: of a Pod that a CloneSet has or may adopt, the cache keeps the parts that are read.
// Arguments and environments of containers, and volumes other than claims, are not. Of the record of
// field managers, it keeps whether it is to be dropped. The Pod that arrived is not changed, and a kept
// Pod is kept as it is.
func TestWhatIsKept(t *testing.T) {
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	keep := New().Options().Transform
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
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}, {IP: "fd00::7"}}
		claim := corev1.Volume{Name: "data"}
		claim.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-web-1"}
		pod.Spec.Volumes = append(pod.Spec.Volumes, claim)
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: apps.EnvContainerPriority, Value: "5"},
			corev1.EnvVar{Name: apps.EnvLaunch, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['x']"}}})
		arrived, want := pod.DeepCopy(), read(pod)
		want.ManagedFields, want.Spec.Volumes = test.want, []corev1.Volume{claim}
		kept := checktest.Must(keep(pod))(t)
		if diff := cmp.Diff(want, kept); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		checktest.Same[any](t, "what arrived of "+test.name, arrived, pod)
		checktest.Same(t, "what is kept again of "+test.name, kept, checktest.Must(keep(kept))(t))
	}
	checktest.Same[any](t, "what is no Pod", "other", checktest.Must(keep("other"))(t))
}

// read returns a Pod without the parts that nothing reads, apart from its volumes.
func read(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status.StartTime = nil
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Args, c.ReadinessProbe, c.VolumeMounts = nil, nil, nil
		c.Env = list.Only(c.Env, func(v corev1.EnvVar) bool { return v.Name == apps.EnvContainerPriority || v.Name == apps.EnvLaunch })
	}
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].Started = nil
	}
	return pod
}

// TestTemplates: Pods share the parts that they have in common, and nothing else, also when the tables
// are full.
func TestTemplates(t *testing.T) {
	keep := New().Options().Transform
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
		shared(&full.maps, uint64(n), nil, mapSize)
	}
	checktest.Same(t, "entries of a full table", 1, len(full.maps.values))
}

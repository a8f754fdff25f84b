// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// fat is a Pod of some 1.2 MB, with one large part, and how many bytes of it the cache may hold.
type fat struct {
	name string
	most int
	fill func(pod *corev1.Pod, unique string)
}

// parts adds texts of so many bytes each, a megabyte in all.
func parts(bytes int, add func(i int, text string)) {
	for i := range (1 << 20) / bytes {
		add(i, fmt.Sprintf("%07d%s", i, strings.Repeat("v", bytes-7)))
	}
}

// fatPods returns Pods that are large in each part that a tenant may write, which is nearly everything.
// Parts that are typically large take few KiB in the cache; the other Pods are large on purpose.
func fatPods() []fat { return slices.Concat(fatMetadata(), fatContainers(), fatLists(), fatStatuses()) }

// few is how many bytes a Pod may take that is large in a typical part, most is the same for any other
// Pod.
const few, most = 4 << 10, 80 << 10

func fatMetadata() []fat {
	values := func(bytes int) func(*corev1.Pod, string) {
		return func(pod *corev1.Pod, unique string) {
			parts(bytes, func(i int, text string) { pod.Annotations[fmt.Sprintf("example.com/%s-%d", unique, i)] = text })
		}
	}
	return []fat{
		{"one long annotation", few, values(1 << 20)},
		{"many annotations", most, values(100)},
		{"annotations of Usher's", most, func(pod *corev1.Pod, unique string) {
			pod.Annotations[usherv1alpha1.AnnotationRegistrations] = unique + strings.Repeat(",name", 50<<10)
			pod.Annotations[usherv1alpha1.AnnotationDrain] = unique + strings.Repeat("x", 250<<10)
			pod.Annotations[apps.AnnotationInPlaceUpdateState] = unique + strings.Repeat("x", 250<<10)
			parts(1<<10, func(i int, text string) { pod.Annotations[fmt.Sprintf("usher.dev/%s-%d", unique, i)] = text })
		}},
		{"labels", most, func(pod *corev1.Pod, unique string) {
			parts(60, func(i int, text string) { pod.Labels[fmt.Sprintf("%s-%d", unique, i)] = text })
		}},
		{"finalizers", most, func(pod *corev1.Pod, unique string) {
			parts(200, func(_ int, text string) { pod.Finalizers = append(pod.Finalizers, unique+".example.com/"+text) })
		}},
		{"owners", most, func(pod *corev1.Pod, unique string) {
			parts(200, func(_ int, text string) {
				pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: unique + text})
			})
		}},
		{"an owner", few, func(pod *corev1.Pod, unique string) {
			pod.OwnerReferences = append(slices.Clone(pod.OwnerReferences), metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap"})
			pod.OwnerReferences[0].Name = unique + strings.Repeat("x", 1<<20)
		}},
	}
}

func fatContainers() []fat {
	return []fat{
		{"long environment values", few, func(pod *corev1.Pod, unique string) {
			c := &pod.Spec.Containers[0]
			parts(30<<10, func(i int, text string) {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), Value: unique + text})
			})
		}},
		{"arguments", few, func(pod *corev1.Pod, unique string) {
			parts(30<<10, func(_ int, text string) {
				pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, unique+text)
			})
		}},
		{"containers", most, func(pod *corev1.Pod, unique string) {
			parts(120, func(_ int, text string) {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: text[:7], Image: unique + text})
			})
		}},
		{"an image", few, func(pod *corev1.Pod, unique string) {
			pod.Spec.Containers[0].Image = unique + strings.Repeat("x", 1<<20)
		}},
		{"init containers", most, func(pod *corev1.Pod, unique string) {
			parts(120, func(_ int, text string) {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: text[:7], Image: unique + text})
			})
		}},
		{"ports", most, func(pod *corev1.Pod, unique string) {
			parts(40, func(i int, text string) {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{Name: unique + text[:7], ContainerPort: int32(i)})
			})
		}},
		{"resources", most, func(pod *corev1.Pod, unique string) {
			requests := corev1.ResourceList{}
			parts(100, func(_ int, text string) {
				requests[corev1.ResourceName(unique+".example.com/"+text)] = resource.MustParse("1")
			})
			pod.Spec.Containers[0].Resources.Requests = requests
		}},
	}
}

func fatStatuses() []fat {
	return []fat{
		{"messages", few, func(pod *corev1.Pod, unique string) {
			long := unique + strings.Repeat("x", 250<<10)
			ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: long}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: ended, LastTerminationState: ended}}
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Message: long})
			pod.Status.Message = long
		}},
		{"field managers", few, func(pod *corev1.Pod, unique string) {
			parts(1<<10, func(_ int, text string) {
				pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Manager: unique, FieldsV1: metav1.NewFieldsV1(`{"f:` + text + `":{}}`)})
			})
		}},
	}
}

func fatLists() []fat {
	return []fat{
		{"a claim", few, func(pod *corev1.Pod, unique string) {
			v := corev1.Volume{Name: "data"}
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: unique + strings.Repeat("x", 1<<20) + "-" + pod.Name}
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		}},
		{"volumes", most, func(pod *corev1.Pod, unique string) {
			parts(200, func(_ int, text string) {
				v := corev1.Volume{Name: text[:7]}
				v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: unique + text + "-" + pod.Name}
				pod.Spec.Volumes = append(pod.Spec.Volumes, v)
			})
		}},
		{"tolerations", most, func(pod *corev1.Pod, unique string) {
			parts(100, func(_ int, text string) {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: unique + text, Operator: corev1.TolerationOpExists})
			})
		}},
		{"readiness gates", most, func(pod *corev1.Pod, unique string) {
			parts(100, func(_ int, text string) {
				pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(unique + text)})
			})
		}},
	}
}

// owners returns the owners that a Pod may have: none, a CloneSet, or another controller.
func owners() map[string][]metav1.OwnerReference {
	of := func(version, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "web", UID: "1", Controller: new(true)}}
	}
	return map[string][]metav1.OwnerReference{
		"nobody": nil, "a CloneSet": of(apps.GroupVersion.String(), apps.KindCloneSet.Kind), "a ReplicaSet": of("apps/v1", "ReplicaSet"),
	}
}

// arrivals makes Pods as they come from the API server: they share no memory with anything else.
func arrivals(t testing.TB, count int, owners []metav1.OwnerReference, fill func(pod *corev1.Pod, unique string)) func(func(*corev1.Pod)) {
	t.Helper()
	return func(yield func(*corev1.Pod)) {
		for i := range count {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprintf("web-%05d", i), ResourceVersion: fmt.Sprint(i + 2), OwnerReferences: owners,
				Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
			}}
			pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app:1"}}
			pod.Status.Phase = corev1.PodPending
			fill(pod, fmt.Sprintf("u%d", i))
			arrived := &corev1.Pod{}
			checktest.NoError(t, arrived.Unmarshal(checktest.Must(pod.Marshal())(t)))
			yield(arrived)
		}
	}
}

// TestFatPods: whatever a tenant writes into Pods that never start, the cache keeps little of it, and
// next to nothing of deleted Pods.
func TestFatPods(t *testing.T) {
	const count = 8
	for owner, references := range owners() {
		for _, fat := range fatPods() {
			keep, kept := New().Options().Transform, make([]any, 0, count)
			before := heap()
			arrivals(t, count, references, fat.fill)(func(pod *corev1.Pod) {
				one := checktest.Must(keep(pod))(t).(*corev1.Pod)
				if is := metav1.GetControllerOf(one); (is != nil) != (references != nil) || is != nil && is.UID != references[0].UID {
					t.Errorf("a Pod of %s with %s seems to be of %v", owner, fat.name, is)
				}
				kept = append(kept, one)
			})
			each := int(int64(heap())-int64(before)) / count
			if t.Logf("%s, of %s: %d bytes each", fat.name, owner, each); each > fat.most {
				t.Errorf("a Pod of %s with %s takes %d bytes, more than %d", owner, fat.name, each, fat.most)
			}
			runtime.KeepAlive(kept)
			runtime.KeepAlive(keep)
		}
	}
}

// TestFatReplicas: an informer that starts with 1,500 replicas whose template has an annotation of 200 KiB.
func TestFatReplicas(t *testing.T) {
	const count, most = 1500, 4 << 10
	for owner, references := range owners() {
		events := watch.NewFake()
		informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (kruntime.Object, error) {
				return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return events, nil },
		}, &corev1.Pod{}, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
		checktest.NoError(t, informer.SetTransform(New().Options().Transform))
		arrived := make(chan struct{}, count)
		checktest.Must(informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { arrived <- struct{}{} }}))(t)
		before, stop := heap(), make(chan struct{})
		go informer.Run(stop)
		long := strings.Repeat("a", 200<<10)
		arrivals(t, count, references, func(pod *corev1.Pod, _ string) { pod.Annotations["example.com/notes"] = long })(func(pod *corev1.Pod) {
			events.Add(pod)
		})
		end := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(count + 2), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
		events.Action(watch.Bookmark, end)
		for range count {
			<-arrived
		}
		each := int(int64(heap())-int64(before)) / count
		if t.Logf("of %s: %d bytes each", owner, each); each > most {
			t.Errorf("a replica of %s takes %d bytes, more than %d", owner, each, most)
		}
		checktest.Same(t, "Pods", count, len(informer.GetStore().ListKeys()))
		close(stop)
	}
}

// TestStartInPages: from an API server that does not stream the first list of an informer, fat Pods
// arrive in small pages.
func TestStartInPages(t *testing.T) {
	const count, bytes, most = 60, 600 << 10, 12 << 20
	largest := 0
	from := &toolscache.ListWatch{
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (kruntime.Object, error) {
			begin, _ := strconv.Atoi(options.Continue) // 0 for the first page
			page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			for i := begin; i < count && (options.Limit == 0 || i < begin+int(options.Limit)); i++ {
				pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%05d", i), ResourceVersion: "1"}}
				pod.Spec.Containers = []corev1.Container{{Name: "app", Args: []string{strings.Repeat("x", bytes)}}}
				page.Items = append(page.Items, pod)
			}
			if end := begin + len(page.Items); end < count {
				page.Continue = strconv.Itoa(end)
			}
			largest = max(largest, page.Size())
			return page, nil
		},
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.SendInitialEvents != nil {
				return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"), "")})
			}
			return watch.NewFake(), nil
		},
	}
	keeper := New()
	informer := keeper.NewInformer(from, &corev1.Pod{}, 0, toolscache.Indexers{})
	checktest.NoError(t, informer.SetTransform(keeper.Options().Transform))
	go informer.Run(t.Context().Done())
	if !toolscache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer does not start")
	}
	checktest.Same(t, "Pods", count, len(informer.GetStore().ListKeys()))
	if largest > most {
		t.Errorf("a page has %d bytes, more than %d", largest, most)
	}
}

// SPDX-License-Identifier: Apache-2.0

package exits

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
)

// kinds are those of workloads, by the names that kubectl knows.
var kinds = map[string]schema.GroupVersionKind{
	"deployment":  {Group: "apps", Version: "v1", Kind: "Deployment"},
	"statefulset": {Group: "apps", Version: "v1", Kind: "StatefulSet"},
	"cloneset":    {Group: "apps.kruise.io", Version: "v1alpha1", Kind: "CloneSet"},
}

// shortNames are kubectl's.
var shortNames = map[string]string{
	"deploy": "deployment", "deployments": "deployment", "sts": "statefulset", "statefulsets": "statefulset",
	"clone": "cloneset", "clonesets": "cloneset",
}

// workload is what is measured.
type workload struct {
	object   *unstructured.Unstructured
	selector labels.Selector
	// initial is how many Pods it had, replicas how many it is to have.
	initial, replicas int
	// schedulable is how many nodes take Pods.
	schedulable int
}

// shape is what workloads of all kinds have.
type shape struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas *int                  `json:"replicas"`
		Selector *metav1.LabelSelector `json:"selector"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64 `json:"observedGeneration"`
		UpdatedReplicas    int   `json:"updatedReplicas"`
	} `json:"status"`
}

// findWorkload reads what "deployment/web" names. It returns an error that names what is wrong with it.
func findWorkload(ctx context.Context, kube client.Client, namespace, text string) (*workload, error) {
	kind, name, _ := strings.Cut(text, "/")
	kind = strings.ToLower(kind)
	gvk, known := kinds[cmp.Or(shortNames[kind], kind)]
	if !known || name == "" {
		return nil, fmt.Errorf("%w: the workload is a deployment, statefulset or cloneset and its name, "+
			"as in deployment/web, not %q", stage.ErrUsage, text)
	}
	w := &workload{object: &unstructured.Unstructured{}}
	w.object.SetGroupVersionKind(gvk)
	w.object.SetNamespace(namespace)
	w.object.SetName(name)
	now, err := w.read(ctx, kube)
	if err != nil {
		return nil, err
	}
	if w.selector, err = metav1.LabelSelectorAsSelector(now.Spec.Selector); err != nil {
		return nil, fmt.Errorf("spec.selector of %s: %w", text, err)
	}
	w.initial = 1
	if now.Spec.Replicas != nil {
		w.initial = *now.Spec.Replicas
	}
	if w.replicas = w.initial; w.initial == 0 {
		return nil, fmt.Errorf("%w: %s has no replicas: scale it out before", stage.ErrUsage, text)
	}
	var nodes corev1.NodeList
	if err := kube.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	w.schedulable = len(list.Only(nodes.Items, takesPods))
	return w, nil
}

// takesPods reports whether Pods that tolerate nothing may go to the node.
func takesPods(node corev1.Node) bool {
	return !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// read reads the workload as it is now.
func (w *workload) read(ctx context.Context, kube client.Client) (shape, error) {
	now, object := w.object.DeepCopy(), shape{}
	if err := kube.Get(ctx, client.ObjectKeyFromObject(now), now); err != nil {
		return object, err
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(now.Object, &object)
	return object, err
}

// pods are those of the workload that are not terminating, the oldest first.
func (r *run) pods(ctx context.Context) ([]corev1.Pod, error) {
	var all corev1.PodList
	if err := r.Kube.List(ctx, &all, client.InNamespace(r.Namespace), client.MatchingLabelsSelector{Selector: r.selector}); err != nil {
		return nil, fmt.Errorf("list the Pods of %s: %w", r.Workload, err)
	}
	pods := slices.DeleteFunc(all.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// awaitWhole waits until the workload has all its Pods, all of its newest revision, Ready and listed, and until no
// request is under way in one that left. If that takes too long, the error says what is missing.
func (r *run) awaitWhole(ctx context.Context) error {
	return stage.Try(ctx, r.Limit, r.Workload+" to be whole", func(ctx context.Context) error {
		missing, err := r.missing(ctx)
		if err == nil && missing != "" {
			err = fmt.Errorf("%s", missing)
		}
		return err
	})
}

// missing is what keeps the workload from being whole; empty if nothing does.
func (r *run) missing(ctx context.Context) (string, error) {
	now, err := r.read(ctx, r.Kube)
	if err != nil {
		return "", err
	}
	pods, err := r.pods(ctx)
	if err != nil {
		return "", err
	}
	ready := len(list.Only(pods, func(pod corev1.Pod) bool { return stage.Ready(&pod) }))
	switch {
	case now.Status.ObservedGeneration < now.Generation:
		return "its controller has not seen its last change", nil
	case now.Status.UpdatedReplicas < r.replicas:
		return fmt.Sprintf("%d of %d Pods are of the newest revision", now.Status.UpdatedReplicas, r.replicas), nil
	case len(pods) != r.replicas || ready != r.replicas:
		return fmt.Sprintf("it has %d Pods, %d of them Ready, and wants %d", len(pods), ready, r.replicas), nil
	}
	return r.unsettled()
}

// unsettled is what callers do not know yet; empty if nothing.
func (r *run) unsettled() (string, error) {
	switch listed := len(r.client.Known()); {
	case r.client.Trouble() != nil:
		return "", fmt.Errorf("callers cannot read what is listed: %w", r.client.Trouble())
	case r.Several && listed != r.replicas:
		return fmt.Sprintf("callers find %d addresses, and %d Pods are Ready", listed, r.replicas), nil
	case !r.client.Settled(time.Now()):
		return "callers still have an old list, or open requests", nil
	}
	return "", nil
}

// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/view"
)

// second is another image, with these resources.
func second(resources string) string {
	return `template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: "web:v2", resources: {` + resources + `}}]}}`
}

// TestQuota plans changes of two Pods, each of which requests 100m cpu. They hold all that a
// quota counts as used.
func TestQuota(t *testing.T) {
	const recreate, bigger = `updateStrategy: {type: ReCreate}, `, `requests: {cpu: 300m}, limits: {cpu: "1"}`
	same := second(`requests: {cpu: 100m}`)
	const hard = `{pods: "2", count/pods: "2", requests.cpu: 200m, limits.cpu: "5"}`
	for _, test := range []struct {
		name, change, hard string
		edit               func(*Change)
		want               string
	}{
		{"nothing", ``, hard, nil, ""},
		{"a new Pod replaces one that goes", recreate + same, hard, nil, ""},
		{"a surge", `updateStrategy: {type: ReCreate, maxSurge: 1}, ` + same,
			`{pods: "2", requests.cpu: "10"}`, nil, "quota few: pods 1 more wanted, 0 left; raise it or lower updateStrategy.maxSurge"},
		{"larger Pods", recreate + second(bigger), `{pods: "2", requests.cpu: 500m, limits.cpu: "1"}`, nil,
			"quota few: limits.cpu 2 more wanted, 1 left, requests.cpu 400m more wanted, 300m left; raise it or ask for fewer or smaller Pods"},
		{"there is room", recreate + second(bigger), `{pods: "2", cpu: 600m, limits.cpu: "2"}`, nil, ""},
		{"several together", `replicas: 5`, `{count/pods: "4", cpu: 400m}`, nil,
			"quota few: count/pods 3 more wanted, 2 left, cpu 300m more wanted, 200m left; raise it or ask for fewer or smaller Pods"},
		{"a smaller set under an exceeded quota", `replicas: 1`, `{pods: "1"}`, nil, ""},
		{"a Pod that has ended", ``, hard, func(c *Change) {
			c.Pods[0].Status.Phase = corev1.PodFailed
			c.Quotas[0].Status.Used = corev1.ResourceList{"pods": resource.MustParse("1"), "count/pods": resource.MustParse("2"), "requests.cpu": resource.MustParse("100m")}
		}, ""},
		{"a Pod that terminates", ``, hard, func(c *Change) { c.Pods[0].DeletionTimestamp = &metav1.Time{Time: c.Now} }, ""},
		{"a quota with a scope", `replicas: 5`, hard, func(c *Change) {
			c.Quotas[0].Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		}, ""},
		{"what the API server adds to a Pod", recreate + second(""), `{memory: 1Gi}`, func(c *Change) {
			c.Trial = c.Pods[0].DeepCopy()
			update, _, err := c.Update()
			c.Trial.Labels = map[string]string{apps.LabelRevision: update.Name}
			c.Trial.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			checktest.NoError(t, err)
		}, "quota few: memory 2Gi more wanted, 1Gi left; raise it or ask for fewer or smaller Pods"},
		{"the API server says that one is too many", `replicas: 3`, `{}`, func(c *Change) { c.Exceeded = "exceeded quota: scoped" }, "exceeded quota: scoped"},
		{"one would be too many, but none is added", same, `{}`,
			func(c *Change) { c.Exceeded = "exceeded quota: scoped" }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := twoPods(t, test.change, test.hard)
			if test.edit != nil {
				test.edit(&c)
			}
			f, err := Of(c)
			if err != nil || f.Refused != test.want || (test.want != "") != strings.Contains(fmt.Sprint(f.Stops), "quota") {
				t.Errorf("%q, %v, stops %q, want %q", f.Refused, err, f.Stops, test.want)
			}
		})
	}
}

// twoPods is a change of a CloneSet with two Pods, and a quota.
func twoPods(t *testing.T, change, hard string) Change {
	t.Helper()
	read := func(text string, out any) {
		checktest.NoError(t, yaml.Unmarshal([]byte(text), out))
	}
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	c := Change{Objects: view.Objects{Now: now, Set: &apps.CloneSet{}}, To: &apps.CloneSet{}}
	read(`{metadata: {name: web, uid: set, generation: 1}, spec: {replicas: 2, selector: {matchLabels: {app: web}}, updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1},
		template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: "web:v1", resources: {requests: {cpu: 100m}}}]}}}}`, c.Set)
	c.To = c.Set
	old, _, err := c.Update()
	checktest.NoError(t, err)
	data := checktest.Must(revision.Data(old.Template))(t)
	c.Revisions = append(c.Revisions, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: old.Name}, Revision: 1, Data: runtime.RawExtension{Raw: data}})
	c.To = c.Set.DeepCopy()
	read(`{metadata: {generation: 2}, spec: {`+change+`}}`, c.To)
	for _, id := range []string{"a", "b"} {
		pod := &corev1.Pod{}
		checktest.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(write.PodManifest(c.Set, old, id, now).Object, pod))
		pod.UID, pod.Spec.NodeName, pod.Status.Phase = types.UID(id), "n1", corev1.PodRunning
		pod.Labels[apps.LabelLifecycleState] = string(apps.StateNormal)
		setCondition(pod, apps.ConditionInPlaceUpdateReady, corev1.ConditionTrue, now)
		setReady(pod, now)
		c.Pods = append(c.Pods, pod)
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"}}
	read(hard, &quota.Status.Hard)
	read(`{pods: "2", count/pods: "2", cpu: 200m, requests.cpu: 200m}`, &quota.Status.Used)
	c.Quotas = append(c.Quotas, quota)
	return c
}

// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/internal/view"
)

// TestQuota plans changes of two Pods, each of which requests 100m cpu. No other Pods count in the
// quota.
func TestQuota(t *testing.T) {
	scenariotest.Table(t, "testdata/quota.txt", func(t *testing.T, test struct {
		// Spec is the change of the set, Pod that of the first Pod, and Adds what the API server adds
		// to a Pod.
		Spec, Pod, Quota json.RawMessage
		Adds             corev1.ResourceList
		Exceeded         string
	}) string {
		c := twoPods(t, test.Spec)
		c.Exceeded = test.Exceeded
		for into, fields := range map[any]json.RawMessage{c.Pods[0]: test.Pod, c.Quotas[0]: test.Quota} {
			if fields != nil {
				checktest.NoError(t, json.Unmarshal(fields, into))
			}
		}
		if test.Adds != nil {
			c.Trial = c.Pods[0].DeepCopy()
			update, _, err := c.Update()
			checktest.NoError(t, err)
			c.Trial.Labels = map[string]string{apps.LabelRevision: update.Name}
			c.Trial.Spec.Containers[0].Resources.Requests = test.Adds
		}
		f := checktest.Must(Of(c))(t)
		checktest.Same(t, "a quota stops it", f.Refused != "", strings.Contains(fmt.Sprint(f.Stops), "quota"))
		return cmp.Or(f.Refused, "it fits")
	})
}

// twoPods returns a change of a CloneSet with two Pods, and a quota.
func twoPods(t *testing.T, change json.RawMessage) Change {
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
	c.To.Generation = 2
	checktest.NoError(t, json.Unmarshal(change, &c.To.Spec))
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
	read(`{pods: "2", count/pods: "2", cpu: 200m, requests.cpu: 200m}`, &quota.Status.Used)
	c.Quotas = append(c.Quotas, quota)
	return c
}

// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// sized is a CloneSet whose container requests CPU and memory, and has to restart to
// change its memory.
const sized = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: "example.test/web:v1"
        resources: {requests: {cpu: 100m, memory: 64Mi}}
        resizePolicy:
        - {resourceName: cpu, restartPolicy: NotRequired}
        - {resourceName: memory, restartPolicy: RestartContainer}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

// resources changes the requests of the set's container.
func (s *story) resources(image, resources string) {
	s.Helper()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/web:%s", resources: %s, resizePolicy: [`+
		`{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: memory, restartPolicy: RestartContainer}]}]}}}`, image, resources)
}

// expectContainers checks what the kubelet reports of each Pod's first container.
func (s *story) expectContainers(image, cpu, memory string, restarts int32) {
	s.Helper()
	for _, pod := range s.pods() {
		c := pod.Status.ContainerStatuses[0]
		if c.Image != "example.test/web:"+image || c.Resources.Requests.Cpu().String() != cpu ||
			c.Resources.Requests.Memory().String() != memory || c.RestartCount != restarts {
			s.Errorf("Pod %s runs %s with %v after %d restarts", pod.Name, c.Image, c.Resources.Requests, c.RestartCount)
		}
		if got := pod.Spec.Containers[0].Resources.Requests.Cpu().String(); got != cpu {
			s.Errorf("Pod %s: spec has cpu %s", pod.Name, got)
		}
	}
}

func TestResizeInPlace(t *testing.T) {
	for _, test := range []struct {
		name, image, resources string
		cpu, memory            string
		restarts               int32
	}{
		{"cpu without a restart", "v1", `{requests: {cpu: 200m, memory: 64Mi}}`, "200m", "64Mi", 0},
		{"memory with a restart", "v1", `{requests: {cpu: 100m, memory: 128Mi}}`, "100m", "128Mi", 1},
		{"cpu and image", "v2", `{requests: {cpu: 200m, memory: 64Mi}}`, "200m", "64Mi", 1},
		{"limits added", "v1", `{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1"}}`, "100m", "64Mi", 0},
		{"the same in another form", "v1", `{requests: {cpu: 0.1, memory: 65536Ki}}`, "100m", "64Mi", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := begin(t)
			s.create(sized)
			s.settled(2)
			before := s.identities()
			s.resources(test.image, test.resources)
			s.settled(2)
			if after := s.identities(); !maps.Equal(before, after) {
				t.Errorf("Pods were replaced: %v, then %v", before, after)
			}
			s.expectContainers(test.image, test.cpu, test.memory, test.restarts)
		})
	}
}

// What a running container cannot get needs a new Pod.
func TestResizeThatNeedsANewPod(t *testing.T) {
	for name, resources := range map[string]string{
		"another QoS class": `{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}}`,
		"a request less":    `{requests: {memory: 64Mi, cpu: null}}`,
		"another resource":  `{requests: {cpu: 100m, memory: 64Mi, ephemeral-storage: 1Gi}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.create(sized)
			s.settled(2)
			before := s.identities()
			s.resources("v1", resources)
			s.settled(2)
			for pod := range s.identities() {
				if _, kept := before[pod]; kept {
					t.Errorf("Pod %s was not recreated", pod)
				}
			}
		})
	}
}

func TestInPlaceOnlyTakesResources(t *testing.T) {
	s := begin(t)
	s.create(sized, "spec.updateStrategy.type", "InPlaceOnly")
	s.settled(2)
	before := s.identities()
	s.resources("v1", `{requests: {cpu: 300m, memory: 64Mi}}`)
	s.settled(2)
	s.expectContainers("v1", "300m", "64Mi", 0)
	s.resources("v1", `{requests: {cpu: 300m, memory: 64Mi}, limits: {cpu: 300m, memory: 64Mi}}`)
	s.until("the condition FailedUpdate to name the field", func() bool {
		c := s.condition(apps.ConditionFailedUpdate)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "spec.template.spec.containers[main].resources") &&
			strings.Contains(c.Message, "QoS class would change from Burstable to Guaranteed")
	})
	if !maps.Equal(before, s.identities()) {
		t.Error("Pods were recreated")
	}
}

// A node that cannot give a container its resources costs one Pod its service, and no
// Pod its life; both ways out work.
func TestResizeThatTheNodeRefuses(t *testing.T) {
	for name, out := range map[string]string{
		"back":         `{requests: {cpu: 100m, memory: 64Mi}}`,
		"a better one": `{requests: {cpu: "2", memory: 64Mi}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.create(sized)
			s.settled(2)
			before := s.identities()
			s.resources("v1", `{requests: {cpu: "5", memory: 64Mi}}`)
			pod := s.one(apps.StateUpdating)
			s.until("the condition FailedUpdate to name the Pod and the reason", func() bool {
				c := s.condition(apps.ConditionFailedUpdate)
				return c.Status == corev1.ConditionTrue && c.Reason == "ResizeRefused" && strings.Contains(c.Message, pod.Name) &&
					strings.Contains(c.Message, "Infeasible: Node didn't have enough capacity")
			})
			if n := len(s.in(apps.StateUpdating)); n != 1 || s.set().Status.AvailableReplicas != 1 {
				t.Errorf("%d Pods are updated, and %d are available", n, s.set().Status.AvailableReplicas)
			}
			s.resources("v1", out)
			s.settled(2)
			s.until("the condition to clear", func() bool { return s.condition(apps.ConditionFailedUpdate).Status == corev1.ConditionFalse })
			if !maps.Equal(before, s.identities()) {
				t.Error("Pods were recreated")
			}
		})
	}
}

// forbidding is a policy that refuses resizes in one namespace.
const forbidding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/resize]}]
  validations: [{expression: "false", message: "nothing is resized here"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`

// forbidResizes makes the API server refuse resizes; the result allows them again.
func (s *story) forbidResizes() (allow func()) {
	s.Helper()
	var objects []client.Object
	for text := range strings.SplitSeq(fmt.Sprintf(forbidding, s.namespace), "---") {
		object := s.object(text)
		object.SetNamespace("")
		if err := s.client.Create(s.Context(), object); err != nil {
			s.Fatal(err)
		}
		objects = append(objects, object)
	}
	pod := s.pods()[0]
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"150m"}}}]}}`))
	s.until("the policy to be in force", func() bool {
		err := s.client.SubResource("resize").Patch(s.Context(), pod.DeepCopy(), patch, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "nothing is resized here")
	})
	return func() {
		for _, object := range slices.Backward(objects) {
			if err := s.client.Delete(s.Context(), object); err != nil {
				s.Error(err)
			}
		}
	}
}

// The API server's refusal is reported like the node's, and the Pods stay unchanged.
func TestResizeThatTheServerRefuses(t *testing.T) {
	s := begin(t)
	s.create(sized)
	s.settled(2)
	before := s.identities()
	allow := s.forbidResizes()
	s.resources("v1", `{requests: {cpu: 200m, memory: 64Mi}}`)
	pod := s.one(apps.StateUpdating)
	s.until("the condition FailedUpdate to name the Pod and the reason", func() bool {
		c := s.condition(apps.ConditionFailedUpdate)
		return c.Status == corev1.ConditionTrue && c.Reason == "ResizeRefused" && strings.Contains(c.Message, pod.Name) &&
			strings.Contains(c.Message, "nothing is resized here")
	})
	if n := s.set().Status.AvailableReplicas; n != 1 {
		t.Errorf("%d Pods are available", n)
	}
	s.resources("v1", `{requests: {cpu: 100m, memory: 64Mi}}`)
	s.settled(2)
	allow()
	s.until("the condition to clear", func() bool { return s.condition(apps.ConditionFailedUpdate).Status == corev1.ConditionFalse })
	if !maps.Equal(before, s.identities()) {
		t.Error("Pods were recreated")
	}
}

// TestResizeWithoutTheSubresource: what API servers before Kubernetes 1.33 cannot do
// creates new Pods or is reported; changes that need no resize are done in place.
func TestResizeWithoutTheSubresource(t *testing.T) {
	s := without(t)
	s.options.NoResize = true
	s.startController()
	s.create(sized)
	s.settled(2)
	before := s.identities()
	s.resources("v1", `{requests: {cpu: 200m, memory: 64Mi}}`)
	s.settled(2)
	after := s.identities()
	for pod := range after {
		if _, kept := before[pod]; kept {
			t.Errorf("Pod %s was not recreated", pod)
		}
	}
	s.resources("v2", `{requests: {cpu: 200m, memory: 64Mi}}`)
	s.settled(2)
	s.patch(`spec: {updateStrategy: {type: InPlaceOnly}}`)
	s.resources("v2", `{requests: {cpu: 300m, memory: 64Mi}}`)
	s.until("the condition FailedUpdate to say what is missing", func() bool {
		c := s.condition(apps.ConditionFailedUpdate)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "the API server has no subresource pods/resize")
	})
	if n := s.set().Status.AvailableReplicas; n != 2 {
		t.Errorf("%d Pods are available", n)
	}
	if !maps.Equal(after, s.identities()) {
		t.Error("Pods were recreated")
	}
}

// withoutResize requests a subresource that the API server does not know.
type withoutResize struct{ http.RoundTripper }

func (w withoutResize) RoundTrip(request *http.Request) (*http.Response, error) {
	if path, ok := strings.CutSuffix(request.URL.Path, "/resize"); ok {
		request = request.Clone(request.Context())
		request.URL.Path = path + "/unknown"
	}
	return w.RoundTripper.RoundTrip(request)
}

// TestResizeThatTheServerDoesNotKnow: a controller that was not told so gets a "not
// found". It does not consider the Pod gone, and the user learns what is missing.
func TestResizeThatTheServerDoesNotKnow(t *testing.T) {
	s := without(t)
	s.wrap = func(next http.RoundTripper) http.RoundTripper { return withoutResize{next} }
	s.startController()
	s.create(sized)
	s.settled(2)
	before := s.identities()
	s.resources("v1", `{requests: {cpu: 200m, memory: 64Mi}}`)
	pod := s.one(apps.StateUpdating)
	s.until("the condition FailedUpdate to name the Pod and what is missing", func() bool {
		c := s.condition(apps.ConditionFailedUpdate)
		return c.Status == corev1.ConditionTrue && c.Reason == "ResizeRefused" && strings.Contains(c.Message, pod.Name) &&
			strings.Contains(c.Message, "no subresource pods/resize, which Kubernetes has since 1.33")
	})
	if n := s.set().Status.AvailableReplicas; n != 1 {
		t.Errorf("%d Pods are available", n)
	}
	if !maps.Equal(before, s.identities()) {
		t.Error("Pods were recreated")
	}
}

// ordered is a CloneSet whose container base precedes its container main.
const ordered = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "example.test/web:v1"}
      - {name: base, image: "example.test/base:v1", env: [{name: KRUISE_CONTAINER_PRIORITY, value: "10"}]}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

// both changes the images of the two containers.
func (s *story) both(main, base string) {
	s.Helper()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/%s"}, {name: base, image: "example.test/%s", `+
		`env: [{name: KRUISE_CONTAINER_PRIORITY, value: "10"}]}]}}}`, main, base)
}

// TestPriorityOrdersAnUpdate watches the Pod: main changes only when base runs the new
// image and is ready.
func TestPriorityOrdersAnUpdate(t *testing.T) {
	s := begin(t)
	s.create(ordered)
	s.settled(1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watcher, err := s.client.Watch(ctx, &corev1.PodList{}, client.InNamespace(s.namespace))
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	before := s.identities()
	s.both("web:v2", "base:v2")
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || pod.Spec.Containers[0].Image == "example.test/web:v1" {
			continue
		}
		// The first version of the Pod in which main has changed.
		base := pod.Status.ContainerStatuses[slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == "base" })]
		if base.Image != "example.test/base:v2" || !base.Ready {
			t.Errorf("main changes while base runs %s, ready %v", base.Image, base.Ready)
		}
		break
	}
	s.settled(1)
	if !maps.Equal(before, s.identities()) {
		t.Errorf("Pods %v, then %v", before, s.identities())
	}
}

// TestPriorityHoldsAndRollsBack: while a first container never comes up, the others
// stay unchanged, the set reports this, and a rollback is possible.
func TestPriorityHoldsAndRollsBack(t *testing.T) {
	s := begin(t)
	s.create(ordered)
	s.settled(1)
	before := s.identities()
	s.both("web:v2", "missing:v1")
	s.until("the condition Blocked to name the container", func() bool {
		c := s.condition(apps.ConditionBlocked)
		return c.Status == corev1.ConditionTrue && c.Reason == "WaitingForContainer" && strings.Contains(c.Message, "waits for its containers base to be ready before it updates main")
	})
	pod := s.one(apps.StateUpdating)
	if image := pod.Spec.Containers[0].Image; image != "example.test/web:v1" {
		t.Errorf("main has %s already", image)
	}
	s.both("web:v1", "base:v1")
	s.settled(1)
	s.until("nothing to be blocked", func() bool { return s.condition(apps.ConditionBlocked).Status == corev1.ConditionFalse })
	if !maps.Equal(before, s.identities()) {
		t.Error("the Pod was recreated")
	}
}

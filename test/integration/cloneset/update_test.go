// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/integration/scene"
)

// resized is a patch of sets/sized.yaml with an image and other resources.
func resized(image, resources string) string {
	return fmt.Sprintf(`spec: {template: {spec: {containers: [{name: main, image: "example.test/web:%s", resources: %s, resizePolicy: [`+
		`{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: memory, restartPolicy: RestartContainer}]}]}}}`, image, resources)
}

// TestUpdate: what is possible in place keeps the Pods, with a restart where the change
// needs one; for anything else they are recreated.
func TestUpdate(t *testing.T) {
	type containers struct{ image, cpu, memory string }
	for _, test := range []struct {
		name, set, patch string
		recreated        bool
		want             containers
		restarts         int32
	}{
		{"image", "plain", `spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2"}]}}}`, false, containers{"v2", "0", "0"}, 1},
		{"labels and annotations", "plain", `spec: {template: {metadata: {labels: {tier: front}, annotations: {note: x}}}}`, false, containers{"v1", "0", "0"}, 0},
		{"environment", "plain", `spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v1", env: [{name: A, value: b}]}]}}}`,
			true, containers{"v1", "0", "0"}, 0},
		// The empty type means ReCreate, on an existing set too.
		{"an annotation, with the empty type", "plain", `spec: {updateStrategy: {type: ""}, template: {metadata: {annotations: {` +
			`kubectl.kubernetes.io/restartedAt: "2026-01-02T03:04:05Z"}}}}`, true, containers{"v1", "0", "0"}, 0},
		{"cpu without a restart", "sized", resized("v1", `{requests: {cpu: 200m, memory: 64Mi}}`), false, containers{"v1", "200m", "64Mi"}, 0},
		{"memory with a restart", "sized", resized("v1", `{requests: {cpu: 100m, memory: 128Mi}}`), false, containers{"v1", "100m", "128Mi"}, 1},
		{"cpu and image", "sized", resized("v2", `{requests: {cpu: 200m, memory: 64Mi}}`), false, containers{"v2", "200m", "64Mi"}, 1},
		{"limits added", "sized", resized("v1", `{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1"}}`), false, containers{"v1", "100m", "64Mi"}, 0},
		{"the same resources in another form", "sized", resized("v1", `{requests: {cpu: 0.1, memory: 65536Ki}}`), false, containers{"v1", "100m", "64Mi"}, 0},
		{"another QoS class", "sized", resized("v1", `{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}}`),
			true, containers{"v1", "100m", "64Mi"}, 0},
		{"a request less", "sized", resized("v1", `{requests: {memory: 64Mi, cpu: null}}`), true, containers{"v1", "0", "64Mi"}, 0},
		{"another resource", "sized", resized("v1", `{requests: {cpu: 100m, memory: 64Mi, ephemeral-storage: 1Gi}}`),
			true, containers{"v1", "100m", "64Mi"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := running(t, test.set)
			before := s.identities()
			s.patch("%s", test.patch)
			s.settled(s.replicas())
			if test.recreated {
				s.newPods(before)
			} else {
				s.samePods(before)
			}
			for _, pod := range s.pods() {
				c := pod.Status.ContainerStatuses[0]
				requests := c.Resources.Requests
				got := containers{strings.TrimPrefix(c.Image, "example.test/web:"), requests.Cpu().String(), requests.Memory().String()}
				if got != test.want || c.RestartCount != test.restarts {
					t.Errorf("Pod %s runs %v after %d restarts, want %v after %d", pod.Name, got, c.RestartCount, test.want, test.restarts)
				}
			}
			s.carryTemplate()
			s.unchanged()
		})
	}
}

// withoutResize requests a subresource that the API server does not know.
func withoutResize(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	if path, ok := strings.CutSuffix(request.URL.Path, "/resize"); ok {
		request = request.Clone(request.Context())
		request.URL.Path = path + "/unknown"
	}
	return next.RoundTrip(request)
}

// forbidResizes makes the API server refuse resizes in the story's namespace.
func (s *story) forbidResizes() {
	s.Helper()
	for text := range strings.SplitSeq(s.text("forbid-resize.yaml"), "---") {
		object, err := scene.Parse(text)
		s.Must(err)
		s.Make(object)
	}
	pod := s.pods()[0]
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"150m"}}}]}}`))
	s.until("the policy to be in force", func() bool {
		err := s.SubResource("resize").Patch(s.Context(), pod.DeepCopy(), patch, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "nothing is resized here")
	})
}

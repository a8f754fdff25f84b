// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/integration/scene"
)

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

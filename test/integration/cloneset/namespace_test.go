// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNoEventsForATerminatingNamespace deletes a namespace with a set that keeps
// replacing its Pods: the first events are refused, and no more are sent.
func TestNoEventsForATerminatingNamespace(t *testing.T) {
	var refused atomic.Int32
	s := withoutController(t)
	s.intercept = func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil && strings.HasSuffix(request.URL.Path, "/events") && response.StatusCode >= http.StatusBadRequest {
			refused.Add(1)
		}
		return response, err
	}
	s.startController()
	s.create("plain", `spec: {replicas: 10}`)
	s.settled(10)
	s.must(s.client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}))
	for _, pod := range s.pods() {
		left := len(s.pods())
		s.remove(pod.Name)
		s.until("the status to count one Pod less", func() bool { return len(s.pods()) < left && int(s.set().Status.Replicas) < left })
	}
	// The events of one pass are sent together.
	if n := refused.Load(); n < 1 || n > 3 {
		t.Errorf("%d events were sent to a terminating namespace, want those of the first pass that is refused", n)
	}
}

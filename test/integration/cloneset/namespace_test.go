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

// refusedEvents counts events that the API server refuses.
type refusedEvents struct {
	http.RoundTripper
	count *atomic.Int32
}

func (r refusedEvents) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil && strings.HasSuffix(request.URL.Path, "/events") && response.StatusCode >= http.StatusBadRequest {
		r.count.Add(1)
	}
	return response, err
}

// TestAnEndingNamespaceIsToldNothing deletes a namespace with a set that keeps
// replacing its Pods: the first events are refused, and no more are sent.
func TestAnEndingNamespaceIsToldNothing(t *testing.T) {
	var refused atomic.Int32
	s := without(t)
	s.wrap = func(next http.RoundTripper) http.RoundTripper { return refusedEvents{next, &refused} }
	s.startController()
	s.create(plain, "spec.replicas", 10)
	s.settled(10)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	if err := s.client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	pods := s.pods()
	for i := range pods {
		left := len(s.pods())
		if err := s.client.Delete(t.Context(), &pods[i]); err != nil {
			t.Fatal(err)
		}
		s.until("the set to hear of it", func() bool { return len(s.pods()) < left && int(s.set().Status.Replicas) < left })
	}
	// Those of one pass are sent together.
	if n := refused.Load(); n < 1 || n > 3 {
		t.Errorf("%d events were sent to a namespace that is ending, want those of the first pass that is refused", n)
	}
}

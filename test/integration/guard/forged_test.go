// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// TestForgedReviews: somebody who reaches the guard's port, and shows no credentials, sends it a
// review of a Pod that Usher does not know, as if a CloneSet owned that. Without the path nobody is
// heard; with it, the guard believes the API server and not the review.
func TestForgedReviews(t *testing.T) {
	s := begin(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "plain"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx"}}}}
	s.Must(s.Create(t.Context(), pod))
	said := pod.DeepCopy()
	said.Finalizers = []string{usherv1alpha1.Finalizer}
	owner := &metav1.ObjectMeta{Name: "invented", UID: "invented"}
	said.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1alpha1.KindCloneSet)}
	review := checktest.Must(json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Namespace: s.Namespace, Name: pod.Name, Operation: admissionv1.Delete,
			OldObject: runtime.RawExtension{Raw: checktest.Must(json.Marshal(said))(t)},
		},
	}))(t)
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	s.Must(s.Get(t.Context(), client.ObjectKey{Name: service.Name}, &configuration))
	path := *configuration.Webhooks[0].ClientConfig.Service.Path
	// The forger does not check whom it talks to.
	forger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer forger.CloseIdleConnections()
	for _, attempt := range []struct {
		path string
		body []byte
		code int
	}{
		{"/guard", review, http.StatusNotFound},
		{"/guard/" + strings.Repeat("0", 64), review, http.StatusNotFound},
		{path, bytes.Repeat([]byte(" "), 6_000_000), http.StatusRequestEntityTooLarge},
		{path, review, http.StatusOK},
	} {
		body := bytes.NewReader(attempt.body)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+door+attempt.path, body)
		checktest.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		answer, err := forger.Do(request)
		checktest.NoError(t, err)
		checktest.NoError(t, answer.Body.Close())
		checktest.Same(t, "the answer at "+attempt.path, attempt.code, answer.StatusCode)
	}
	var after corev1.Pod
	s.Must(s.Get(t.Context(), client.ObjectKeyFromObject(pod), &after))
	checktest.Same(t, "the Pod's labels", pod.Labels, after.Labels)
	checktest.Same(t, "the Pod's annotations", pod.Annotations, after.Annotations)
	checktest.Same(t, "deleted", false, after.DeletionTimestamp != nil)
}

// SPDX-License-Identifier: Apache-2.0

package install

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/checktest"
	servers "github.com/usher-dev/usher/test/servers/run"
)

// Each half runs alone in its own process, with the rights of its own role.
func TestHalvesApart(t *testing.T) {
	s := begin(t)
	s.follow("install.md halves apart")
	ports := checktest.Must(servers.FreePorts(t.Context(), 1))(s)
	metrics := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s.run("usher-cloneset")
	s.run("usher-registration", "--metrics-bind-address="+metrics)
	s.startEtcd()
	s.apply("registration")
	s.apply("hooked")
	s.available("3")
	s.until("three entries in etcd", func() bool { return s.entries() == "3" })
	if leases := s.sh("kubectl -n usher-system get leases -o name"); len(strings.Fields(leases)) != 2 {
		t.Errorf("leases %q, want one for each half", leases)
	}
	for what, may := range map[string]string{
		"get secrets -n usher-system --as " + account("cloneset"):                           "no",
		"get secrets -n usher-system --as " + account("registration"):                       "yes",
		"get secrets -n default --as " + account("registration"):                            "no",
		"create pods -n default --as " + account("registration"):                            "no",
		"list endpointslices.discovery.k8s.io -n default --as " + account("registration"):   "yes",
		"create endpointslices.discovery.k8s.io -n default --as " + account("registration"): "no",
	} {
		if got, _ := s.try("kubectl auth can-i " + what); got != may {
			t.Errorf("%s: %s, want %s", what, got, may)
		}
	}
	s.apply("stranger")
	s.until("the Registry to say why its Secret is not read", func() bool {
		return strings.Contains(s.sh("kubectl get registry stranger -o jsonpath={.status.conditions}"), "rbac.secretNamespaces")
	})
	s.stolenAccount()
	s.scrapes(metrics)
	// What is refused to a thief is nothing that a drain needs.
	s.sh("kubectl scale cloneset web --replicas 2")
	s.available("2")
	s.until("two entries in etcd", func() bool { return s.entries() == "2" })
}

// account is the service account of a half that is apart.
func account(half string) string { return "system:serviceaccount:usher-system:usher-" + half }

// stolenAccount does with the accounts of the hook operator and the guard what an attacker would,
// and what they themselves do: the operator writes the status of Pods, the guard the Pods.
func (s *story) stolenAccount() {
	var pods corev1.PodList
	s.Must(s.List(s.Context(), &pods, client.MatchingLabels{"app": "web"}))
	const both, image = "", `{"spec": {"containers": [{"name": "main", "image": "attacker.test/miner"}]}}`
	through := map[string]string{"registration": "status", "guard": ""}
	for _, test := range []struct{ half, subresource, patch, refusal string }{
		{"registration", "", image, `cannot patch resource "pods"`},
		{"registration", "status", image, ""}, // which the API server drops
		{"registration", "status", `{"metadata": {"ownerReferences": null}}`, ""},
		{"registration", "status", `{"status": {"phase": "Failed"}}`, "nothing in the status of a Pod but a condition"},
		{"registration", "status", `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "no condition of a Pod but usher.dev/registered"},
		{"registration", "status", `{"status": {"conditions": [{"type": "usher.dev/registered", "status": "True"}]}}`, ""},
		{"guard", "status", `{"status": {"conditions": [{"type": "usher.dev/registered", "status": "True"}]}}`, `cannot patch resource "pods/status"`},
		{"guard", "", image, "never change the spec"},
		{"guard", "", `{"metadata": {"ownerReferences": null}}`, "never change the owners"},
		{both, "", `{"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}`, "Kubernetes' own finalizers"},
		{both, "", `{"metadata": {"labels": {"app.kubernetes.io/name": "shop"}}}`, "Kubernetes' own labels"},
		{both, "", `{"metadata": {"labels": {"controller-revision-hash": null}}}`, "Kubernetes' own labels"},
		{both, "", `{"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}}`, "no annotations of a Pod but those of usher.dev"},
		{both, "", `{"metadata": {"labels": {"example.com/drained": "false"}, "finalizers": ["usher.dev/registration", "example.com/other"],
			"annotations": {"usher.dev/registrations": "a", "controller.kubernetes.io/pod-deletion-cost": "-1"}}}`, ""},
	} {
		halves := map[string]string{test.half: test.subresource}
		if test.half == both {
			halves = through
		}
		for half, subresource := range halves {
			after, err := s.patchAs(account(half), &pods.Items[0], subresource, test.patch)
			if (err == nil) != (test.refusal == "") || err != nil && !strings.Contains(err.Error(), test.refusal) {
				s.Errorf("%s patches %s with %s: %v, want %q", half, subresource, test.patch, err, test.refusal)
			}
			if before := &pods.Items[0]; !equality.Semantic.DeepEqual(before.Spec, after.Spec) || len(after.OwnerReferences) == 0 {
				s.Errorf("%s changes the spec or the owners of a Pod with %s", half, test.patch)
			}
		}
	}
}

// patchAs tries a strategic merge patch as somebody else, and returns what comes of it.
func (s *story) patchAs(user string, pod *corev1.Pod, subresource, patch string) (*corev1.Pod, error) {
	config := rest.CopyConfig(s.RESTConfig())
	config.Impersonate.UserName = user
	api := checktest.Must(client.New(config, client.Options{}))(s)
	after, change := pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch))
	if subresource != "" {
		return after, api.SubResource(subresource).Patch(s.Context(), after, change, client.DryRunAll)
	}
	return after, api.Patch(s.Context(), after, change, client.DryRunAll)
}

// scrapes reads metrics as strangers, and as somebody who may.
func (s *story) scrapes(address string) {
	s.sh("kubectl create namespace monitoring && kubectl -n monitoring create serviceaccount prometheus")
	s.follow("metrics.md reader")
	plain := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // The certificate is one that nobody can check.
	defer plain.CloseIdleConnections()
	for _, test := range []struct {
		url, token string
		code       int
	}{
		{"http://" + address, "", http.StatusBadRequest},
		{"https://" + address, "", http.StatusUnauthorized},
		{"https://" + address, "made-up", http.StatusUnauthorized},
		{"https://" + address, s.sh("kubectl -n default create token default"), http.StatusForbidden},
		{"https://" + address, s.sh("kubectl -n monitoring create token prometheus"), http.StatusOK},
	} {
		request := checktest.Must(http.NewRequestWithContext(s.Context(), http.MethodGet, test.url+"/metrics", nil))(s)
		request.Header.Set("Authorization", "Bearer "+test.token)
		answer, err := (&http.Client{Transport: plain}).Do(request)
		checktest.NoError(s, err)
		body, err := io.ReadAll(answer.Body)
		s.Must(errors.Join(err, answer.Body.Close()))
		if answer.StatusCode != test.code || strings.Contains(string(body), "usher_") != (test.code == http.StatusOK) {
			s.Errorf("%s with the token %.10q: %s, want %d", test.url, test.token, answer.Status, test.code)
		}
	}
}

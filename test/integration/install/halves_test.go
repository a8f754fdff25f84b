// SPDX-License-Identifier: Apache-2.0

package install

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
)

// may checks what kubectl auth can-i says.
func (s *story) may(what, want string) {
	got, _ := s.try("kubectl auth can-i " + what) // a no is an exit code, too
	checktest.Same(s, what, want, got)
}

// patch is "by HALF/SUBRESOURCE and …, PATCH", and below "refused: TEXT" if it is: what somebody tries who
// has stolen the account of a half that is apart. Whatever comes of it, a Pod's spec and owners stay.
func (s *story) patch(rest string) {
	who, rest, _ := strings.Cut(strings.TrimPrefix(rest, "by "), ", ")
	text, refusal, refused := strings.Cut(rest, "\n  refused: ")
	patch := checktest.Must(yaml.YAMLToJSON([]byte(text)))(s)
	var pods corev1.PodList
	s.Must(s.List(s.Context(), &pods, client.MatchingLabels{"app": "web"}))
	for who := range strings.SplitSeq(who, " and ") {
		half, subresource, _ := strings.Cut(who, "/")
		before := &pods.Items[0]
		after, err := s.patchAs("system:serviceaccount:usher-system:usher-"+half, before, subresource, patch)
		if (err == nil) == refused || refused && !strings.Contains(err.Error(), refusal) {
			s.Errorf("%s patches with %s: %v, want %q", who, text, err, refusal)
		}
		if !equality.Semantic.DeepEqual(before.Spec, after.Spec) || len(after.OwnerReferences) == 0 {
			s.Errorf("%s changes the spec or the owners of a Pod with %s", who, text)
		}
	}
}

// patchAs tries a strategic merge patch as somebody else, and returns what comes of it.
func (s *story) patchAs(user string, pod *corev1.Pod, subresource string, patch []byte) (*corev1.Pod, error) {
	config := rest.CopyConfig(s.RESTConfig())
	config.Impersonate.UserName = user
	api := checktest.Must(client.New(config, client.Options{}))(s)
	after, change := pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch)
	if subresource != "" {
		return after, api.SubResource(subresource).Patch(s.Context(), after, change, client.DryRunAll)
	}
	return after, api.Patch(s.Context(), after, change, client.DryRunAll)
}

// thief is "ACCOUNT is refused SCRIPT": with the account's own token, kubectl is forbidden what the
// script does.
func (s *story) thief(rest string) {
	account, script, _ := strings.Cut(rest, " is refused ")
	out, err := s.try("export KUBECONFIG=" + s.kubeconfigOf(account) + "\n" + script)
	if err == nil || !strings.Contains(out, `is forbidden: User "system:serviceaccount:usher-system:`+account+`" cannot`) {
		s.Errorf("a thief of %s is not refused %s: %v\n%s", account, script, err, out)
	}
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

// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/checktest/pki"
	"github.com/usher-dev/usher/internal/guard"
	"github.com/usher-dev/usher/internal/guard/keeper"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/servers/run"
)

// admission has an API server show webhooks a certificate, as docs/guard.md says.
const admission = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ValidatingAdmissionWebhook
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: WebhookAdmissionConfiguration
      kubeConfigFile: %s
`

// TestClientCertificates: an API server that shows webhooks a certificate is heard by a guard that demands
// one. Somebody who knows the path and has none is not.
func TestClientCertificates(t *testing.T) {
	folder, port := t.TempDir(), checktest.Must(run.FreePorts(t.Context(), 1))(t)[0]
	ca := checktest.Must(pki.NewAuthority("api-servers", time.Now()))(t)
	shown := checktest.Must(ca.Client("kube-apiserver-webhooks", time.Now()))(t)
	kubeconfig, config, cas := filepath.Join(folder, "kubeconfig"), filepath.Join(folder, "admission.yaml"), filepath.Join(folder, "ca.crt")
	checktest.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{AuthInfos: map[string]*clientcmdapi.AuthInfo{
		fmt.Sprintf("%s.%s.svc:%d", service.Name, service.Namespace, port): {ClientCertificateData: shown.Cert, ClientKeyData: shown.Key},
	}}, kubeconfig))
	checktest.NoError(t, os.WriteFile(config, fmt.Appendf(nil, admission, kubeconfig), 0o600))
	checktest.NoError(t, os.WriteFile(cas, ca.PEM(), 0o600))
	p := checktest.Must(scene.New(clustertest.StartWith(t, cluster.ExtraArgs{build.APIServer: {"--admission-control-config-file=" + config}})))(t)
	s := p.Begin(t)
	_ = checktest.Must(checkout.InstallGuard(t.Context(), p, scene.Root, "usher", port))(t)
	s.Manage(p.RESTConfig(), ctrl.Options{}, func(_ context.Context, mgr ctrl.Manager) error { return keeper.Setup(mgr, service) })
	s.Manage(p.RESTConfig(), ctrl.Options{}, func(ctx context.Context, mgr ctrl.Manager) error {
		return guard.Setup(ctx, mgr, guard.Options{Service: service, Port: port, Clients: guard.Clients{CA: cas, Names: []string{"kube-apiserver-webhooks"}}})
	})
	path := *checktest.Must(checkout.AwaitGuard(t.Context(), p))(t).Webhooks[0].ClientConfig.Service.Path
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s.Until("the guard serves", func() string {
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err.Error()
		}
		return map[bool]string{true: "it hangs up"}[conn.Close() != nil]
	})
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer stranger.CloseIdleConnections()
	request := checktest.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+path, strings.NewReader("{}")))(t)
	if answer, err := stranger.Do(request); err == nil {
		t.Errorf("somebody without a certificate gets %s", answer.Status)
		checktest.NoError(t, answer.Body.Close())
	} else if !strings.Contains(err.Error(), "certificate required") {
		t.Error(err)
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: "web", Finalizers: []string{usherv1alpha1.Finalizer}, Labels: map[string]string{usherv1alpha1.LabelGuarded: ""},
		},
		// One without a node would go at once, as by force.
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "nginx"}}},
	}
	s.Must(s.Create(t.Context(), pod))
	deleted := make(chan error, 1)
	go func() { deleted <- s.Delete(t.Context(), pod) }()
	s.Until("the guard hears of the deletion", func() string {
		live := s.Pod("web")
		if live.DeletionTimestamp != nil {
			t.Fatal("the Pod is deleted: the guard was not heard")
		}
		return map[bool]string{true: "nobody has asked it"}[live.Annotations[usherv1alpha1.AnnotationDeletionRequest] == ""]
	})
	s.Change(pod, `metadata: {finalizers: null, labels: {usher.dev/guarded: null}}`)
	s.Must(<-deleted)
}

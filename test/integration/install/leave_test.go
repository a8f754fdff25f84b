// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// served registers the Pods of web in etcd, with a finalizer hook.
const served = `
apiVersion: usher.dev/v1alpha1
kind: Registry
metadata: {name: discovery}
spec: {etcd: {endpoints: [ENDPOINT], prefix: services}}
---
apiVersion: usher.dev/v1alpha1
kind: Registration
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  registries: [discovery]
  instance: {service: web, port: 80}
  hooks: {preDelete: example.com/drained}
  drain: {propagation: 1s, deadline: 5m, onDeadline: Block}
`

// hooked is web with a hook that the Registration answers.
var hooked = strings.Replace(web, "  template:\n    metadata: {labels: {app: web}}",
	"  lifecycle: {preDelete: {labelsHandler: {example.com/drained: \"true\"}}}\n  template:\n    metadata: {labels: {app: web, example.com/drained: \"true\"}}", 1)

// registered installs Usher and waits until three Pods are in a registry.
func registered(t *testing.T) (*story, *cluster.Etcd, *usher) {
	t.Helper()
	s := begin(t)
	etcd := clustertest.StartEtcd(t)
	s.follow("install.md", "helm install")
	running := s.run("usher")
	s.apply(strings.Replace(served, "ENDPOINT", etcd.Endpoint(), 1))
	s.apply(hooked)
	s.available("3")
	s.until("three entries in etcd", func() bool { return s.entries(etcd) == 3 })
	return s, etcd, running
}

// entries is the number of keys under services/ in etcd.
func (s *story) entries(etcd *cluster.Etcd) int {
	s.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	s.Must(err)
	defer func() { _ = client.Close() }() // Everything was read.
	answer, err := client.Get(s.Context(), "services/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	s.Must(err)
	return int(answer.Count)
}

// protected lists the objects with Usher's finalizers.
func (s *story) protected() string {
	s.Helper()
	return s.sh(`kubectl get pods,clonesets,registrations.usher.dev,registries.usher.dev -A -o go-template='{{range .items}}{{$o := .}}{{range .metadata.finalizers}}{{if eq . "usher.dev/registration" "usher.dev/pre-delete"}}{{$o.kind}} {{end}}{{end}}{{end}}'`)
}

// An orderly uninstall: the entries, the finalizers, and then Usher are removed; after
// that a Pod, or a CloneSet with all of its Pods, can be deleted without help.
func TestLeaving(t *testing.T) {
	s, etcd, running := registered(t)
	before := s.pods()
	s.follow("install.md", "leave registries")
	if n, left := s.entries(etcd), s.protected(); n != 0 || left != "CloneSet" {
		t.Errorf("%d entries are left in etcd, and finalizers on %s", n, left)
	}
	s.follow("install.md", "leave hooks")
	s.until("the CloneSet without hooks to be free", func() bool { return s.protected() == "" })
	running.stop()
	s.follow("install.md", "helm uninstall")
	s.remaining(before, "after leaving")
	s.sh("kubectl delete pod -l app=web --wait --timeout 60s")
	s.sh("kubectl delete cloneset web --wait --timeout 60s")
	s.follow("install.md", "remove the CRDs")
}

// eachPod runs a command for each of the set's Pods, as $pod.
func (s *story) eachPod(command string) {
	s.Helper()
	s.sh("kubectl get pods -l app=web -o name | while read -r pod; do %s; done", command)
}

// An uninstall that skips the hook operator, which Helm is told to do. After a reinstall everything is in its place:
// nothing is registered twice, and a Pod that was deleted meanwhile is drained and released.
// Without one, deleted Pods stay until somebody removes the finalizers by hand; the entries
// stay for the next installation.
func TestLeavingInAHurry(t *testing.T) {
	s, etcd, running := registered(t)
	running.stop()
	if out, err := s.try("helm uninstall usher --namespace usher-system --wait"); err == nil || !strings.Contains(out, "Registry discovery is in use") || !strings.Contains(out, "--no-hooks") {
		t.Errorf("an uninstall while a registry is in use was to be refused: %v\n%s", err, out)
	}
	if left := s.sh("kubectl -n usher-system get deployments,configmaps -l app.kubernetes.io/name=usher -o name"); left != "deployment.apps/usher" {
		t.Errorf("after an uninstall that was refused there are %q, want the Deployment", left)
	}
	s.follow("install.md", "uninstall anyway")
	name := s.sh("kubectl get pods -l app=web -o jsonpath='{.items[0].metadata.name}'")
	s.sh("kubectl delete pod %s --wait=false", name)
	s.follow("install.md", "helm install")
	running = s.run("usher")
	s.sh("kubectl wait --for delete pod/%s --timeout 60s", name)
	s.available("3")
	s.until("three entries in etcd", func() bool { return s.entries(etcd) == 3 })

	before := s.pods()
	running.stop()
	s.follow("install.md", "uninstall anyway")
	s.same(before, "after an uninstall")
	if left := strings.Fields(s.protected()); len(left) != 6 {
		t.Errorf("finalizers are on %v, want three Pods, a CloneSet, a Registration and a Registry", left)
	}
	s.eachPod(`kubectl patch "$pod" --type merge -p '{"metadata":{"finalizers":["usher.dev/registration","example.com/mine"]}}'`)
	s.sh("kubectl delete pod -l app=web --wait=false")
	s.follow("install.md", "last finalizers")
	if left, n := s.protected(), s.entries(etcd); left != "" || n != 3 {
		t.Errorf("finalizers are on %q, and %d entries are in etcd, want none and 3", left, n)
	}
	if finalizers := s.sh("kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.finalizers[*]}'"); finalizers != "example.com/mine example.com/mine example.com/mine" {
		t.Errorf("somebody else's finalizers became %q", finalizers)
	}
	s.eachPod(`kubectl patch "$pod" --type merge -p '{"metadata":{"finalizers":[]}}'`)
	s.sh("kubectl wait --for delete pod -l app=web --timeout 60s")
}

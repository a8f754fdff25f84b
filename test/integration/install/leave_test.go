// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

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
	encode := func(key string) string { return base64.StdEncoding.EncodeToString([]byte(key)) }
	body, err := json.Marshal(map[string]any{"key": encode("services/"), "range_end": encode("services0"), "count_only": true})
	if err != nil {
		s.Fatal(err)
	}
	request, err := http.NewRequestWithContext(s.Context(), http.MethodPost, etcd.Endpoint()+"/v3/kv/range", bytes.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // Everything was read.
	var answer struct {
		Count int `json:",string"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		s.Fatal(err)
	}
	return answer.Count
}

// held lists the objects with Usher's finalizer.
func (s *story) held() string {
	s.Helper()
	return s.sh(`kubectl get pods,registrations.usher.dev,registries.usher.dev -A -o go-template='{{range .items}}{{$o := .}}{{range .metadata.finalizers}}{{if eq . "usher.dev/registration"}}{{$o.kind}} {{end}}{{end}}{{end}}'`)
}

// An orderly uninstall: the entries, the finalizers, and then Usher are removed; after
// that a Pod, or a CloneSet with all of its Pods, can be deleted without help.
func TestLeaving(t *testing.T) {
	s, etcd, running := registered(t)
	before := s.pods()
	s.follow("install.md", "leave registries")
	if n, held := s.entries(etcd), s.held(); n != 0 || held != "" {
		t.Errorf("%d entries are left in etcd, and finalizers on %s", n, held)
	}
	s.follow("install.md", "leave hooks")
	s.until("the CloneSet without hooks to be observed", func() bool {
		return s.sh("kubectl get cloneset web -o jsonpath='{.spec.lifecycle}{.status.observedGeneration}'") == s.sh("kubectl get cloneset web -o jsonpath='{.metadata.generation}'")
	})
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

// An uninstall that skips the hook operator: deleted Pods stay until somebody removes
// the finalizers by hand. The entries stay for the next installation.
func TestLeavingInAHurry(t *testing.T) {
	s, etcd, running := registered(t)
	before := s.pods()
	running.stop()
	s.follow("install.md", "helm uninstall")
	s.remaining(before, "after an uninstall")
	if held := strings.Fields(s.held()); len(held) != 5 {
		t.Errorf("held are %v, want three Pods, a Registration and a Registry", held)
	}
	s.eachPod(`kubectl patch "$pod" --type merge -p '{"metadata":{"finalizers":["usher.dev/registration","example.com/mine"]}}'`)
	s.sh("kubectl delete pod -l app=web --wait=false")
	s.follow("install.md", "last finalizers")
	if held, n := s.held(), s.entries(etcd); held != "" || n != 3 {
		t.Errorf("held are %q, and %d entries are in etcd, want none and 3", held, n)
	}
	if finalizers := s.sh("kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.finalizers[*]}'"); finalizers != "example.com/mine example.com/mine example.com/mine" {
		t.Errorf("somebody else's finalizers became %q", finalizers)
	}
	s.eachPod(`kubectl patch "$pod" --type merge -p '{"metadata":{"finalizers":[]}}'`)
	s.sh("kubectl wait --for delete pod -l app=web --timeout 60s")
}

// After a reinstall everything is in its place: nothing is registered twice, and a Pod
// that was deleted meanwhile is drained and released.
func TestComingBack(t *testing.T) {
	s, etcd, running := registered(t)
	running.stop()
	s.follow("install.md", "helm uninstall")
	name := s.sh("kubectl get pods -l app=web -o jsonpath='{.items[0].metadata.name}'")
	s.sh("kubectl delete pod %s --wait=false", name)
	s.follow("install.md", "helm install")
	s.run("usher")
	s.sh("kubectl wait --for delete pod/%s --timeout 60s", name)
	s.available("3")
	s.until("three entries in etcd", func() bool { return s.entries(etcd) == 3 })
}

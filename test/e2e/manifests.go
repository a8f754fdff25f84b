// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
)

// SetName is the name of a story's CloneSet and of its Registration.
const SetName = "web"

// The hooks of a story's CloneSet, unless it sets others.
const (
	HookCreated   = "example.com/newly-create"
	HookInPlace   = "example.com/unready-blocker-inplace"
	HookPreDelete = "example.com/unready-blocker-delete"
)

// cloneSet is the start of every story: three Pods, updated in place one after the
// other, with a hook before each update and each deletion.
const cloneSet = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 3
  lifecycle:
    inPlaceUpdate: {labelsHandler: {example.com/unready-blocker-inplace: "true"}}
    preDelete: {labelsHandler: {example.com/unready-blocker-delete: "true"}}
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels:
        app: web
        example.com/newly-create: "true"
        example.com/unready-blocker-inplace: "true"
        example.com/unready-blocker-delete: "true"
    spec:
      containers:
      - name: main
        image: usher.test/web:v1
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

// plain is the start of every story with a workload of Kubernetes' own kinds: it knows
// nothing of Usher.
const plain = `
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: usher.test/web:v1
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
`

// workloadOf returns the type and the manifest of a workload.
func workloadOf(kind string) (schema any, manifest string) {
	schema = map[string]any{
		"Deployment": appsv1.Deployment{}, "StatefulSet": appsv1.StatefulSet{}, "DaemonSet": appsv1.DaemonSet{},
	}[kind]
	return schema, fmt.Sprintf("apiVersion: apps/v1\nkind: %s%s", kind, plain)
}

const registration = `
apiVersion: usher.dev/v1alpha1
kind: Registration
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  instance: {port: 8080}
  drain: {deadline: 5m, onDeadline: Block}
`

const hooks = `
spec:
  hooks:
    created: example.com/newly-create
    inPlaceUpdate: example.com/unready-blocker-inplace
    preDelete: example.com/unready-blocker-delete
`

// build merges documents into a new object.
func build(kind any, documents ...string) (*unstructured.Unstructured, error) {
	return stage.Merge(&unstructured.Unstructured{Object: map[string]any{}}, kind, documents...)
}

// newWorkload merges documents, the first of which is a manifest.
func newWorkload(story Story, schema any, documents []string) (*unstructured.Unstructured, error) {
	return build(schema, append(slices.Clone(documents), names(story))...)
}

// newRegistration merges documents, the first of which is a manifest.
func newRegistration(story Story, documents []string) (*unstructured.Unstructured, error) {
	return build(usherv1alpha1.Registration{}, append(slices.Clone(documents), names(story),
		fmt.Sprintf("spec: {registries: [%s], instance: {service: %s}, drain: {propagation: %s}}",
			strings.ReplaceAll(story.registries(), string(KubeProxy), string(Service)), story.Name, max(story.Propagation, 0)))...)
}

// The address of the Service of the story whose callers use it, one of those that the API
// server leaves to people.
const (
	serviceIP      = "10.96.0.7"
	serviceAddress = serviceIP + ":80"
)

// newService is the Service that a story's callers follow.
func newService(story Story) (*unstructured.Unstructured, error) {
	address := "" // the API server's choice
	if story.uses(KubeProxy) {
		address = serviceIP
	}
	return build(corev1.Service{}, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: %[1]s, name: %[1]s}, "+
		"spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}], clusterIP: %[2]q}}", story.Name, address))
}

func names(story Story) string {
	return fmt.Sprintf("metadata: {namespace: %s, name: %s}", story.Name, SetName)
}

// registryObject is the Registry of a kind.
func registryObject(kind Registry) (*unstructured.Unstructured, error) {
	spec := map[Registry]string{
		Etcd:    "etcd: {endpoints: [%q], prefix: " + etcdPrefix + "}",
		OwnEtcd: "etcd: {endpoints: [%q], prefix: " + etcdPrefix + "}",
		Consul:  "consul: {address: %q}",
		HAProxy: "haproxy: {addresses: [%q]}",
	}[kind]
	return build(usherv1alpha1.Registry{}, fmt.Sprintf("{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: %s}, spec: {%s}}",
		kind, fmt.Sprintf(spec, address(kind))))
}

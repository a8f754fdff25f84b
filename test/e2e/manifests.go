// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

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

const registration = `
apiVersion: usher.dev/v1alpha1
kind: Registration
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  instance: {port: 8080}
  hooks:
    created: example.com/newly-create
    inPlaceUpdate: example.com/unready-blocker-inplace
    preDelete: example.com/unready-blocker-delete
  drain: {deadline: 5m, onDeadline: Block}
`

// build merges documents into a new object.
func build(kind any, documents ...string) (*unstructured.Unstructured, error) {
	return stage.Merge(&unstructured.Unstructured{Object: map[string]any{}}, kind, documents...)
}

// newCloneSet is a manifest with documents merged into it.
func newCloneSet(story Story, manifest string, documents []string) (*unstructured.Unstructured, error) {
	return build(stage.CloneSet{}, append([]string{manifest, names(story)}, documents...)...)
}

// newRegistration is a manifest with documents merged into it.
func newRegistration(story Story, documents []string) (*unstructured.Unstructured, error) {
	return build(usherv1alpha1.Registration{}, append(documents, names(story),
		fmt.Sprintf("spec: {registries: [%s], instance: {service: %s}, drain: {propagation: %s}}", story.Registry, story.Name, max(story.Propagation, 0)))...)
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

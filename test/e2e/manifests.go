// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
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

// shapeOfSet tells a merge how lists are merged: those of a Pod by their merge keys, as
// "kubectl patch" does. The API has the template as raw JSON.
type shapeOfSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		appsv1alpha1.CloneSetSpec `json:",inline"`
		Template                  corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// merge merges a YAML document into an object. A null removes.
func merge(object map[string]any, document string, shape any) (map[string]any, error) {
	var change map[string]any
	if err := yaml.UnmarshalStrict([]byte(document), &change); err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, document)
	}
	return strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(object), change, shape)
}

// build merges documents.
func build(shape any, documents ...string) (*unstructured.Unstructured, error) {
	object := map[string]any{}
	for _, document := range documents {
		var err error
		if object, err = merge(object, document, shape); err != nil {
			return nil, err
		}
	}
	return &unstructured.Unstructured{Object: object}, nil
}

// newCloneSet is a manifest with documents merged into it.
func newCloneSet(story Story, manifest string, documents []string) (*unstructured.Unstructured, error) {
	return build(shapeOfSet{}, append([]string{manifest, names(story)}, documents...)...)
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

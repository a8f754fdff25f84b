// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	_ "embed"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
)

// setName is the name of a story's workload and of its Registration.
const setName = "web"

// The manifests that stories merge their documents into.
var (
	//go:embed manifests/cloneset.yaml
	cloneSet string
	//go:embed manifests/workload.yaml
	workload string
	//go:embed manifests/registration.yaml
	registration string
	//go:embed manifests/hooks.yaml
	hooks string
)

// schemas are the types of workloads of Kubernetes' own kinds.
var schemas = map[string]any{
	"Deployment": appsv1.Deployment{}, "StatefulSet": appsv1.StatefulSet{}, "DaemonSet": appsv1.DaemonSet{},
}

// build merges documents into a new object.
func build(kind any, documents ...string) (*unstructured.Unstructured, error) {
	return stage.Merge(&unstructured.Unstructured{Object: map[string]any{}}, kind, documents...)
}

// registers returns the document of a story's Registration.
func registers(story Story) string {
	return fmt.Sprintf("spec: {registries: [%s], instance: {service: %s}, drain: {propagation: %s}}",
		strings.ReplaceAll(story.registries(), string(KubeProxy), string(Service)), story.Name, max(story.Propagation.Duration, 0))
}

// The address of the Service of the story whose callers use that address. It is in the range that the
// API server does not assign by itself.
const serviceIP, serviceAddress = "10.96.0.7", "10.96.0.7:80"

// service returns the document of the Service that a story's callers follow.
func service(story Story) string {
	address, selector := "", "" // the API server's choice
	if story.uses(LabelledService) {
		selector = fmt.Sprintf(", %s: %q", usherv1alpha1.LabelInService, "true")
	}
	if story.uses(KubeProxy) {
		address = serviceIP
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: %[1]s, name: %[1]s}, "+
		"spec: {selector: {app: web%[3]s}, ports: [{port: 80, targetPort: 8080}], clusterIP: %[2]q}}", story.Name, address, selector)
}

func metadata(story Story) string {
	return fmt.Sprintf("metadata: {namespace: %s, name: %s}", story.Name, setName)
}

// registryObject returns the Registry of a kind.
func registryObject(kind Registry) (*unstructured.Unstructured, error) {
	if kind == LabelledService {
		return build(usherv1alpha1.Registry{}, fmt.Sprintf(
			"{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: %s}, spec: {service: {label: {}}}}", kind))
	}
	spec := map[Registry]string{
		Etcd:    "etcd: {endpoints: [%q], prefix: " + stage.EtcdPrefix + "}",
		OwnEtcd: "etcd: {endpoints: [%q], prefix: " + stage.EtcdPrefix + "}",
		Consul:  "consul: {address: %q}",
		HAProxy: "haproxy: {addresses: [%q]}",
	}[kind]
	return build(usherv1alpha1.Registry{}, fmt.Sprintf("{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: %s}, spec: {%s}}",
		kind, fmt.Sprintf(spec, address(kind))))
}

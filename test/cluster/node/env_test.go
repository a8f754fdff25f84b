// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExpand(t *testing.T) {
	lookup := newEnvironment([]string{"A=1", "B=two", "EMPTY="}).lookup
	for text, want := range map[string]string{
		"":                   "",
		"plain":              "plain",
		"$(A)":               "1",
		"x$(A)y$(B)z":        "x1ytwoz",
		"$(EMPTY)!":          "!",
		"$(MISSING)":         "$(MISSING)",
		"$$(A)":              "$(A)",
		"$$$(A)":             "$1",
		"$A ${A} $":          "$A ${A} $",
		"$(A":                "$(A",
		"$$":                 "$",
		"$(A)$(A)":           "11",
		"pass$$word":         "pass$word",
		"$(B) and $(UN)$(A)": "two and $(UN)1",
	} {
		if got := expand(text, lookup); got != want {
			t.Errorf("expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func TestContainerEnv(t *testing.T) {
	cfg := &ContainerConfig{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-0", Namespace: "shop", UID: "u1",
				Labels:      map[string]string{"app": "web", "a/b.c": "slash"},
				Annotations: map[string]string{"note": "hello"},
			},
			Spec: corev1.PodSpec{NodeName: "node-1", ServiceAccountName: "robot"},
		},
		Container: &corev1.Container{
			Name:  "main",
			Ports: []corev1.ContainerPort{{ContainerPort: 9000}, {ContainerPort: 9001}},
			Env: []corev1.EnvVar{
				{Name: "PLAIN", Value: "v"},
				{Name: "URL", Value: "http://$(POD_IP):$(PORT)/$(PLAIN)/$(LATER)"},
				{Name: "LATER", Value: "x"},
				{Name: "APP_VERSION", Value: "of the spec"},
				fieldEnv("NAME", "metadata.name"), fieldEnv("NAMESPACE", "metadata.namespace"), fieldEnv("UID", "metadata.uid"),
				fieldEnv("APP", "metadata.labels['app']"), fieldEnv("SLASH", "metadata.labels['a/b.c']"),
				fieldEnv("NONE", "metadata.labels['none']"), fieldEnv("NOTE", "metadata.annotations['note']"),
				fieldEnv("IP", "status.podIP"), fieldEnv("HOST", "status.hostIP"),
				fieldEnv("NODE", "spec.nodeName"), fieldEnv("ACCOUNT", "spec.serviceAccountName"),
				fieldEnv("UNKNOWN", "status.phase"),
				{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}},
			},
		},
		IP: "127.77.0.1", HostIP: "127.0.0.1",
	}
	want := []string{
		"PATH=/bin", "APP_VERSION=of the spec",
		"POD_IP=127.77.0.1", "POD_NAME=web-0", "POD_NAMESPACE=shop", "NODE_NAME=node-1", "CONTAINER_NAME=main", "PORT=9000",
		"PLAIN=v", "URL=http://127.77.0.1:9000/v/$(LATER)", "LATER=x",
		"NAME=web-0", "NAMESPACE=shop", "UID=u1", "APP=web", "SLASH=slash", "NONE=", "NOTE=hello",
		"IP=127.77.0.1", "HOST=127.0.0.1", "NODE=node-1", "ACCOUNT=robot",
	}
	if got := containerEnv(cfg, []string{"PATH=/bin", "APP_VERSION=v1"}); !slices.Equal(got, want) {
		t.Errorf("environment\n %q, want\n %q", got, want)
	}
	cfg.Container.Ports = nil
	if got := containerEnv(cfg, nil); !slices.Contains(got, "PORT=8080") {
		t.Errorf("environment without ports %q lacks PORT=8080", got)
	}
}

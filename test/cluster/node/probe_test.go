// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestSucceeds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/ok": 200, "/moved": 302, "/missing": 404, "/broken": 503}[r.URL.Path])
	}))
	defer server.Close()
	for path, want := range map[string]bool{"/ok": true, "/moved": true, "/missing": false, "/broken": false} {
		if got := succeeds(t.Context(), server.URL+path); got != want {
			t.Errorf("GET %s succeeds: %t, want %t", path, got, want)
		}
	}
	if server.Close(); succeeds(t.Context(), server.URL+"/ok") {
		t.Error("a GET of a server that is gone succeeds")
	}
}

func TestPortOf(t *testing.T) {
	spec := &corev1.Container{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}, {ContainerPort: 81}}}
	for _, port := range []struct {
		port intstr.IntOrString
		want int
	}{{intstr.FromString("http"), 80}, {intstr.FromInt32(81), 81}, {intstr.FromString("grpc"), 0}} {
		if got := portOf(spec, port.port); got != port.want {
			t.Errorf("port %s is %d, want %d", port.port.String(), got, port.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
)

// pullPod returns the pull Pod of an image on a node, which the kubelet has not seen yet.
func pullPod(node, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Minute)},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Volumes:    []corev1.Volume{{Name: PullVolume, VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}}}},
			Containers: []corev1.Container{{Name: PullContainer, Image: "usher:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: PullContainer}}},
	}
}

// renderPulls lists the pulls and waits for images in a plan.
func renderPulls(p Plan) []string {
	return slices.Concat(list.Map(p.Waits, Blocked.String),
		list.Map(p.Pulls, func(pull Pull) string { return fmt.Sprintf("pull %s on %s (%s)", pull.Image, pull.Node, pull.Policy) }),
		list.Map(p.EndPulls, func(pod *corev1.Pod) string {
			by := PulledBy(pod)
			return fmt.Sprintf("no more pull of %s on %s", by.Image, by.Node)
		}),
		list.Map(p.PullsSkipped, func(text string) string { return "skipped: " + text }))
}

// TestFullName: image names as nodes list them.
func TestFullName(t *testing.T) {
	for image, want := range map[string]string{
		"web":                   "docker.io/library/web:latest",
		"reg.io/a@sha256:12":    "reg.io/a@sha256:12",
		"reg.io/a:3@sha256:12":  "reg.io/a@sha256:12",
		"reg.io:80/a@sha256:12": "reg.io:80/a@sha256:12",
		"web@sha256:12":         "docker.io/library/web@sha256:12",
	} {
		checktest.Same(t, image, want, fullName(image))
	}
}

// TestReadPull: the annotations about images.
func TestReadPull(t *testing.T) {
	for said, want := range map[string]string{
		"":                             "{false <nil> 0 10m0s}",
		"usher.dev/images-first=false": "{true <nil> 0 10m0s}",
		"usher.dev/images-first=true":  "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-parallelism=3":                               "{false {3 false} 0 10m0s}",
		"apps.kruise.io/image-predownload-parallelism=20%":                             "{false {20 true} 0 10m0s}",
		"apps.kruise.io/image-predownload-parallelism=many":                            "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-parallelism=-1":                              "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-min-updated-ready-pods=2":                    "{false <nil> 2 10m0s}",
		"apps.kruise.io/image-predownload-min-updated-ready-pods=99999999999999999999": "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-timeout-seconds=2147483648":                  "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-timeout-seconds=-1":                          "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-timeout-seconds=90":                          "{false <nil> 0 1m30s}",
		"apps.kruise.io/image-predownload-timeout-seconds=0":                           "{false <nil> 0 10m0s}",
		"apps.kruise.io/image-predownload-timeout-seconds=99999999999999x":             "{false <nil> 0 10m0s}",
	} {
		set := &apps.CloneSet{}
		if key, value, ok := strings.Cut(said, "="); ok {
			set.Annotations = map[string]string{key: value}
		}
		spec := checktest.Must(SpecOf(set))(t)
		got := fmt.Sprintf("{%v %v %v %v}", spec.Pull.Off, spec.Pull.Parallel, spec.Pull.Ready, spec.Pull.Timeout)
		checktest.Same(t, said, want, strings.ReplaceAll(got, "&", ""))
	}
}

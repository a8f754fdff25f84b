// SPDX-License-Identifier: Apache-2.0

package revision

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// defaults are the values that a Pod's fields get if nobody sets them. A webhook may write them into a template, as
// OpenKruise's does, and a user's manifest may have them or not: either way the template asks for the same Pods.
// The field imagePullPolicy has a default that depends on the image: see pullPolicy.
//
// Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
var defaults = map[reflect.Type]map[string]any{
	reflect.TypeFor[corev1.PodSpec](): {
		"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": int64(30),
		"schedulerName": "default-scheduler", "enableServiceLinks": true,
	},
	reflect.TypeFor[corev1.Container](): {
		"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
	},
	reflect.TypeFor[corev1.ContainerPort](): {"protocol": "TCP"},
	reflect.TypeFor[corev1.Probe](): {
		"timeoutSeconds": int64(1), "periodSeconds": int64(10), "successThreshold": int64(1), "failureThreshold": int64(3),
	},
	reflect.TypeFor[corev1.HTTPGetAction]():                 {"path": "/", "scheme": "HTTP"},
	reflect.TypeFor[corev1.GRPCAction]():                    {"service": ""},
	reflect.TypeFor[corev1.ObjectFieldSelector]():           {"apiVersion": "v1"},
	reflect.TypeFor[corev1.SecurityContext]():               {"procMount": "Default"},
	reflect.TypeFor[corev1.ConfigMapVolumeSource]():         {"defaultMode": int64(0o644)},
	reflect.TypeFor[corev1.SecretVolumeSource]():            {"defaultMode": int64(0o644)},
	reflect.TypeFor[corev1.DownwardAPIVolumeSource]():       {"defaultMode": int64(0o644)},
	reflect.TypeFor[corev1.ProjectedVolumeSource]():         {"defaultMode": int64(0o644)},
	reflect.TypeFor[corev1.ServiceAccountTokenProjection](): {"expirationSeconds": int64(3600)},
	reflect.TypeFor[corev1.HostPathVolumeSource]():          {"type": ""},
	reflect.TypeFor[corev1.PersistentVolumeClaimSpec]():     {"volumeMode": "Filesystem"},
}

// removeDefaults removes the members of a normalized object of that type that have the values of their absence.
func removeDefaults(members map[string]any, as reflect.Type) {
	for key, value := range defaults[as] {
		if members[key] == value {
			delete(members, key)
		}
	}
	switch as {
	case reflect.TypeFor[corev1.PodSpec]():
		if members["serviceAccount"] == members["serviceAccountName"] { // the old name of the same field
			delete(members, "serviceAccount")
		}
	case reflect.TypeFor[corev1.Container]():
		if image, _ := members["image"].(string); image != "" && members["imagePullPolicy"] == string(pullPolicy(image)) {
			delete(members, "imagePullPolicy")
		}
	}
}

// PullPolicy returns when the kubelet pulls the container's image.
func PullPolicy(container *corev1.Container) corev1.PullPolicy {
	if container.ImagePullPolicy != "" {
		return container.ImagePullPolicy
	}
	return pullPolicy(container.Image)
}

// pullPolicy returns the default of imagePullPolicy: Always for the tag latest, which an image without tag and digest
// has, too.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	_, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	if tag == "latest" || !tagged && !digested {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// SPDX-License-Identifier: Apache-2.0

// Package write encodes what the planner decided: the manifests of new Pods and claims,
// and the patches of a Pod. It is pure; package cloneset sends them.
package write

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/launch"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
)

// PodManifest builds a Pod from the raw template of a revision, so that fields which this
// program's libraries do not know reach the API server.
func PodManifest(set *apps.CloneSet, r *revision.Revision, id string, now time.Time) *unstructured.Unstructured {
	template := runtime.DeepCopyJSON(r.Template)
	metadata, _ := template["metadata"].(map[string]any)
	spec, _ := template["spec"].(map[string]any)
	if spec == nil {
		spec = map[string]any{}
	}
	// The controller creates the Pods, so it adds the gates itself: no webhook is needed.
	own := []corev1.PodConditionType{apps.ConditionInPlaceUpdateReady}
	if hooks := lifecycle.FromSpec(set.Spec.Lifecycle); hooks.InPlaceUpdate.MarkPodNotReady || hooks.PreDelete.MarkPodNotReady {
		own = append(own, apps.ConditionPodReady)
	}
	gates, _ := spec["readinessGates"].([]any)
	for _, gate := range own {
		if indexOf(gates, "conditionType", string(gate)) < 0 {
			gates = append(gates, map[string]any{"conditionType": string(gate)})
		}
	}
	spec["readinessGates"] = gates
	mountClaims(spec, set, id)

	labels, annotations := revision.Strings(template, "labels"), revision.Strings(template, "annotations")
	launch.Hold(spec, annotations)
	maps.Copy(labels, revisionLabels(r))
	labels[apps.LabelInstanceID] = id
	labels[apps.LabelLifecycleState] = string(apps.StatePreparingNormal)
	annotations[apps.AnnotationLifecycleTimestamp] = now.UTC().Format(time.RFC3339)
	pod := manifest(set, "Pod", plan.PodName(set.Name, id), spec, labels, annotations)
	finalizers, _ := metadata["finalizers"].([]any)
	pod.SetFinalizers(list.Map(finalizers, func(f any) string { return fmt.Sprint(f) }))
	return pod
}

// WithFailures records on a new Pod how many attempts in a row have failed before it.
func WithFailures(pod *unstructured.Unstructured, before int) *unstructured.Unstructured {
	annotations := pod.GetAnnotations()
	delete(annotations, apps.AnnotationFailuresBefore) // the template's says nothing of this Pod
	if before > 0 {
		annotations[apps.AnnotationFailuresBefore] = strconv.Itoa(before)
	}
	pod.SetAnnotations(annotations)
	return pod
}

// ClaimManifest builds a claim from its raw template, so that fields which this program's
// libraries do not know reach the API server.
func ClaimManifest(set *apps.CloneSet, template *apps.ClaimTemplate, id string) (*unstructured.Unstructured, error) {
	content, err := revision.Decode(template.Raw())
	if err != nil {
		return nil, err
	}
	labels := revision.Strings(content, "labels")
	maps.Copy(labels, set.Spec.Selector.AsMeta().MatchLabels)
	labels[apps.LabelInstanceID] = id
	name := plan.ClaimName(template.Metadata.Name, set.Name, id)
	return manifest(set, "PersistentVolumeClaim", name, content["spec"], labels, revision.Strings(content, "annotations")), nil
}

// manifest builds the manifest of an object of the set.
func manifest(set *apps.CloneSet, kind, name string, spec any, labels, annotations map[string]string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind}}
	if spec != nil {
		object.Object["spec"] = spec
	}
	object.SetNamespace(set.Namespace)
	object.SetName(name)
	object.SetLabels(labels)
	if len(annotations) > 0 {
		object.SetAnnotations(annotations)
	}
	object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)})
	return object
}

// mountClaims adds the volumes of a Pod's claims. They replace volumes of the same name
// in the template, as in a StatefulSet.
func mountClaims(spec map[string]any, set *apps.CloneSet, id string) {
	volumes, _ := spec["volumes"].([]any)
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Metadata.Name
		volume := map[string]any{
			"name": name, "persistentVolumeClaim": map[string]any{"claimName": plan.ClaimName(name, set.Name, id)},
		}
		if at := indexOf(volumes, "name", name); at < 0 {
			volumes = append(volumes, volume)
		} else {
			volumes[at] = volume
		}
	}
	if len(volumes) > 0 {
		spec["volumes"] = volumes
	}
}

// indexOf returns the index of the object in a list that has this value in a field; below 0 if there is
// none.
func indexOf(objects []any, field, value string) int {
	return slices.IndexFunc(objects, func(object any) bool {
		members, _ := object.(map[string]any)
		return members[field] == value
	})
}

// revisionLabels returns a revision's labels. If the set's name is too long for a label value with the
// hash, both labels have the hash alone: only the hash is compared.
func revisionLabels(r *revision.Revision) map[string]string {
	long, short := r.Name, revision.Short(r.Name)
	if len(long) > validation.LabelValueMaxLength {
		long = short
	}
	return map[string]string{apps.LabelRevision: long, apps.LabelTemplateHash: short}
}

// PullManifest builds the Pod that has a node pull an image, as the set's own Pods would: it mounts the
// image, and its container, of Usher's image, ends at once. The set is its owner for the garbage
// collector only. Its name says what it pulls, so there is never another one. It names no user, so the
// image's own one applies, unless the platform assigns a user to each namespace.
func PullManifest(set *apps.CloneSet, pull *plan.Pull, ownImage string) (*corev1.Pod, error) {
	template, err := set.Spec.Template.Decode()
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(fmt.Appendln(nil, set.UID, pull.Node, pull.Image))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: fmt.Sprintf("%s-pull-%x", set.Name, hash[:6]),
			Labels: map[string]string{apps.LabelPullsFor: string(set.UID)},
			// A sidecar would only keep it from ending.
			Annotations: map[string]string{"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: apps.GroupVersion.String(), Kind: apps.KindCloneSet.Kind, Name: set.Name, UID: set.UID,
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: pull.Node, Tolerations: template.Spec.Tolerations, RuntimeClassName: template.Spec.RuntimeClassName,
			ServiceAccountName: template.Spec.ServiceAccountName, ImagePullSecrets: template.Spec.ImagePullSecrets,
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
			ActiveDeadlineSeconds: new(int64(pull.Timeout / time.Second)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: []corev1.Volume{{
				Name:         plan.PullVolume,
				VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: pull.Image, PullPolicy: pull.Policy}},
			}},
			Containers: []corev1.Container{{
				Name: plan.PullContainer, Image: ownImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Args:         []string{"--help"}, // ends at once
				VolumeMounts: []corev1.VolumeMount{{Name: plan.PullVolume, MountPath: "/image", ReadOnly: true}},
				// Little, but not nothing: a quota may ask for them.
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}, nil
}

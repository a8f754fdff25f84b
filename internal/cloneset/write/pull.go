// SPDX-License-Identifier: Apache-2.0

package write

import (
	"crypto/sha256"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// nobody is the user of Usher's image.
const nobody = 65532

// PullManifest builds the Pod that has a node pull an image, as the set's own Pods would: it
// mounts the image, and its container, of Usher's image, ends at once. The set is its owner
// for the garbage collector only. Its name says what it pulls, so there is never another one.
func PullManifest(set *apps.CloneSet, pull *plan.Pull, ownImage string) (*corev1.Pod, error) {
	template, err := set.Spec.Template.Decode()
	if err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	hash := sha256.Sum256(fmt.Appendln(nil, set.UID, pull.Node, pull.Image))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: fmt.Sprintf("%s-pull-%x", set.Name, hash[:6]),
			Labels: map[string]string{apps.LabelPullsFor: string(set.UID)},
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
				RunAsNonRoot: new(true), RunAsUser: new(int64(nobody)), RunAsGroup: new(int64(nobody)),
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

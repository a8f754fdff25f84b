// SPDX-License-Identifier: Apache-2.0

package podread

import (
	"crypto/sha256"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file is about Pods that are too large for the cache: users who may create Pods decide how large
// they are. The cache cuts such a Pod, and its readers can see that.

// LongestValue is the longest value of a label or an annotation that a registry may get, in bytes: the
// strictest registries accept no longer ones. The cache keeps longer ones only of Usher's own
// annotations.
const LongestValue = 512

// LongestOwnValue is the longest value of Usher's own annotations that the cache keeps, in bytes.
const LongestOwnValue = 32 << 10

// cutMark begins the replacement of a text that was cut. No text of the API begins with it, because it
// is no UTF-8.
const cutMark = "\xff"

// Cut returns the replacement of a text that is too long to be kept. Different texts have different
// ones, so that a change shows, and no text of the API is equal to one.
func Cut(text string) string {
	if IsCut(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return cutMark + string(sum[:])
}

// IsCut reports whether a text is the replacement of a longer one.
func IsCut(text string) bool {
	return strings.HasPrefix(text, cutMark) && len(text) == len(cutMark)+sha256.Size
}

// partial is the manager in the one managed field entry of a partial Pod. The API server accepts no
// manager with that name, because it has an unprintable character.
const partial = "usher\x00partial"

// MarkPartial marks a Pod in the cache as lacking a part that writes depend on.
func MarkPartial(pod *corev1.Pod) {
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: partial}}
}

// IsPartial reports whether a Pod lacks a part that writes depend on. Before a write, such a Pod has to
// be read from the API server.
func IsPartial(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == partial })
}

// SPDX-License-Identifier: Apache-2.0

package podread

import (
	"crypto/sha256"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file is about Pods that are too large to be kept as they are: anybody who may create Pods decides
// how large they are. The cache cuts such a Pod, and its readers see that it did.

// LongestValue is the longest value of a label or an annotation that a registry may get, in bytes: the
// strictest registries take no longer ones. The cache keeps no longer ones, except of Usher's own.
const LongestValue = 512

// LongestOwnValue is the longest value of an annotation of Usher's that the cache keeps, in bytes.
const LongestOwnValue = 32 << 10

// cutMark begins what stands for a text that was cut: no text of the API does, as it is no UTF-8.
const cutMark = "\xff"

// Cut stands for a text that is too long to be kept. It is the same for the same text only, so that a
// change shows, and is equal to no text of the API.
func Cut(text string) string {
	if IsCut(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return cutMark + string(sum[:])
}

// IsCut reports whether a text stands for a longer one.
func IsCut(text string) bool {
	return strings.HasPrefix(text, cutMark) && len(text) == len(cutMark)+sha256.Size
}

// partial is the manager of the one record of field managers that a partial Pod has. The API server takes
// no manager of that name, because it has a character that cannot be printed.
const partial = "usher\x00partial"

// MarkPartial notes on a Pod in the cache that it lacks something which writes depend on.
func MarkPartial(pod *corev1.Pod) {
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: partial}}
}

// IsPartial reports whether a Pod lacks something which writes depend on: whoever writes to it reads it
// from the API server first.
func IsPartial(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == partial })
}

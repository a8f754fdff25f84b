// SPDX-License-Identifier: Apache-2.0

package revision

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// canonical returns a template as a Go program encodes it that reads it into the types of Kubernetes 1.33 or older.
// OpenKruise compares a set's template in this form with the bytes of a revision, and rolls all Pods out if they
// differ. Fields that the types do not have stay. The result shares unchanged parts with the argument.
func canonical(template map[string]any) map[string]any {
	out, _ := canonicalAs(template, reflect.TypeFor[corev1.PodTemplateSpec]()).(map[string]any)
	return out
}

// always are the members that such a program writes even if they are empty, since their Go types are no pointers.
var always = map[reflect.Type]map[string]any{
	reflect.TypeFor[metav1.ObjectMeta]():                    {"creationTimestamp": nil},
	reflect.TypeFor[corev1.PodTemplateSpec]():               {"metadata": map[string]any{}, "spec": map[string]any{}},
	reflect.TypeFor[corev1.Container]():                     {"resources": map[string]any{}},
	reflect.TypeFor[corev1.ResourceFieldSelector]():         {"divisor": "0"},
	reflect.TypeFor[corev1.PersistentVolumeClaimTemplate](): {"metadata": map[string]any{}, "spec": map[string]any{}},
	reflect.TypeFor[corev1.PersistentVolumeClaimSpec]():     {"resources": map[string]any{}},
}

// canonicalAs encodes a value of the Go type; nil means an unknown type.
func canonicalAs(value any, as reflect.Type) any {
	as = pointed(as)
	switch v := value.(type) {
	case map[string]any:
		return canonicalMap(v, as)
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			out[i] = canonicalAs(element, elementOf(as))
		}
		return out
	}
	return scalarAs(value, as)
}

func canonicalMap(members map[string]any, as reflect.Type) map[string]any {
	out := make(map[string]any, len(members))
	for key, value := range members {
		of := memberOf(as, key)
		encoded := canonicalAs(value, of.as)
		if (encoded != nil || of.as == nil) && (!of.omitted || !isEmpty(encoded, of.as)) {
			out[key] = encoded
		}
	}
	for key, value := range always[as] {
		if _, there := out[key]; !there {
			out[key] = canonicalAs(value, memberOf(as, key).as)
		}
	}
	return out
}

// isEmpty reports whether a program leaves out an encoded value whose field may be left out.
func isEmpty(value any, as reflect.Type) bool {
	switch v := value.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0 && as.Kind() == reflect.Map
	}
	return value == false || value == "" || value == int64(0)
}

// SPDX-License-Identifier: Apache-2.0

package revision

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Normalize returns the canonical form of templates that mean the same Pods: without null
// and empty members, without fields whose value means the same as their absence, with
// quantities as Kubernetes spells them, and with whole numbers as integers.
//
// Users write "1000m" and "hostNetwork: false"; a program that writes the template back
// from its own types, as OpenKruise does in its revisions, writes "1" and omits the
// field. Unknown fields stay as they are. The result shares unchanged parts with the
// argument.
func Normalize(template map[string]any) any {
	return normalizeAs(template, reflect.TypeFor[corev1.PodTemplateSpec]())
}

// normalizeAs normalizes a value of the Go type; nil means an unknown type.
func normalizeAs(value any, as reflect.Type) any {
	for as != nil && as.Kind() == reflect.Pointer {
		as = as.Elem()
	}
	if as == reflect.TypeFor[resource.Quantity]() {
		if q, ok := Quantity(value); ok {
			return q.String()
		}
		return value // unreadable: it stays
	}
	switch v := value.(type) {
	case map[string]any:
		return normalizeMap(v, as)
	case []any:
		return normalizeList(v, as)
	case float64:
		// JSON does not distinguish 1.0 from 1, so a revision may read back as the other.
		if math.Abs(v) < 1<<63 && v == math.Trunc(v) {
			return int64(v)
		}
	}
	return value
}

func normalizeMap(members map[string]any, as reflect.Type) any {
	out := make(map[string]any, len(members))
	for key, member := range members {
		of := memberOf(as, key)
		m := normalizeAs(member, of.as)
		if m != nil && (!of.omitted || !isZero(m, of.as)) {
			out[key] = m
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func normalizeList(members []any, as reflect.Type) any {
	if len(members) == 0 {
		return nil
	}
	var of reflect.Type
	if as != nil && as.Kind() == reflect.Slice {
		of = as.Elem()
	}
	out := make([]any, len(members))
	for i, member := range members {
		out[i] = normalizeAs(member, of)
	}
	return out
}

// member is what the types say about a member of an object.
type member struct {
	// as is the member's type; nil if unknown.
	as reflect.Type
	// omitted means that the member means nothing when it is zero.
	omitted bool
}

func memberOf(as reflect.Type, key string) member {
	switch {
	case as == nil:
	case as.Kind() == reflect.Map:
		return member{as: as.Elem()}
	case as.Kind() == reflect.Struct:
		return fields()[as][key]
	}
	return member{}
}

// fields are the members of every struct of a Pod template, by JSON name. They are looked
// up for each revision in each pass of each set.
var fields = sync.OnceValue(func() map[reflect.Type]map[string]member {
	table := map[reflect.Type]map[string]member{}
	collect(table, reflect.TypeFor[corev1.PodTemplateSpec]())
	return table
})

// collect adds a type and the types that it contains to the table.
func collect(table map[reflect.Type]map[string]member, as reflect.Type) {
	switch as.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		collect(table, as.Elem())
	case reflect.Struct:
		if table[as] == nil {
			table[as] = map[string]member{}
			collectFields(table, table[as], as)
		}
	}
}

func collectFields(table map[reflect.Type]map[string]member, into map[string]member, as reflect.Type) {
	for i := range as.NumField() {
		field := as.Field(i)
		name, flags, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name != "":
			optional := strings.Contains(flags, "omitempty") || strings.Contains(flags, "omitzero")
			into[name] = member{as: field.Type, omitted: optional && field.Type.Kind() != reflect.Pointer}
			collect(table, field.Type)
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			collectFields(table, into, field.Type)
		}
	}
}

// isZero reports whether a normalized value is its type's zero.
func isZero(value any, as reflect.Type) bool {
	if as == reflect.TypeFor[resource.Quantity]() {
		return value == "0"
	}
	return value == false || value == "" || value == int64(0)
}

// Quantity reads a quantity, which may be written as a number.
func Quantity(value any) (resource.Quantity, bool) {
	switch value.(type) {
	case string, int64, float64:
		q, err := resource.ParseQuantity(fmt.Sprint(value))
		return q, err == nil
	}
	return resource.Quantity{}, false
}

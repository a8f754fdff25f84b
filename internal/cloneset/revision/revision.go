// SPDX-License-Identifier: Apache-2.0

// Package revision makes and compares the revisions of a Pod template. It is pure. A
// revision keeps the raw template, so that fields which this program's libraries do not
// know survive the way through a ControllerRevision to a Pod.
package revision

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/usher-dev/usher/internal/encode"
)

// Revision is one version of a set's template.
type Revision struct {
	// Name of the ControllerRevision, "<set>-<hash>".
	Name string
	// Number orders revisions, larger is newer.
	Number int64
	// Template is the raw template. Do not change it.
	Template map[string]any
}

// Of reads a ControllerRevision's data. An unreadable one stays known, without a template,
// so that its Pods are not mistaken for Pods of no revision.
func Of(name string, number int64, data []byte) *Revision {
	template, _ := Template(data) // nil if it fails
	return &Revision{Name: name, Number: number, Template: template}
}

// Newest returns the newest revision that holds the template, nil if none does, and the
// largest number of them all.
func Newest(known map[string]*Revision, template map[string]any) (same *Revision, last int64) {
	for _, r := range known {
		last = max(last, r.Number)
		newer := same == nil || r.Number > same.Number || (r.Number == same.Number && r.Name > same.Name)
		if newer && r.Template != nil && Equal(r.Template, template) {
			same = r
		}
	}
	return same, last
}

// ErrNoTemplate means that the data of a ControllerRevision holds no template.
var ErrNoTemplate = errors.New("revision holds no spec.template")

// ErrUnstable means that a template does not survive the way into a ControllerRevision
// and back, so no revision would ever be found to hold it.
var ErrUnstable = errors.New("the template is a different one after it was stored in a ControllerRevision and read back")

// directive makes a strategic merge replace the template. It is not part of the template:
// a client that undoes a rollout by merging a revision's data into a set leaves it there.
const directive = "$patch"

// Data encodes a template as the data of a ControllerRevision, byte by byte as OpenKruise does: see canonical. Errors:
// ErrNoTemplate, or ErrUnstable if Template would not return an Equal template.
func Data(template map[string]any) ([]byte, error) {
	if len(template) == 0 {
		return nil, ErrNoTemplate
	}
	patch := canonical(template)
	patch[directive] = "replace"
	data := encode.JSON(map[string]any{"spec": map[string]any{"template": patch}})
	back, err := Template(data)
	if err != nil {
		return nil, err
	}
	if !Equal(back, template) {
		return nil, ErrUnstable
	}
	return data, nil
}

// Decode parses a raw template. Whole numbers stay whole, however large.
func Decode(raw []byte) (map[string]any, error) {
	var template map[string]any
	if err := utiljson.Unmarshal(raw, &template); err != nil {
		return nil, fmt.Errorf("decode template: %w", err)
	}
	delete(template, directive)
	return template, nil
}

// Strings returns the labels or annotations of a template. A null means absent: no Pod gets
// it either.
func Strings(template map[string]any, field string) map[string]string {
	metadata, _ := template["metadata"].(map[string]any)
	values, _ := metadata[field].(map[string]any)
	out := make(map[string]string, len(values))
	for key, value := range values {
		if text, ok := value.(string); ok {
			out[key] = text
		}
	}
	return out
}

// Template decodes the data of a ControllerRevision.
func Template(data []byte) (map[string]any, error) {
	var patch struct {
		Spec struct {
			Template map[string]any `json:"template"`
		} `json:"spec"`
	}
	if err := utiljson.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("decode revision: %w", err)
	}
	delete(patch.Spec.Template, directive)
	if len(patch.Spec.Template) == 0 {
		return nil, ErrNoTemplate
	}
	return patch.Spec.Template, nil
}

// Hash names a template; collisions counts the names of the set that other templates had taken already.
func Hash(template map[string]any, collisions int32) string {
	hash := fnv.New32a()
	hash.Write(encode.JSON(Normalize(template)))
	if collisions > 0 {
		hash.Write([]byte(strconv.Itoa(int(collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash.Sum32()), 10))
}

// Equal reports whether two templates ask for the same Pods, however they are written:
// see Normalize.
func Equal(a, b map[string]any) bool { return reflect.DeepEqual(Normalize(a), Normalize(b)) }

// Same compares two revision labels. The long form "<set>-<hash>" and the short form
// "<hash>" are equal.
func Same(a, b string) bool { return a != "" && Short(a) == Short(b) }

// Short returns the hash of a revision label.
func Short(label string) string { return label[strings.LastIndex(label, "-")+1:] }

// Normalize returns the one form of all templates that mean the same Pods: without null
// and empty members, without fields whose value means the same as their absence, with
// quantities as Kubernetes spells them, and with whole numbers as integers.
//
// Users write "1000m" and "hostNetwork: false"; a program that writes the template back
// from its own types, as OpenKruise does in its revisions, writes "1" and omits the
// field; a webhook may write defaults such as "protocol: TCP" into it. Unknown fields stay as
// they are. The result shares unchanged parts with the argument.
func Normalize(template map[string]any) any {
	return normalizeAs(template, reflect.TypeFor[corev1.PodTemplateSpec]())
}

// normalizeAs normalizes a value of the Go type; nil means an unknown type.
func normalizeAs(value any, as reflect.Type) any {
	as = pointed(as)
	switch v := value.(type) {
	case map[string]any:
		return normalizeMap(v, as)
	case []any:
		return normalizeList(v, as)
	}
	return scalarAs(value, as)
}

// scalarAs returns quantities as Kubernetes spells them, and whole numbers as integers; anything else is unchanged.
func scalarAs(value any, as reflect.Type) any {
	if as == reflect.TypeFor[resource.Quantity]() {
		q, err := resource.ParseQuantity(fmt.Sprint(value)) // it may be written as a number
		if err != nil {
			return value // unreadable: it stays
		}
		return q.String()
	}
	// JSON does not distinguish 1.0 from 1, so a revision may read back as the other.
	if v, ok := value.(float64); ok && math.Abs(v) < 1<<63 && v == math.Trunc(v) {
		return int64(v)
	}
	return value
}

// pointed returns the type that a pointer type points to, or the type itself; nil for nil.
func pointed(as reflect.Type) reflect.Type {
	for as != nil && as.Kind() == reflect.Pointer {
		as = as.Elem()
	}
	return as
}

// elementOf returns the type of a list's elements; nil if that is unknown.
func elementOf(as reflect.Type) reflect.Type {
	if as != nil && as.Kind() == reflect.Slice {
		return as.Elem()
	}
	return nil
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
	removeDefaults(out, as)
	if len(out) == 0 {
		return nil
	}
	return out
}

func normalizeList(members []any, as reflect.Type) any {
	if len(members) == 0 {
		return nil
	}
	out := make([]any, len(members))
	for i, member := range members {
		out[i] = normalizeAs(member, elementOf(as))
	}
	return out
}

// member describes a member of an object, according to its Go type.
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
		return fieldsOf(as)[key]
	}
	return member{}
}

// known caches the fields of structs: they are needed for each revision in each pass over each set.
var known sync.Map

// fieldsOf returns the members of a struct by JSON name.
func fieldsOf(as reflect.Type) map[string]member {
	if found, ok := known.Load(as); ok {
		return found.(map[string]member)
	}
	out := map[string]member{}
	for field := range as.Fields() {
		name, flags, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name != "":
			optional := strings.Contains(flags, "omitempty") || strings.Contains(flags, "omitzero")
			out[name] = member{as: field.Type, omitted: optional && field.Type.Kind() != reflect.Pointer}
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			maps.Copy(out, fieldsOf(field.Type))
		}
	}
	known.Store(as, out)
	return out
}

// isZero reports whether a normalized value is its type's zero.
func isZero(value any, as reflect.Type) bool {
	if as == reflect.TypeFor[resource.Quantity]() {
		return value == "0"
	}
	return value == false || value == "" || value == int64(0)
}

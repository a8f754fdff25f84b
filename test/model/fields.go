// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// namedFields are the fields of an object that a patch names, each with the fields that it names in it.
// A field without any is named as a whole. A patch changes no other field, so only these are encoded
// for it and decoded again.
type namedFields map[string]namedFields

// fieldsOf returns the fields that a patch names; nil if it may change any.
func fieldsOf(patchType types.PatchType, patch []byte) namedFields {
	if patchType == types.JSONPatchType {
		return fieldsOfOperations(patch)
	}
	var body map[string]any
	if json.Unmarshal(patch, &body) != nil {
		return nil
	}
	return fieldsOfBody(body)
}

// fieldsOfBody returns the fields of a patch that has the form of the object.
func fieldsOfBody(body map[string]any) namedFields {
	named := namedFields{}
	for key, value := range body {
		if directive, field, about := strings.Cut(key, "/"); strings.HasPrefix(directive, "$") {
			if !about {
				return nil // it is about all fields
			}
			named[field] = nil // as a whole
			continue
		}
		if _, already := named[key]; already {
			continue
		}
		inner, _ := value.(map[string]any)
		named[key] = fieldsOfBody(inner)
	}
	return named
}

// fieldsOfOperations returns the fields in the paths of a JSON patch.
func fieldsOfOperations(patch []byte) namedFields {
	var operations []struct{ Path, From string }
	if json.Unmarshal(patch, &operations) != nil {
		return nil
	}
	named := namedFields{}
	for _, o := range operations {
		named.add(o.Path)
		if o.From != "" {
			named.add(o.From)
		}
	}
	if _, all := named[""]; all {
		return nil
	}
	return named
}

// add adds the field that a JSON pointer names, down to the fields of a field.
func (f namedFields) add(pointer string) {
	_, path, _ := strings.Cut(pointer, "/")
	outer, path, deeper := strings.Cut(path, "/")
	inner, _, _ := strings.Cut(path, "/")
	known, already := f[outer]
	switch {
	case !deeper:
		f[outer] = nil
	case !already:
		f[outer] = namedFields{inner: nil}
	case known != nil:
		known[inner] = nil
	}
}

// copyTo copies the fields from one struct to another of its type, and reports whether it knows all of them.
func (f namedFields) copyTo(to, from reflect.Value) bool {
	known := fieldsByName(to.Type())
	for name, inner := range f {
		at, ok := known[name]
		if !ok {
			return false
		}
		field := to.Field(at)
		if len(inner) == 0 || field.Kind() != reflect.Struct || !inner.copyTo(field, from.Field(at)) {
			field.Set(from.Field(at))
		}
	}
	return true
}

// merge applies a merge patch (RFC 7386) to a struct, whose maps and slices it replaces. It reports
// whether it could: invalid and rare patches are left to the real server's library.
func merge(into reflect.Value, patch []byte) bool {
	var body map[string]json.RawMessage
	if json.Unmarshal(patch, &body) != nil || body == nil {
		return false
	}
	known := fieldsByName(into.Type())
	for name, value := range body {
		if at, ok := known[name]; !ok || !mergeField(into.Field(at), value) {
			return false
		}
	}
	return true
}

func mergeField(field reflect.Value, value json.RawMessage) bool {
	switch isObject, labels := value[0] == '{', field.Type() == reflect.TypeFor[map[string]string](); {
	case string(value) == "null":
		field.SetZero()
		return true
	case isObject && field.Kind() == reflect.Struct:
		return merge(field, value)
	case isObject && labels:
		return mergeLabels(field, value)
	case isObject, bytes.Contains(value, []byte("null")): // a patch removes nulls from lists
		return false
	}
	fresh := reflect.New(field.Type())
	if json.Unmarshal(value, fresh.Interface()) != nil {
		return false
	}
	field.Set(fresh.Elem())
	return true
}

// mergeLabels applies a merge patch to labels or annotations.
func mergeLabels(field reflect.Value, value json.RawMessage) bool {
	var changes map[string]*string
	if json.Unmarshal(value, &changes) != nil {
		return false
	}
	labels := map[string]string{}
	for key, text := range field.Seq2() {
		labels[key.String()] = text.String()
	}
	for key, text := range changes {
		if delete(labels, key); text != nil {
			labels[key] = *text
		}
	}
	field.Set(reflect.ValueOf(labels))
	return true
}

// typeFields caches fieldsByName.
var typeFields sync.Map

// coder is the interface of types that decode themselves.
var coder = reflect.TypeFor[json.Unmarshaler]()

// fieldsByName returns the fields of a struct by their names in JSON, without those of embedded
// structs; none for a struct that decodes itself.
func fieldsByName(of reflect.Type) map[string]int {
	if known, ok := typeFields.Load(of); ok {
		return known.(map[string]int)
	}
	byName := map[string]int{}
	for i := range of.NumField() {
		if reflect.PointerTo(of).Implements(coder) {
			break
		}
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			byName[name] = i
		}
	}
	typeFields.Store(of, byName)
	return byName
}

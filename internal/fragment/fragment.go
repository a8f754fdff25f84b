// SPDX-License-Identifier: Apache-2.0

// Package fragment compares objects with fragments of YAML, and texts with patterns, as stories write them.
package fragment

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// anything stands for any text in a pattern.
const anything = "..."

// Fits reports whether a text is as the pattern says, in which "..." stands for any text, also for none.
func Fits(pattern, text string) bool {
	parts := strings.Split(pattern, anything)
	rest, ok := strings.CutPrefix(text, parts[0])
	if len(parts) == 1 || !ok {
		return ok && rest == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// Lacks describes an object that does not have the fields of a YAML document; empty if it has them. null stands for a
// field that is not there. Its errors say what is wrong with the document.
func Lacks(object any, document string) (string, error) {
	var want map[string]any
	if err := yaml.Unmarshal([]byte(document), &want); err != nil {
		return "", fmt.Errorf("%q is no YAML: %w", document, err)
	}
	if len(want) == 0 {
		return "", fmt.Errorf("%q names no field", document)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return "", err
	}
	if includes(fields, want) {
		return "", nil
	}
	return fmt.Sprintf("it is %v", fields), nil
}

// includes reports whether a value has these fields and values. Of a list of objects some may be missing, and the order
// does not matter; a list of anything else has to be whole.
func includes(whole, part any) bool {
	switch part := part.(type) {
	case map[string]any:
		fields, _ := whole.(map[string]any)
		for name, want := range part {
			if !includes(fields[name], want) {
				return false
			}
		}
		return true
	case []any:
		items, _ := whole.([]any)
		return (len(items) == len(part) || slices.ContainsFunc(items, isObject)) && len(items) >= len(part) &&
			!slices.ContainsFunc(part, func(want any) bool {
				return !slices.ContainsFunc(items, func(item any) bool { return includes(item, want) })
			})
	case string:
		return whole != nil && Fits(part, fmt.Sprint(whole))
	}
	return fmt.Sprint(whole) == fmt.Sprint(part)
}

func isObject(item any) bool {
	_, ok := item.(map[string]any)
	return ok
}

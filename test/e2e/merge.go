// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// merge merges a YAML document into an object, as "kubectl apply" does: maps by key,
// lists with named items by name, and everything else as a whole. A null removes.
func merge(object map[string]any, document string) (map[string]any, error) {
	var change map[string]any
	if err := yaml.UnmarshalStrict([]byte(document), &change); err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, document)
	}
	return mergeMaps(object, change), nil
}

func mergeMaps(old, change map[string]any) map[string]any {
	merged := map[string]any{}
	for key, value := range old {
		merged[key] = value
	}
	for key, value := range change {
		if value == nil {
			delete(merged, key)
			continue
		}
		merged[key] = mergeValues(merged[key], value)
	}
	return merged
}

func mergeValues(old, change any) any {
	switch change := change.(type) {
	case map[string]any:
		was, _ := old.(map[string]any)
		return mergeMaps(was, change)
	case []any:
		was, _ := old.([]any)
		if named(was) && named(change) {
			return mergeLists(was, change)
		}
		return change
	}
	return change
}

func named(list []any) bool {
	for _, item := range list {
		if nameOf(item) == "" {
			return false
		}
	}
	return true
}

func nameOf(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// mergeLists keeps the order and appends new items.
func mergeLists(old, change []any) []any {
	merged := append([]any(nil), old...)
	for _, item := range change {
		found := false
		for i := range merged {
			if nameOf(merged[i]) == nameOf(item) {
				merged[i], found = mergeValues(merged[i], item), true
			}
		}
		if !found {
			merged = append(merged, item)
		}
	}
	return merged
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

type schema = apiextensionsv1.JSONSchemaProps

// apiPage lists every field of the CRDs.
func apiPage(_ context.Context, root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "*.yaml"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no CRDs in config/crd: %w", err)
	}
	var page strings.Builder
	fmt.Fprintf(&page, frontMatter, 1, "API", "Every field, as `kubectl explain` shows them. Fields in bold are required.")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		for _, version := range crd.Spec.Versions {
			top := version.Schema.OpenAPIV3Schema
			fmt.Fprintf(&page, "## %s\n\n`%s/%s`, %s. %s\n\n", crd.Spec.Names.Kind, crd.Spec.Group, version.Name,
				strings.ToLower(string(crd.Spec.Scope)), cell(top.Description))
			for _, part := range []string{"spec", "status"} {
				object := top.Properties[part]
				fields(&page, crd.Spec.Names.Kind, part, &object)
			}
		}
	}
	return page.String(), nil
}

// fields writes the table of an object, and after it those of the objects in it.
func fields(page *strings.Builder, kind, path string, object *schema) {
	fmt.Fprintf(page, "### %s %s {#%s}\n\n%s\n\n", kind, path, anchor(kind, path), cell(object.Description))
	page.WriteString("| Field | Type | Meaning |\n|---|---|---|\n")
	names := slices.Sorted(maps.Keys(object.Properties))
	for _, name := range names {
		field := object.Properties[name]
		label := "`" + name + "`"
		if slices.Contains(object.Required, name) {
			label = "**" + label + "**"
		}
		fmt.Fprintf(page, "| %s | %s | %s |\n", label, typeOf(kind, path+"."+name, &field), meaning(&field))
	}
	page.WriteString("\n")
	rules(page, object)
	for _, name := range names {
		field := object.Properties[name]
		if inner := within(&field); inner != nil {
			fields(page, kind, path+"."+name, inner)
		}
	}
}

// rules writes what admission says about an object that breaks a rule of it.
func rules(page *strings.Builder, object *schema) {
	var messages []string
	for _, rule := range object.XValidations {
		messages = append(messages, cell(rule.Message))
	}
	if len(messages) == 0 {
		return
	}
	slices.Sort(messages)
	fmt.Fprintf(page, "What is refused:\n\n- %s\n\n", strings.Join(slices.Compact(messages), "\n- "))
}

// within is the object of a field, or of the elements of its list.
func within(field *schema) *schema {
	if field.Items != nil && field.Items.Schema != nil {
		field = field.Items.Schema
	}
	if len(field.Properties) == 0 || field.XPreserveUnknownFields != nil {
		return nil // what it leaves open is Kubernetes' own
	}
	return field
}

func typeOf(kind, path string, field *schema) string {
	name := cmp.Or(field.Type, "any")
	if field.XIntOrString {
		name = "integer or string"
	}
	if field.Type == "array" && field.Items != nil {
		name = "list of " + cmp.Or(field.Items.Schema.Type, "any")
	}
	if field.AdditionalProperties != nil && field.AdditionalProperties.Schema != nil {
		name = "map of " + field.AdditionalProperties.Schema.Type
	}
	if within(field) != nil {
		return fmt.Sprintf("[%s](#%s)", name, anchor(kind, path))
	}
	return name
}

// meaning is a field's description, and what its schema adds to that.
func meaning(field *schema) string {
	text := []string{cell(field.Description)}
	if field.Default != nil && field.Type != "object" && !strings.Contains(field.Description, "Default") {
		text = append(text, fmt.Sprintf("Default: `%s`.", field.Default.Raw))
	}
	var values []string
	for _, value := range field.Enum {
		values = append(values, "`"+strings.Trim(string(value.Raw), `"`)+"`")
	}
	if len(values) > 0 {
		text = append(text, "One of "+strings.Join(values, ", ")+".")
	}
	if field.Minimum != nil && field.Maximum != nil {
		text = append(text, fmt.Sprintf("From %v to %v.", *field.Minimum, *field.Maximum))
	}
	return strings.TrimSpace(strings.Join(text, " "))
}

func anchor(kind, path string) string {
	return strings.ToLower(kind + "-" + strings.ReplaceAll(path, ".", "-"))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/list"
)

const frontMatter = "---\nweight: %d\n---\n# %s\n\n%s\n\n"

// flagsPage returns usher --help as a table.
func flagsPage(ctx context.Context, root string) (string, error) {
	help, err := helpOf(ctx, root, ".", "./cmd/usher")
	if err != nil {
		return "", err
	}
	var page strings.Builder
	fmt.Fprintf(&page, frontMatter, 2, "Flags of usher", "The chart sets those that it has values for; `extraArgs` adds others.\n\n| Flag | Meaning |\n|---|---|")
	flags := regexp.MustCompile(`(?m)^  -(\S+)(?: (\S+))?\n    \t(.*(?:\n    \t.*)*)`).FindAllStringSubmatch(help, -1)
	if len(flags) == 0 {
		return "", fmt.Errorf("no flags in\n%s", help)
	}
	for _, flag := range flags {
		name := strings.TrimSpace("--" + flag[1] + " " + flag[2])
		fmt.Fprintf(&page, "| `%s` | %s |\n", name, cell(flag[3]))
	}
	return page.String(), nil
}

// pluginPage returns the help of every command of kubectl usher.
func pluginPage(ctx context.Context, root string) (string, error) {
	help, err := helpOf(ctx, root, "cmd/kubectl-usher", ".")
	if err != nil {
		return "", err
	}
	_, list, _ := strings.Cut(help, " [command]\n")
	list, _, _ = strings.Cut(list, "Additional Commands:") // help and completion, cobra's own
	commands := regexp.MustCompile(`(?m)^  ([a-z]+) +\S`).FindAllStringSubmatch(list, -1)
	if len(commands) == 0 {
		return "", fmt.Errorf("no commands in\n%s", help)
	}
	options, err := printed(ctx, root, "cmd/kubectl-usher", ".", "options")
	if err != nil {
		return "", err
	}
	_, kubectl, found := strings.Cut(options, "\n\n")
	if !found {
		return "", fmt.Errorf("no flags in\n%s", options)
	}
	var page strings.Builder
	fmt.Fprintf(&page, frontMatter, 3, "kubectl usher: every command", "[The plugin](../plugin.md) says what it is for.")
	for _, command := range commands {
		help, err := helpOf(ctx, root, "cmd/kubectl-usher", ".", command[1])
		if err != nil {
			return "", err
		}
		help, _, _ = strings.Cut(help, "\nkubectl usher options lists")
		fmt.Fprintf(&page, "## %s\n\n```text\n%s\n```\n\n", command[1], strings.TrimSpace(help))
	}
	fmt.Fprintf(&page, "## Flags of every command\n\n```text\n%s\n```\n", strings.TrimRight(kubectl, "\n"))
	return page.String(), nil
}

// helpOf returns the output of a module's program for --help, from both streams.
func helpOf(ctx context.Context, root, module, program string, args ...string) (string, error) {
	return printed(ctx, root, module, program, append(args, "--help")...)
}

// printed returns the output of a module's program, from both streams.
func printed(ctx context.Context, root, module, program string, args ...string) (string, error) {
	args = append([]string{"run", program}, args...)
	out, err := command(ctx, filepath.Join(root, module), "go", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), module, err, out)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(string(out), home, "$HOME"), nil
}

// cell returns a text as the cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(strings.Join(strings.Fields(text), " "))
}

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

// fields writes the table of an object, and then the tables of the objects in it.
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

// rules writes the messages of admission rules of an object.
func rules(page *strings.Builder, object *schema) {
	messages := list.Map(object.XValidations, func(rule apiextensionsv1.ValidationRule) string { return cell(rule.Message) })
	if len(messages) == 0 {
		return
	}
	slices.Sort(messages)
	fmt.Fprintf(page, "What is refused:\n\n- %s\n\n", strings.Join(slices.Compact(messages), "\n- "))
}

// within returns the object of a field, or of the elements of its list.
func within(field *schema) *schema {
	if field.Items != nil && field.Items.Schema != nil {
		field = field.Items.Schema
	}
	if len(field.Properties) == 0 || field.XPreserveUnknownFields != nil {
		return nil // an object without properties is one of Kubernetes' own
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

// meaning returns a field's description, with the additions of its schema.
func meaning(field *schema) string {
	text := []string{cell(field.Description)}
	if field.Default != nil && field.Type != "object" && !strings.Contains(field.Description, "Default") {
		text = append(text, fmt.Sprintf("Default: `%s`.", field.Default.Raw))
	}
	values := list.Map(field.Enum, func(value apiextensionsv1.JSON) string { return "`" + strings.Trim(string(value.Raw), `"`) + "`" })
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

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The table of values is between these lines of the chart's README.
const tableBegins, tableEnds = "<!-- values: make generate writes this table from values.yaml -->\n", "<!-- end of values -->\n"

// writeReadme rewrites the table of values in the chart's README.
func writeReadme(root string) error {
	chart := filepath.Join(root, "charts", "usher")
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return fmt.Errorf("read the values: %w", err)
	}
	table, err := tableOf(values)
	if err != nil {
		return err
	}
	file := filepath.Join(chart, "README.md")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the chart's README: %w", err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return fmt.Errorf("%s lacks the lines %q and %q, between which the table of values belongs", file, tableBegins, tableEnds)
	}
	return writeFile(file, before+tableBegins+table+tableEnds+after)
}

// tableOf returns a table of values, their defaults, and their comments.
func tableOf(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", fmt.Errorf("values.yaml: %w", err)
	}
	var table strings.Builder
	table.WriteString("| Value | Default | Meaning |\n|---|---|---|\n")
	err := rows(&table, "", document.Content[0])
	return table.String(), err
}

// rows writes a row for each value below a mapping. A mapping without comments on its members is a
// value itself.
func rows(table *strings.Builder, prefix string, mapping *yaml.Node) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name, meaning := prefix+key.Value, said(key)
		if value.Kind == yaml.MappingNode && explained(value) {
			if err := rows(table, name+".", value); err != nil {
				return err
			}
			continue
		}
		if meaning == "" {
			return fmt.Errorf("values.yaml: line %d: no comment says what %s means: write one above it", key.Line, name)
		}
		standard, err := inOneLine(value)
		if err != nil {
			return fmt.Errorf("values.yaml: %s: %w", name, err)
		}
		fmt.Fprintf(table, "| `%s` | `%s` | %s |\n", name, standard, meaning)
	}
	return nil
}

// explained reports whether a comment is about a member.
func explained(mapping *yaml.Node) bool {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].HeadComment != "" {
			return true
		}
	}
	return false
}

// page matches a link to a page of the documentation, which the chart's README is no part of.
var page = regexp.MustCompile(`docs/([a-z/-]+)\.md`)

// said returns the comment above a key as a cell of a table, without comments that are separated from
// it by an empty line.
func said(key *yaml.Node) string {
	parts := strings.Split(key.HeadComment, "\n\n")
	var words []string
	for line := range strings.Lines(parts[len(parts)-1]) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	text := strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(strings.Join(words, " "))
	return page.ReplaceAllString(text, "[$0](https://usher.dev/$1.html)")
}

// inOneLine returns a default as it may be written in a command.
func inOneLine(value *yaml.Node) (string, error) {
	flow := *value
	strip(&flow)
	text, err := yaml.Marshal(&flow)
	if err != nil {
		return "", err
	}
	line := strings.Join(strings.Fields(string(text)), " ")
	if strings.Contains(line, "`") {
		return "", errors.New("a default with a backtick does not fit into the table")
	}
	return strings.ReplaceAll(line, "|", `\|`), nil
}

// strip removes comments, and puts everything in one line.
func strip(node *yaml.Node) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if node.Kind != yaml.ScalarNode {
		node.Style = yaml.FlowStyle
	}
	for i, member := range node.Content {
		own := *member
		strip(&own)
		node.Content[i] = &own
	}
}

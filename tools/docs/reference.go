// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const frontMatter = "---\nweight: %d\n---\n# %s\n\n%s\n\n"

// flagsPage is usher --help as a table.
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

// pluginPage is the help of every command of kubectl usher.
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
	_, kubectl, _ := strings.Cut(help, "\nFlags:\n")
	kubectl, _, _ = strings.Cut(kubectl, "\n\n")
	var page strings.Builder
	fmt.Fprintf(&page, frontMatter, 3, "kubectl usher: every command", "[The plugin](../plugin.md) says what it is for.")
	for _, command := range commands {
		help, err := helpOf(ctx, root, "cmd/kubectl-usher", ".", command[1])
		if err != nil {
			return "", err
		}
		help, _, _ = strings.Cut(help, "\nGlobal Flags:")
		fmt.Fprintf(&page, "## %s\n\n```text\n%s\n```\n\n", command[1], strings.TrimSpace(help))
	}
	fmt.Fprintf(&page, "## Flags of every command\n\n```text\n%s\n```\n", strings.TrimRight(kubectl, "\n"))
	return page.String(), nil
}

// helpOf is what a program of a module prints for --help, on whichever stream.
func helpOf(ctx context.Context, root, module, program string, args ...string) (string, error) {
	args = append([]string{"run", program}, append(args, "--help")...)
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

// cell is a text in a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(strings.Join(strings.Fields(text), " "))
}

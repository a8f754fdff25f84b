// SPDX-License-Identifier: Apache-2.0

// Command chart generates what derives from the chart and the generated CRDs and roles:
// the chart's copies of them, and the plain manifests in dist.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	root := flag.String("root", ".", "`folder` of the project")
	flag.Parse()
	if err := generate(*root); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// generate writes the chart's files and dist.
func generate(root string) error {
	if err := copyFiles(root); err != nil {
		return err
	}
	release := Release{Name: "usher", Namespace: "usher-system"}
	everything, err := Render(filepath.Join(root, "charts", "usher"), release, nil)
	if err != nil {
		return err
	}
	var crds []Object
	for _, object := range everything {
		if object.Kind == crdKind {
			crds = append(crds, object)
		}
	}
	install := append([]Object{namespaceOf(release)}, plain(everything)...)
	return errors.Join(
		write(filepath.Join(root, "dist", "install.yaml"), installHeader, install),
		write(filepath.Join(root, "dist", "crds.yaml"), crdsHeader, crds),
	)
}

const (
	installHeader = `# Usher, in the namespace usher-system: kubectl apply --server-side -f install.yaml
#
# Generated from charts/usher with its default values. Before you delete it, read
# "Leaving" in docs/install.md.
`
	crdsHeader = `# The CRDs of install.yaml, for those who install them by themselves:
# kubectl apply --server-side -f crds.yaml
`
)

// copies lists the generated files in the chart, and their targets. They are copies
// because a chart is packed without its surroundings.
var copies = []struct{ from, to string }{
	{"config/crd/*.yaml", "files/crds"},
	{"config/rbac/*/role.yaml", "files/rbac"},
}

func copyFiles(root string) error {
	for _, c := range copies {
		to := filepath.Join(root, "charts", "usher", filepath.FromSlash(c.to))
		if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
			return fmt.Errorf("empty %s: %w", to, err)
		}
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(c.from)))
		if err != nil || len(files) == 0 {
			return errors.Join(fmt.Errorf("found no %s: run make generate, in the project's folder", c.from), err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			if name == "role.yaml" {
				name = filepath.Base(filepath.Dir(file)) + ".yaml"
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read what the chart copies: %w", err)
			}
			if err := os.WriteFile(filepath.Join(to, name), content, 0o644); err != nil { //nolint:gosec // For everybody to read, as all sources are.
				return fmt.Errorf("write the chart's copy: %w", err)
			}
		}
	}
	return nil
}

// namespaceOf is the release's namespace. Usher needs no more than the strictest Pod
// Security standard allows, and the namespace enforces that standard.
func namespaceOf(release Release) Object {
	return Object{Kind: "Namespace", Text: `apiVersion: v1
kind: Namespace
metadata:
  name: ` + release.Namespace + `
  labels:
    app.kubernetes.io/name: usher
    pod-security.kubernetes.io/enforce: restricted
`}
}

// plain removes the marks of Helm's management from the objects.
func plain(objects []Object) []Object {
	helms := regexp.MustCompile(`(?m)^ +(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n`)
	out := make([]Object, len(objects))
	for i, object := range objects {
		out[i] = Object{Kind: object.Kind, Text: helms.ReplaceAllString(object.Text, "")}
	}
	return out
}

func write(file, header string, objects []Object) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", file, err)
	}
	if err := os.WriteFile(file, []byte(header+Join(objects)), 0o644); err != nil { //nolint:gosec // For everybody to read, as all sources are.
		return fmt.Errorf("write the manifests: %w", err)
	}
	return nil
}

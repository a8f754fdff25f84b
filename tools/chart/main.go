// SPDX-License-Identifier: Apache-2.0

// Command chart generates what derives from the chart and the generated CRDs and roles:
// the chart's copies of them, the table of values in its README, and the plain manifests in dist.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
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
	if err := errors.Join(copyFiles(root), writeReadme(root)); err != nil {
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

// copies are the generated folders in the chart, and their originals: a chart is packed without other
// folders.
var copies = map[string]string{"charts/usher/files/crds": "config/crd", "charts/usher/files/rbac": "config/rbac"}

func copyFiles(root string) error {
	for to, from := range copies {
		to = filepath.Join(root, to)
		if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(filepath.Join(root, from)))); err != nil {
			return fmt.Errorf("copy %s (run make generate, in the project's folder): %w", from, err)
		}
	}
	return nil
}

// namespaceOf returns the release's namespace, which enforces the strictest Pod Security standard:
// Usher needs no more than that allows.
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
	return writeFile(file, header+Join(objects))
}

func writeFile(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // Sources are for everybody.
		return fmt.Errorf("write what is generated: %w", err)
	}
	return nil
}

// Release is the name and namespace under which a chart is installed.
type Release struct{ Name, Namespace string }

// Object is one rendered object: its kind, and its YAML with the comments of the template.
type Object struct{ Kind, Text string }

const crdKind = "CustomResourceDefinition"

// Render returns Helm's output for a chart and values over its defaults, in the order in which Helm
// creates the objects, without the release's notes. CRDs come before the policy that protects them, so
// that kubectl delete, which uses the same order, is still refused by it. The values must match the
// chart's schema. The server counts as the newest tested one.
func Render(folder string, release Release, values map[string]any) ([]Object, error) {
	files, err := renderFiles(folder, release, values)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return path.Ext(name) != ".yaml" })
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, fmt.Errorf("split the templates: %w", err)
	}
	var objects []Object
	for _, manifest := range manifests {
		objects = append(objects, Object{Kind: manifest.Head.Kind, Text: strings.TrimSpace(manifest.Content) + "\n"})
	}
	return objects, nil
}

// renderFiles returns the output of each template, by file.
func renderFiles(folder string, release Release, values map[string]any) (map[string]string, error) {
	chart, err := loader.LoadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("load the chart %s: %w", folder, err)
	}
	options := common.ReleaseOptions{Name: release.Name, Namespace: release.Namespace, Revision: 1, IsInstall: true}
	server := common.DefaultCapabilities.Copy()
	server.APIVersions = append(server.APIVersions, "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy", "lifecycle.k8s.io/v1alpha1/Eviction")
	rendered, err := util.ToRenderValues(chart, values, options, server)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(chart, rendered)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	return files, nil
}

// Join joins objects into one file.
func Join(objects []Object) string {
	var text strings.Builder
	for _, object := range objects {
		text.WriteString("---\n" + object.Text)
	}
	return text.String()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

// Release is the name and namespace under which a chart is installed.
type Release struct{ Name, Namespace string }

// Object is one rendered object: its kind, and its YAML with the comments of the template.
type Object struct{ Kind, Text string }

const crdKind = "CustomResourceDefinition"

// Render is Helm's output for a chart and values over its defaults, in the order in which
// Helm creates the objects, without the release's notes. CRDs precede what guards them, so
// that kubectl delete, which uses the same order, meets the guard. The values must match
// the chart's schema. The server has what the newest tested one has.
func Render(folder string, release Release, values map[string]any) ([]Object, error) {
	chart, err := loader.LoadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("load the chart %s: %w", folder, err)
	}
	options := common.ReleaseOptions{Name: release.Name, Namespace: release.Namespace, Revision: 1, IsInstall: true}
	server := common.DefaultCapabilities.Copy()
	server.APIVersions = append(server.APIVersions, "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
	rendered, err := util.ToRenderValues(chart, values, options, server)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(chart, rendered)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
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

// Join joins objects into one file.
func Join(objects []Object) string {
	var text strings.Builder
	for _, object := range objects {
		text.WriteString("---\n" + object.Text)
	}
	return text.String()
}

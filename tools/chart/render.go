// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// Release is the name and namespace under which a chart is installed.
type Release struct{ Name, Namespace string }

// Object is one rendered object.
type Object struct {
	Kind string
	// Text is its YAML, with the comments of the template.
	Text string
}

const crdKind = "CustomResourceDefinition"

// order is the order in which to create objects, by kind; all other kinds come last.
// CRDs precede what guards them, so that kubectl delete, which uses the same order,
// meets the guard.
var order = []string{
	crdKind, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget",
	"Service", "Deployment",
}

// Render is Helm's output for a chart and values over its defaults, in creation order,
// without the release's notes. The values must match the chart's schema.
func Render(folder string, release Release, values map[string]any) ([]Object, error) {
	chart, err := loader.LoadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("load the chart %s: %w", folder, err)
	}
	options := common.ReleaseOptions{Name: release.Name, Namespace: release.Namespace, Revision: 1, IsInstall: true}
	rendered, err := util.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(chart, rendered)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	var objects []Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		parts, err := split(files[name])
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", name, err)
		}
		objects = append(objects, parts...)
	}
	slices.SortStableFunc(objects, func(a, b Object) int { return rank(a.Kind) - rank(b.Kind) })
	return objects, nil
}

func rank(kind string) int {
	if at := slices.Index(order, kind); at >= 0 {
		return at
	}
	return len(order)
}

// split splits a file of several documents; empty ones are dropped.
func split(text string) ([]Object, error) {
	var objects []Object
	for _, document := range strings.Split("\n"+text, "\n---") {
		document = strings.TrimSpace(document)
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			return nil, fmt.Errorf("not YAML: %w\n%s", err, document)
		}
		if head.Kind != "" {
			objects = append(objects, Object{Kind: head.Kind, Text: document + "\n"})
		}
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

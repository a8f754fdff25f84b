// SPDX-License-Identifier: Apache-2.0

// Package convert converts CloneSets between apps.kruise.io/v1alpha1, which Usher serves, and v1beta1,
// which OpenKruise 2.0 stores. It is pure: it works on the decoded YAML or JSON, so that fields which
// neither version knows are not lost.
package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// The API versions of CloneSets.
const (
	Alpha = "apps.kruise.io/v1alpha1"
	Beta  = "apps.kruise.io/v1beta1"
)

// Names of fields that differ between the versions.
const (
	fieldUpdate     = "updateStrategy"
	fieldRolling    = "rollingUpdate"
	fieldPolicy     = "podUpdatePolicy"
	fieldScale      = "scaleStrategy"
	fieldInPlace    = "inPlaceUpdateStrategy"
	fieldDownload   = "imagePreDownload"
	fieldReuse      = "enablePVCReuse"
	fieldNoReuse    = "disablePVCReuse"
	fieldExclude    = "excludePreparingDelete"
	typeRolling     = "RollingUpdate"
	lastApplied     = "kubectl.kubernetes.io/last-applied-configuration"
	pathAnnotations = "metadata.annotations"
)

// rolling are the fields that v1beta1 has under updateStrategy.rollingUpdate, and v1alpha1 under
// updateStrategy.
var rolling = []string{
	"partition", "maxUnavailable", "maxSurge", "paused", "priorityStrategy", "scatterStrategy", fieldInPlace,
}

// scaling are the fields of scaleStrategy that both versions have.
var scaling = []string{"podsToDelete", "maxUnavailable"}

// download are the annotations of v1alpha1 that v1beta1 has as fields.
var download = []struct {
	annotation, field string
	percent           bool
}{
	{apps.AnnotationPullParallelism, "parallelism", true},
	{apps.AnnotationPullTimeout, "timeoutSeconds", false},
	{apps.AnnotationPullMinUpdatedReady, "minUpdatedReadyPods", false},
}

// converter is one conversion.
type converter struct {
	spec, labels, annotations map[string]any
	losses                    []string
}

// Is reports whether an object is a CloneSet of one of the two versions.
func Is(object map[string]any) bool {
	return object["kind"] == "CloneSet" && (object["apiVersion"] == Alpha || object["apiVersion"] == Beta)
}

// CloneSet returns a CloneSet in the other version, and what is lost, each with the field and the
// consequence. An object of that version is returned as it is. Errors name a field of the wrong type.
func CloneSet(object map[string]any, to string) (map[string]any, []string, error) {
	if !Is(object) {
		return nil, nil, fmt.Errorf("%v %v is no CloneSet of %s or %s", object["apiVersion"], object["kind"], Alpha, Beta)
	}
	if to != Alpha && to != Beta {
		return nil, nil, fmt.Errorf("a CloneSet cannot be converted to %s: choose %s or %s", to, Alpha, Beta)
	}
	out := deepCopy(object).(map[string]any)
	if object["apiVersion"] == to {
		return out, nil, nil
	}
	metadata, err := member(out, "", "metadata")
	if err != nil {
		return nil, nil, err
	}
	c, err := newConverter(out, metadata)
	if err != nil {
		return nil, nil, err
	}
	convert := c.toAlpha
	if to == Beta {
		convert = c.toBeta
	}
	if err := convert(); err != nil {
		return nil, nil, err
	}
	out["apiVersion"] = to
	put(metadata, "labels", c.labels)
	put(metadata, "annotations", c.annotations)
	put(out, "metadata", metadata)
	put(out, "spec", c.spec)
	return out, c.losses, nil
}

// newConverter reads what both conversions change.
func newConverter(object, metadata map[string]any) (c *converter, err error) {
	c = &converter{}
	if c.spec, err = member(object, "", "spec"); err != nil {
		return nil, err
	}
	if c.labels, err = member(metadata, "metadata.", "labels"); err != nil {
		return nil, err
	}
	c.annotations, err = member(metadata, "metadata.", "annotations")
	return c, err
}

// member returns an object in an object; an empty one if it is absent.
func member(in map[string]any, path, name string) (map[string]any, error) {
	switch value := in[name].(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return value, nil
	default:
		return nil, fmt.Errorf("%s%s is not an object: correct it, or remove it", path, name)
	}
}

// put sets a member, or removes it if it is empty.
func put(in map[string]any, name string, value map[string]any) {
	delete(in, name)
	if len(value) > 0 {
		in[name] = value
	}
}

// move moves members from one object to another one.
func move(from, to map[string]any, names []string) {
	for _, name := range names {
		if value, there := from[name]; there {
			to[name] = value
			delete(from, name)
		}
	}
}

func (c *converter) lose(format string, args ...any) {
	c.losses = append(c.losses, fmt.Sprintf(format, args...))
}

// drop reports the remaining fields of an object as lost.
func (c *converter) drop(from map[string]any, path string) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		c.lose("%s.%s: the other version has no such field, so it is left out", path, name)
	}
}

// toBeta converts v1alpha1 to v1beta1.
func (c *converter) toBeta() error {
	update, err := member(c.spec, "spec.", fieldUpdate)
	if err != nil {
		return err
	}
	under := map[string]any{}
	move(update, under, rolling)
	if err := c.fieldsOf(under); err != nil {
		return err
	}
	how, _ := update["type"].(string)
	delete(update, "type")
	c.drop(update, "spec.updateStrategy")
	strategy := map[string]any{"type": typeRolling}
	switch how {
	case string(apps.UpdateOnDelete):
		strategy["type"] = how
	case "":
		under[fieldPolicy] = string(apps.UpdateReCreate)
	default:
		under[fieldPolicy] = how
	}
	put(strategy, fieldRolling, under)
	put(c.spec, fieldUpdate, strategy)
	c.dropApplied()
	return c.scaleToBeta()
}

// scaleToBeta converts scaleStrategy. Claims are reused unless v1alpha1 says otherwise, and only if
// v1beta1 says so.
func (c *converter) scaleToBeta() error {
	scale, err := member(c.spec, "spec.", fieldScale)
	if err != nil {
		return err
	}
	out := map[string]any{}
	move(scale, out, scaling)
	if scale[fieldNoReuse] != true {
		out[fieldReuse] = true
	}
	delete(scale, fieldNoReuse)
	c.drop(scale, "spec.scaleStrategy")
	if c.labels[apps.LabelScalingExcludePreparingDelete] == "true" {
		out[fieldExclude] = true
		delete(c.labels, apps.LabelScalingExcludePreparingDelete)
	}
	put(c.spec, fieldScale, out)
	return nil
}

// fieldsOf makes fields of the annotations about images. One that cannot be read has no effect in
// v1alpha1, and stays an annotation.
func (c *converter) fieldsOf(under map[string]any) error {
	fields := map[string]any{}
	for _, d := range download {
		text, there := c.annotations[d.annotation]
		if !there {
			continue
		}
		value, ok := read(fmt.Sprint(text), d.percent)
		if !ok {
			c.lose(pathAnnotations+"[%s] is %q, which has no effect: it stays an annotation", d.annotation, text)
			continue
		}
		fields[d.field] = value
		delete(c.annotations, d.annotation)
	}
	if len(fields) == 0 {
		return nil
	}
	strategy, err := member(under, "spec.updateStrategy.", fieldInPlace)
	if err != nil {
		return err
	}
	strategy[fieldDownload] = fields
	under[fieldInPlace] = strategy
	return nil
}

// read reads a number, or a percentage where one is possible.
func read(text string, percent bool) (any, bool) {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return n, n >= 0
	}
	digits := len(text) - 1
	if !percent || digits < 1 || text[digits] != '%' {
		return nil, false
	}
	_, err := strconv.ParseUint(text[:digits], 10, 31)
	return text, err == nil
}

// toAlpha converts v1beta1 to v1alpha1.
func (c *converter) toAlpha() error {
	strategy, err := member(c.spec, "spec.", fieldUpdate)
	if err != nil {
		return err
	}
	under, err := member(strategy, "spec.updateStrategy.", fieldRolling)
	if err != nil {
		return err
	}
	update := map[string]any{}
	policy, _ := under[fieldPolicy].(string)
	how, _ := strategy["type"].(string)
	delete(under, fieldPolicy)
	move(under, update, rolling)
	c.drop(under, "spec.updateStrategy.rollingUpdate")
	delete(strategy, "type")
	delete(strategy, fieldRolling)
	c.drop(strategy, "spec.updateStrategy")
	c.kindOf(update, how, policy)
	if err := c.annotate(update); err != nil {
		return err
	}
	put(c.spec, fieldUpdate, update)
	c.dropApplied()
	return c.scaleToAlpha()
}

// kindOf sets the type of v1alpha1, which is one field.
func (c *converter) kindOf(update map[string]any, how, policy string) {
	update["type"] = policy
	switch {
	case how == string(apps.UpdateOnDelete):
		update["type"] = how
		if policy != "" {
			c.lose("spec.updateStrategy.rollingUpdate.podUpdatePolicy: %s has no effect with the type OnDelete, and is left out",
				policy)
		}
	case policy == "":
		update["type"] = string(apps.UpdateReCreate)
	}
}

// annotate makes annotations of the fields about images. Annotations of these names have no effect in
// v1beta1, so they must not come to have one.
func (c *converter) annotate(update map[string]any) error {
	strategy, err := member(update, "spec.updateStrategy.rollingUpdate.", fieldInPlace)
	if err != nil {
		return err
	}
	fields, err := member(strategy, "spec.updateStrategy.rollingUpdate.inPlaceUpdateStrategy.", fieldDownload)
	if err != nil {
		return err
	}
	for _, d := range download {
		value, isField := fields[d.field]
		text, there := c.annotations[d.annotation]
		if _, ok := read(fmt.Sprint(text), d.percent); there && (ok || isField) {
			c.lose("%s[%s] has no effect in v1beta1, and would have one in v1alpha1: it is left out",
				pathAnnotations, d.annotation)
			delete(c.annotations, d.annotation)
		}
		if isField {
			c.annotations[d.annotation] = fmt.Sprint(value)
			delete(fields, d.field)
		}
	}
	c.drop(fields, "spec.updateStrategy.rollingUpdate.inPlaceUpdateStrategy.imagePreDownload")
	delete(strategy, fieldDownload)
	put(update, fieldInPlace, strategy)
	return nil
}

func (c *converter) scaleToAlpha() error {
	scale, err := member(c.spec, "spec.", fieldScale)
	if err != nil {
		return err
	}
	out := map[string]any{}
	move(scale, out, scaling)
	if scale[fieldReuse] != true {
		out[fieldNoReuse] = true
	}
	const key = apps.LabelScalingExcludePreparingDelete
	switch labelled := c.labels[key] == "true"; {
	case scale[fieldExclude] == true:
		c.labels[key] = "true"
	case labelled:
		c.lose("metadata.labels[%s] has no effect in v1beta1, and would have one in v1alpha1: it is left out", key)
		delete(c.labels, key)
	}
	delete(scale, fieldReuse)
	delete(scale, fieldExclude)
	c.drop(scale, "spec.scaleStrategy")
	put(c.spec, fieldScale, out)
	return nil
}

// dropApplied removes the record of the last kubectl apply, which is in the old version: the next apply
// would compare fields of both.
func (c *converter) dropApplied() {
	if _, there := c.annotations[lastApplied]; there {
		c.lose("%s[%s] is about the other version: it is left out", pathAnnotations, lastApplied)
		delete(c.annotations, lastApplied)
	}
}

// deepCopy copies decoded YAML or JSON.
func deepCopy(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for key, member := range value {
			out[key] = deepCopy(member)
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, member := range value {
			out[i] = deepCopy(member)
		}
		return out
	case json.Number:
		if n, err := value.Int64(); err == nil {
			return n
		}
	}
	return value
}

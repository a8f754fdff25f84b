// SPDX-License-Identifier: Apache-2.0

// Package revision makes and compares the revisions of a Pod template. It is pure. A
// revision keeps the raw template, so that fields which this program's libraries do not
// know survive the way through a ControllerRevision to a Pod.
package revision

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"strconv"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Revision is one version of a set's template.
type Revision struct {
	// Name of the ControllerRevision, "<set>-<hash>".
	Name string
	// Number orders revisions, larger is newer.
	Number int64
	// Template is the raw template. Do not change it.
	Template map[string]any
}

// Of reads a ControllerRevision's data. An unreadable one stays known, without a template,
// so that its Pods are not mistaken for Pods of no revision.
func Of(name string, number int64, data []byte) *Revision {
	found := &Revision{Name: name, Number: number}
	if template, err := Template(data); err == nil {
		found.Template = template
	}
	return found
}

// Newest returns the newest revision that holds the template, nil if none does, and the
// largest number of them all.
func Newest(known map[string]*Revision, template map[string]any) (same *Revision, last int64) {
	for _, r := range known {
		last = max(last, r.Number)
		newer := same == nil || r.Number > same.Number || (r.Number == same.Number && r.Name > same.Name)
		if newer && r.Template != nil && Equal(r.Template, template) {
			same = r
		}
	}
	return same, last
}

// ErrNoTemplate means that the data of a ControllerRevision holds no template.
var ErrNoTemplate = errors.New("revision holds no spec.template")

// ErrUnstable means that a template does not survive the way into a ControllerRevision
// and back, so no revision would ever be found to hold it.
var ErrUnstable = errors.New("the template reads back from a revision as another one")

// directive makes a strategic merge replace the template. It is not part of the template:
// a client that undoes a rollout by merging a revision's data into a set leaves it there.
const directive = "$patch"

// Data encodes a template as the data of a ControllerRevision. Errors: ErrNoTemplate, or
// ErrUnstable if Template would not return an Equal template.
func Data(template map[string]any) ([]byte, error) {
	patch := make(map[string]any, len(template)+1)
	maps.Copy(patch, template)
	patch[directive] = "replace"
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": patch}})
	if err != nil {
		return nil, fmt.Errorf("encode template: %w", err)
	}
	back, err := Template(data)
	if err != nil {
		return nil, err
	}
	if !Equal(back, template) {
		return nil, ErrUnstable
	}
	return data, nil
}

// Decode parses a raw template. Whole numbers stay whole, however large.
func Decode(raw []byte) (map[string]any, error) {
	var template map[string]any
	if err := utiljson.Unmarshal(raw, &template); err != nil {
		return nil, fmt.Errorf("decode template: %w", err)
	}
	delete(template, directive)
	return template, nil
}

// Strings returns the labels or annotations of a template. A null means absent: no Pod gets
// it either.
func Strings(template map[string]any, field string) map[string]string {
	metadata, _ := template["metadata"].(map[string]any)
	values, _ := metadata[field].(map[string]any)
	out := make(map[string]string, len(values))
	for key, value := range values {
		if text, ok := value.(string); ok {
			out[key] = text
		}
	}
	return out
}

// Template decodes the data of a ControllerRevision.
func Template(data []byte) (map[string]any, error) {
	var patch struct {
		Spec struct {
			Template json.RawMessage `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("decode revision: %w", err)
	}
	if len(patch.Spec.Template) == 0 {
		return nil, ErrNoTemplate
	}
	template, err := Decode(patch.Spec.Template)
	if err != nil {
		return nil, err
	}
	if len(template) == 0 {
		return nil, ErrNoTemplate
	}
	return template, nil
}

// Hash names a template; collisions is how many of the set's names another template had
// already taken.
func Hash(template map[string]any, collisions int32) (string, error) {
	data, err := json.Marshal(Normalize(template))
	if err != nil {
		return "", fmt.Errorf("encode template: %w", err)
	}
	hash := fnv.New32a()
	hash.Write(data)
	if collisions > 0 {
		hash.Write([]byte(strconv.Itoa(int(collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash.Sum32()), 10)), nil
}

// Equal reports whether two templates ask for the same Pods, however they are written:
// see Normalize.
func Equal(a, b map[string]any) bool {
	return reflect.DeepEqual(Normalize(a), Normalize(b))
}

// Same compares two revision labels. The long form "<set>-<hash>" and the short form
// "<hash>" are equal.
func Same(a, b string) bool { return a != "" && Short(a) == Short(b) }

// Short returns the hash of a revision label.
func Short(label string) string { return label[strings.LastIndex(label, "-")+1:] }

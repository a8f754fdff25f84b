// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxRegistration bounds the spec of a Registration, in bytes of JSON without escapes.
const maxRegistration = 80 << 10

// TestBounds computes the largest objects that the CRDs allow: every text, list and map has a
// bound, and a Registration is small by construction, whoever writes it.
func TestBounds(t *testing.T) {
	for kind, limit := range map[string]int{"registrations": maxRegistration, "registries": 4 << 20} {
		data, err := os.ReadFile("../../../config/crd/usher.dev_" + kind + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(data, crd); err != nil {
			t.Fatal(err)
		}
		root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		spec, status := root["spec"], root["status"]
		size := measure{t}.largest("spec", &spec)
		measure{t}.largest("status", &status)
		if t.Logf("a spec of %s has %d bytes at most", kind, size); size > limit {
			t.Errorf("a spec of %s can have %d bytes, want %d at most: tighten a bound in this package", kind, size, limit)
		}
	}
}

type measure struct{ t *testing.T }

// largest is how many bytes a value can have.
func (m measure) largest(path string, s *apiextensionsv1.JSONSchemaProps) int {
	switch {
	case len(s.Enum) > 0:
		return len(slices.MaxFunc(s.Enum, func(a, b apiextensionsv1.JSON) int { return len(a.Raw) - len(b.Raw) }).Raw)
	case s.Type == "string", s.XIntOrString:
		return m.text(path, s) + len(`""`)
	case s.Type == "array":
		return len("[]") + m.bound(path, s.MaxItems)*(m.largest(path+"[]", s.Items.Schema)+len(","))
	case s.AdditionalProperties != nil:
		value := m.largest(path+"{}", s.AdditionalProperties.Schema)
		return len("{}") + m.bound(path, s.MaxProperties)*(m.key(path, s)+len(`"":,`)+value)
	case s.Type == "object":
		size := len("{}")
		for name := range s.Properties {
			field := s.Properties[name]
			size += len(name) + len(`"":,`) + m.largest(path+"."+name, &field)
		}
		return size
	}
	return len("-9223372036854775808") // numbers; true and false are shorter
}

func (m measure) bound(path string, bound *int64) int {
	if bound == nil {
		m.t.Errorf("%s has no bound", path)
		return 0
	}
	return int(*bound)
}

var bytesRule = regexp.MustCompile(`size\(bytes\((?:self|key)\)\) <= (\d+)`)
var matches = regexp.MustCompile(`(?:^|[^!])self\.matches\(['"](.*?\$)['"]\)`)

// text is how many bytes a string can have: its characters have four each, unless a pattern
// takes only ASCII, or a rule counts bytes.
func (m measure) text(path string, s *apiextensionsv1.JSONSchemaProps) int {
	if s.Format == "date-time" {
		return len("2006-01-02T15:04:05.999999999+00:00")
	}
	patterns := []string{s.Pattern}
	for _, rule := range s.XValidations {
		if found := bytesRule.FindStringSubmatch(rule.Rule); found != nil {
			return m.number(found[1])
		}
		if found := matches.FindStringSubmatch(rule.Rule); found != nil {
			patterns = append(patterns, found[1])
		}
	}
	width := utf8.UTFMax
	for _, pattern := range patterns {
		if pattern != "" && !takesMore(pattern) {
			width = 1
		}
	}
	return width * m.bound(path, s.MaxLength)
}

// takesMore reports whether a pattern takes a text with a character beyond ASCII.
func takesMore(pattern string) bool {
	r := regexp.MustCompile(pattern)
	return slices.ContainsFunc([]string{"é", "aéa", "http://é", "a/é:1", "tcp://é:1", "unix:///é", "é:1"}, r.MatchString)
}

// key is how many bytes a key of a map can have.
func (m measure) key(path string, s *apiextensionsv1.JSONSchemaProps) int {
	for _, rule := range s.XValidations {
		if found := bytesRule.FindStringSubmatch(rule.Rule); found != nil {
			return m.number(found[1])
		}
		if rule.Rule == "self.all(key, !format.qualifiedName().validate(key).hasValue())" {
			return 317 // 253 of a DNS name, a slash, and 63
		}
	}
	m.t.Errorf("the keys of %s have no bound", path)
	return 0
}

func (m measure) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

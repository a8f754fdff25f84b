// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/usher-dev/usher/internal/checktest"
)

func TestDeadLinks(t *testing.T) {
	page := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	dead, err := deadLinks(fstest.MapFS{
		"index.html": page(`<h1 id="top">A</h1><a href="#top">ok</a><a href="./in/b.html#x">ok</a><a href="#no">dead</a>
<a class="c" href="in/gone.html">dead</a><a href="in/b.html#y">dead</a><script src="site.js"></script><a href="https://example.com">ok</a>`),
		"in/b.html": page(`<p id="x"><a href="../index.html#top">ok</a><img src="../no.svg"><link rel="stylesheet" href="https://example.com/a.css">`),
		"site.js":   page(""),
	})
	checktest.NoError(t, err)
	checktest.Same(t, "dead links", []string{
		"in/b.html: ../no.svg", "in/b.html: https://example.com/a.css",
		"index.html: #no", "index.html: in/b.html#y", "index.html: in/gone.html",
	}, dead)
}

func TestFields(t *testing.T) {
	text := func(s string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(s)} }
	open := true
	var page strings.Builder
	fields(&page, "Toy", "spec", &schema{
		Description: "ToySpec is\na toy.", Required: []string{"size"},
		XValidations: apiextensionsv1.ValidationRules{{Message: "size must grow"}},
		Properties: map[string]schema{
			"size":  {Type: "integer", Description: "Size | in cm."},
			"kind":  {Type: "string", Default: text(`"Bear"`), Enum: []apiextensionsv1.JSON{*text(`"Bear"`), *text(`"Cat"`)}},
			"parts": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &schema{Type: "object", Properties: map[string]schema{"name": {Type: "string"}}}}},
			"free":  {Type: "object", XPreserveUnknownFields: &open, Properties: map[string]schema{"name": {Type: "string"}}},
		},
	})
	want := string(checktest.Must(os.ReadFile("testdata/fields.md"))(t))
	checktest.Same(t, "the page", want, page.String())
}

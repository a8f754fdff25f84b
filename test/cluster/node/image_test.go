// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
)

func TestParseImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, test := range []struct {
		image string
		want  ImageRef
		name  string
	}{
		{"web", ImageRef{Repository: "web", Tag: "latest"}, "web"},
		{"web:v1", ImageRef{Repository: "web", Tag: "v1"}, "web"},
		{"registry:5000/web", ImageRef{Repository: "registry:5000/web", Tag: "latest"}, "web"},
		{"registry:5000/shop/web:v1.2-rc_3", ImageRef{Repository: "registry:5000/shop/web", Tag: "v1.2-rc_3"}, "web"},
		{"ghcr.io/a/b__c/my-web", ImageRef{Repository: "ghcr.io/a/b__c/my-web", Tag: "latest"}, "my-web"},
		{"shop/web@" + digest, ImageRef{Repository: "shop/web", Digest: digest}, "web"},
		{"shop/web:v1@" + digest, ImageRef{Repository: "shop/web", Tag: "v1", Digest: digest}, "web"},
	} {
		got, err := ParseImage(test.image)
		if err != nil || got != test.want || got.Name() != test.name {
			t.Errorf("ParseImage(%q) = %+v (%s), %v; want %+v (%s)", test.image, got, got.Name(), err, test.want, test.name)
		}
	}
}

func TestParseImageRefuses(t *testing.T) {
	for _, image := range []string{
		"", ":v1", "web:", "Web:v1", "web:v 1", "web:-1", "a//b", "/web", "web/", "https://web", "web@sha256:00", "web@",
		"web:" + strings.Repeat("x", 129), "reg:port/web", "../web", "a/../web:v1",
	} {
		_, err := ParseImage(image)
		var failure *PullError
		if !errors.As(err, &failure) || failure.Reason != ReasonInvalidImageName {
			t.Errorf("ParseImage(%q): error %v, want a PullError with reason %s", image, err, ReasonInvalidImageName)
		}
	}
}

func TestImageID(t *testing.T) {
	aliases, err := newImageAliases(map[string]string{"reg:5000/web:stable": "reg:5000/web:v1", "web": "web:v9"})
	if err != nil {
		t.Fatal(err)
	}
	id := func(image string) string {
		t.Helper()
		ref, err := ParseImage(image)
		if err != nil {
			t.Fatal(err)
		}
		return aliases.id(ref)
	}
	v1 := id("reg:5000/web:v1")
	if want := "reg:5000/web@sha256:"; !strings.HasPrefix(v1, want) || len(v1) != len(want)+64 {
		t.Errorf("ID %q, want %s and 64 digits", v1, want)
	}
	if id("reg:5000/web:stable") != v1 {
		t.Error("an alias has another ID than its target")
	}
	if id("reg:5000/web:v2") == v1 || id("other/web:v1") == v1 {
		t.Error("two images have the same ID")
	}
	if id("web:latest") != id("web:v9") || id("web") != id("web:v9") {
		t.Error("an alias without tag is not one of the tag latest")
	}
	pinned := "web@sha256:" + strings.Repeat("ab", 32)
	if got := id(pinned); got != pinned {
		t.Errorf("ID of %s is %s", pinned, got)
	}
}

func TestAliasesAreChecked(t *testing.T) {
	for _, names := range []map[string]string{{"web": "WEB"}, {"WEB": "web"}} {
		if _, err := newImageAliases(names); err == nil {
			t.Errorf("aliases %v pass, though one of the names is none", names)
		}
	}
}

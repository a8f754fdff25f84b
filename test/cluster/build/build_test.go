// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// The environment selects one of the versions that this checkout pins, and no other.
func TestFindSource(t *testing.T) {
	usual, other := checktest.Must(FindSource(""))(t), checktest.Must(FindSource("v1.33"))(t)
	if !strings.HasPrefix(other.Kubernetes, "v1.33.") || other.Etcd == "" || other.Kubernetes == usual.Kubernetes || other.Key("go1") == usual.Key("go1") {
		t.Errorf("got %+v and %+v", usual, other)
	}
	for _, minor := range []string{"v1.30", "1.33", "../v1.33"} {
		_, err := FindSource(minor)
		checktest.Says(t, minor, err, "pins v1.33, ")
	}
}

func TestKey(t *testing.T) {
	source := func(kubernetes, mod, sum string) *Source {
		return &Source{Kubernetes: kubernetes, goMod: []byte(mod), goSum: []byte(sum)}
	}
	keys := map[string]string{}
	for name, key := range map[string]string{
		"the first":          source("v1.36.3", "mod", "sum").Key("go1.26.8"),
		"another go.mod":     source("v1.36.3", "mod2", "sum").Key("go1.26.8"),
		"another go.sum":     source("v1.36.3", "mod", "sum2").Key("go1.26.8"),
		"the border":         source("v1.36.3", "mods", "um").Key("go1.26.8"),
		"another Go":         source("v1.36.3", "mod", "sum").Key("go1.27.0"),
		"another Kubernetes": source("v1.36.4", "mod", "sum").Key("go1.26.8"),
	} {
		if other, found := keys[key]; found || !strings.HasPrefix(key, "v1.36.") {
			t.Errorf("%s has the key %s, as %s", name, key, other)
		}
		keys[key] = name
	}
}

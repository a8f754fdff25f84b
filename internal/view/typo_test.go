// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

func TestMeant(t *testing.T) {
	registrations := []*usherv1alpha1.Registration{
		{ObjectMeta: metav1.ObjectMeta{Name: "kettle"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "tea"}, Spec: usherv1alpha1.RegistrationSpec{Hooks: usherv1alpha1.Hooks{PreDelete: "example.com/drained"}}},
	}
	for key, want := range map[string]string{
		"ketle.usher.dev/serving":    "kettle.usher.dev/serving",
		"kettel.usher.dev/serving":   "kettle.usher.dev/serving",
		"kettle.usher.dev/serving":   "",
		"mug.usher.dev/serving":      "",
		"example.com/drianed":        "example.com/drained",
		"example.com/unready-blocks": "",
		"toa.usher.dev/serving":      "tea.usher.dev/serving",
		"be.usher.dev/serving":       "",
		"a":                          "",
	} {
		checktest.Same(t, key, want, meant(key, registrations))
	}
}

func TestDistance(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, one := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "ab", 2}, {"abc", "", mostTypos + 1}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 1}, {"abc", "ab", 1},
		{"abcdef", "bacdfe", 2}, {"abcdef", "fedcba", mostTypos + 1}, {long + "x", "y" + long, 2}, {long, long + "bb", 2},
	} {
		checktest.Same(t, one.a+" and "+one.b, one.want, distance(one.a, one.b))
	}
}

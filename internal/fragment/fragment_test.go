// SPDX-License-Identifier: Apache-2.0

package fragment_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/fragment"
)

func TestFits(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"a...", "abc", true}, {"...", "abc", true}, {"...", "", true},
		{"a...c", "abc", true}, {"a...b...d", "abcd", true}, {"a...b...d", "acd", false}, {"ab...ba", "aba", false},
		{"...BackOff", "ImagePullBackOff", true}, {"...BackOff", "ErrImagePull", false},
	} {
		checktest.Same(t, test.pattern+" and "+test.text, test.want, fragment.Fits(test.pattern, test.text))
	}
}

// TestLacks compares a Pod with fragments that it has, and with others.
func TestLacks(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"tier": "gold"}, Finalizers: []string{"a", "b"}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: "Ready", Status: "True", Message: "all is well"}, {Type: "Initialized", Status: "True"},
		}},
	}
	for document, has := range map[string]bool{
		`metadata: {labels: {tier: gold}}`:                                               true,
		`metadata: {labels: {tier: g...}}`:                                               true,
		`metadata: {labels: {tier: tin}}`:                                                false,
		`metadata: {labels: {rank: null}}`:                                               true,
		`metadata: {labels: {tier: null}}`:                                               false,
		`metadata: {labels: {rank: ...}}`:                                                false,
		`metadata: {finalizers: [b, a]}`:                                                 true,
		`metadata: {finalizers: [a]}`:                                                    false,
		`metadata: {annotations: null}`:                                                  true,
		`status: {conditions: [{type: Ready, status: "True", message: "...well"}]}`:      true,
		`status: {conditions: [{type: Ready, status: "False"}]}`:                         false,
		`status: {conditions: [{type: Ready}, {type: Initialized}, {type: Registered}]}`: false,
		`spec: {nodeName: node-1}`:                                                       false,
	} {
		lacks, err := fragment.Lacks(pod, document)
		checktest.NoError(t, err)
		checktest.Same(t, document+" ("+lacks+")", has, lacks == "")
	}
	for _, wrong := range []string{"", "{}", "metadata", "metadata: {"} {
		if _, err := fragment.Lacks(pod, wrong); err == nil {
			t.Errorf("%q can be compared", wrong)
		}
	}
}

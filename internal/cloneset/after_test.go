// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// TestAfterwards: answers count; a failure leaves a Pod as it was.
func TestAfterwards(t *testing.T) {
	at := func(name, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
	}
	failure := errors.New("no")
	a, b, c, d, e := at("a", "1"), at("b", "1"), at("c", "1"), at("d", "1"), at("e", "1")
	s := &plan.Snapshot{Set: "web", Pods: []*corev1.Pod{a, b, c, d, e}}
	left := afterwards(s, []outcome{
		{action: plan.Action{Verb: plan.Move, Pod: a}, pod: at("a", "2")},
		{action: plan.Action{Verb: plan.Update, Pod: b}, pod: b, err: failure},
		{action: plan.Action{Verb: plan.Delete, Pod: c}, pod: c},
		{action: plan.Action{Verb: plan.Delete, Pod: d}, pod: d, err: failure},
		{action: plan.Action{Verb: plan.Create}, pod: at("f", "1")},
		{action: plan.Action{Verb: plan.Create}, err: failure},
	})
	var got []string
	for _, pod := range left.Pods {
		got = append(got, pod.Name+pod.ResourceVersion)
	}
	if want := "a2 b1 d1 e1 f1"; strings.Join(got, " ") != want {
		t.Errorf("Pods = %v, want %s", got, want)
	}
	if left.Set != "web" || len(s.Pods) != 5 || s.Pods[0] != a {
		t.Error("the rest of the snapshot is to stay, and the snapshot itself")
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestReported: what a condition says of a wait is read as it was written; anybody may have written another text.
func TestReported(t *testing.T) {
	ix := &index{Snapshot: Snapshot{Now: epoch}}
	for _, w := range []Waiting{
		{Pod: "a", Gate: GateJoining, Registry: "service", Since: epoch, Reason: ReasonNoEndpoint, Message: "no: since, for Registry x: it is"},
		{Pod: "a", Gate: GateCreated, Key: keyCreated, Registry: "service", Since: epoch, Reason: ReasonNoEndpoint, Message: "no", Overdue: true},
		{Pod: "a", Gate: GateJoining, Registry: "service", Reason: ReasonNoEndpoint, Message: "no"},
	} {
		for _, others := range [][]Waiting{nil, {w}} {
			_, head := ix.summarize(append(others, w))
			c := &corev1.PodCondition{Reason: string(w.Reason), Message: head + ": " + w.Message}
			registry, since, detail := Reported(c)
			checktest.Same(t, c.Message+" (registry)", w.Registry, registry)
			checktest.Same(t, c.Message+" (since)", w.Since, since)
			checktest.Same(t, c.Message+" (detail)", w.Message, detail)
		}
	}
	for _, text := range []string{"", "since", ": ", "for Registry ", "x since yesterday: y"} {
		if _, since, _ := Reported(&corev1.PodCondition{Message: text}); since != (time.Time{}) {
			t.Errorf("%q says %s", text, since)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"testing"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// stored is an Eviction as the API server has it.
const stored = `
metadata: {namespace: shop, name: pod-1-web, uid: one, labels: {usher.dev/drain: responder}, annotations: {a: b}}
spec: {target: {pod: {name: web, uid: two}}}
status:
  observedGeneration: 1
  conditions: [{type: Failed, status: "False"}, {type: TargetEvicted, status: "False"}]
  requesters:
    - {name: example.com/b, intent: Eviction}
    - {name: example.com/gone, intent: Withdrawn}
    - {name: example.com/a, intent: Eviction}
  targetResponders:
    - {name: example.com/first, priority: 30000, state: Completed}
    - {name: usher.dev/drain, priority: 20000, state: Active}
    - {name: imperative-eviction.k8s.io/evictor, priority: 100, state: Inactive}
  responders:
    - {name: example.com/first, startTime: "2026-03-01T11:00:00Z", message: done}
    - {name: usher.dev/drain, startTime: "2026-03-01T12:00:00Z", heartbeatTime: "2026-03-01T12:00:01Z", message: waits}
    - {name: imperative-eviction.k8s.io/evictor}
`

func eviction(t *testing.T, text string) *lifecyclev1alpha1.Eviction {
	t.Helper()
	var object lifecyclev1alpha1.Eviction
	checktest.NoError(t, yaml.UnmarshalStrict([]byte(text), &object))
	return &object
}

func clock(second int) time.Time { return time.Date(2026, 3, 1, 12, 0, second, 0, time.UTC) }

// TestRead: of an eviction, Usher reads which responder is active, which responders there are, and who requests it.
func TestRead(t *testing.T) {
	want := plan.Eviction{
		Name: "pod-1-web", UID: "one", Pod: "web", PodUID: "two", Turn: plan.TurnActive,
		Requesters: []string{"example.com/a", "example.com/b"}, Started: clock(0),
		Response: plan.Response{Heartbeat: clock(1), Message: "waits"},
	}
	object := eviction(t, stored)
	checktest.Same(t, "the eviction", want, Read(object))
	kept, err := Strip(object.DeepCopy())
	checktest.NoError(t, err)
	checktest.Same(t, "the eviction as the cache keeps it", want, Read(kept.(*lifecyclev1alpha1.Eviction)))
}

// TestOver: an eviction that has failed, or has succeeded, is not under way. A new one names nobody yet.
func TestOver(t *testing.T) {
	for kind, over := range map[string]bool{"Failed": true, "TargetEvicted": true, "Other": false} {
		e := Read(eviction(t, `{status: {conditions: [{type: `+kind+`, status: "True"}]}}`))
		checktest.Same(t, kind, plan.Eviction{Turn: plan.TurnNone, Over: over, Requesters: e.Requesters}, e)
	}
}

// TestSelector: Usher watches evictions that name it as a responder, also if it should be a requester as well.
func TestSelector(t *testing.T) {
	for role, selected := range map[string]bool{"responder": true, "requester-responder": true, "requester": false} {
		checktest.Same(t, role, selected, Selector().Matches(labels.Set{"usher.dev/drain": role}))
	}
}

// TestEncode: Usher applies nothing but its own entry, to the eviction that it has seen.
func TestEncode(t *testing.T) {
	e := Read(eviction(t, stored))
	head := `{"apiVersion":"lifecycle.k8s.io/v1alpha1","kind":"Eviction","metadata":{"namespace":"shop","name":"pod-1-web","uid":"one"},` +
		`"status":{"responders":[{"name":"usher.dev/drain","heartbeatTime":"2026-03-01T12:00:02Z",`
	for rest, response := range map[string]plan.Response{
		`"message":"waits"}]}}`: {Heartbeat: clock(2), Message: "waits"},
		`"expectedCompletionTime":"2026-03-01T12:00:05Z","message":"waits"}]}}`: {Heartbeat: clock(2), Expected: clock(5), Message: "waits"},
		`"expectedCompletionTime":"2026-03-01T12:00:02Z","completionTime":"2026-03-01T12:00:02Z","message":"gone"}]}}`: {
			Heartbeat: clock(2), Expected: clock(2), Completed: clock(2), Message: "gone"},
	} {
		checktest.Same(t, "what is applied", head+rest, string(encodeResponse("shop", plan.Responding{Eviction: &e, Response: response})))
	}
}

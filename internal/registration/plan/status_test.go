// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestLongTextsAreCut: whatever registries say and list, the API server takes the status and the
// conditions of Pods.
func TestLongTextsAreCut(t *testing.T) {
	long := strings.Repeat("é", 50_000)
	f := newFixture()
	f.registry("odd")
	f.Registrations[0].Spec.Registries = []string{"discovery", "odd"}
	for n := range 3 {
		if err := f.given(fmt.Sprintf("Pod pod-%02d Normal: protected", n)); err != nil {
			t.Fatal(err)
		}
	}
	state := f.Registries["discovery"]
	state.Err = registry.Permanent(errors.New(long))
	f.Registries["discovery"], f.Listings[target("discovery")] = state, Listing{Err: state.Err}
	strange := orphan("odd")
	strange.ID, strange.Owner.Pod = long, long
	f.Listings[target("odd")] = Listing{Entries: []registry.Entry{strange}}
	texts := textsOf(f)
	cut := 0
	for text, limit := range texts {
		if len(text) > limit || !utf8.ValidString(text) {
			t.Errorf("a text has %d bytes, of %d: %.80q", len(text), limit, text)
		}
		if strings.Contains(text, "éé") {
			cut++
		}
	}
	if cut != 5 {
		t.Errorf("of %d texts %d are cut, want 5", len(texts), cut)
	}
}

// textsOf are the texts that are written to objects, with how long each may be.
func textsOf(f *fixture) map[string]int {
	p, texts := Make(f.Snapshot), map[string]int{}
	for _, patch := range p.Patches {
		if patch.Condition != nil {
			texts[patch.Condition.Message] = 2 * maxMessage
		}
	}
	status := Status(p.Outcomes[0], f.Registries, f.Now)
	for _, c := range status.Conditions {
		texts[c.Message] = MaxCondition
	}
	for _, r := range status.Registries {
		texts[r.Error] = maxError
		for _, d := range r.Differences {
			texts[d.Entry], texts[d.Pod] = maxError, maxName
		}
	}
	return texts
}

// SPDX-License-Identifier: Apache-2.0

package revision

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	return checktest.Must(Decode([]byte(text)))(t)
}

const plain = `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"app:1"}]}}`

// TestEqual: which pairs of templates ask for the same Pods.
func TestEqual(t *testing.T) {
	scenariotest.Run(t, "testdata/equal.txt", func(t *testing.T, lines []string) []string {
		a, b := decode(t, lines[0]), decode(t, lines[1])
		checktest.Same(t, "the hashes are the same", Equal(a, b), Hash(a, 0) == Hash(b, 0))
		if Equal(a, b) {
			return []string{"equal"}
		}
		return []string{"different"}
	})
}

// TestData: the bytes of a revision are those that OpenKruise writes. Those of a template that was read from a revision
// are the same bytes again.
func TestData(t *testing.T) {
	scenariotest.Run(t, "testdata/data.txt", func(t *testing.T, lines []string) []string {
		data := checktest.Must(Data(decode(t, lines[0])))(t)
		again := checktest.Must(Data(checktest.Must(Template(data))(t)))(t)
		checktest.Same(t, "the data, written again", string(data), string(again))
		return []string{string(data)}
	})
}

// TestHash: a template's name never changes from one version of this program to the next;
// otherwise every set would roll out on an upgrade.
func TestHash(t *testing.T) {
	for collisions, want := range map[int32]string{0: "7c89647b54", 1: "79c8cc869", 2: "74c5889bd"} {
		checktest.Same(t, fmt.Sprintf("Hash with %d collisions", collisions), want, Hash(decode(t, plain), collisions))
	}
}

// TestRoundTrip: fields that this program does not know survive a revision, whole numbers stay whole,
// and the data has the form that OpenKruise reads.
func TestRoundTrip(t *testing.T) {
	template := decode(t, `{"metadata":{"labels":{"app":"web"}},"spec":{"fromTheFuture":{"deep":[1,{"x":null}]},"runAsUser":9007199254740993,"share":0.5,`+
		`"containers":[{"name":"main","image":"app:1","unknown":true}]}}`)
	data := checktest.Must(Data(template))(t)
	checktest.Says(t, "a large number", string(data), "9007199254740993")
	var form struct {
		Spec struct {
			Template map[string]any `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &form); err != nil || form.Spec.Template["$patch"] != "replace" {
		t.Errorf("data = %s, %v", data, err)
	}
	back := checktest.Must(Template(data))(t)
	checktest.Same(t, "the template on its way", Normalize(template), Normalize(back))
	checktest.Same(t, "what nobody knows", template["spec"].(map[string]any)["fromTheFuture"], back["spec"].(map[string]any)["fromTheFuture"])
	if _, ok := template["$patch"]; ok {
		t.Error("Data wrote to its argument")
	}
	if _, err := Data(map[string]any{"x": uint64(1) << 63}); !errors.Is(err, ErrUnstable) {
		t.Errorf("a template that reads back as another one: %v", err)
	}
}

// TestTemplateErrors: broken or empty data is distinguished from a template.
func TestTemplateErrors(t *testing.T) {
	for _, data := range []string{``, `{`, `[]`, `{"spec":{"template":[]}}`, `{"spec":{"template":"x"}}`} {
		if _, err := Template([]byte(data)); err == nil {
			t.Errorf("%q was read as a revision", data)
		}
	}
	for _, data := range []string{`{}`, `{"spec":{}}`, `{"spec":{"template":null}}`, `{"spec":{"template":{}}}`, `{"spec":{"template":{"$patch":"replace"}}}`} {
		if _, err := Template([]byte(data)); !errors.Is(err, ErrNoTemplate) {
			t.Errorf("%q: err = %v, want ErrNoTemplate", data, err)
		}
	}
}

// TestSame: the long and the short form of a revision label are equal.
func TestSame(t *testing.T) {
	for pair, want := range map[[2]string]bool{
		{"web-6f4", "web-6f4"}:    true,
		{"web-6f4", "6f4"}:        true,
		{"6f4", "6f4"}:            true,
		{"my-web-6f4", "web-6f4"}: true,
		{"web-6f4", "web-6f5"}:    false,
		{"", ""}:                  false,
		{"", "6f4"}:               false,
	} {
		checktest.Same(t, fmt.Sprintf("%q are the same", pair), want, Same(pair[0], pair[1]))
	}
}

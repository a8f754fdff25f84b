// SPDX-License-Identifier: Apache-2.0

package revision

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	out, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const plain = `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"app:1"}]}}`

// TestEqual: null and empty fields count as absent; everything else counts.
func TestEqual(t *testing.T) {
	for _, test := range []struct {
		name, other string
		want        bool
	}{
		{"itself", plain, true},
		{"other order", `{"spec":{"containers":[{"image":"app:1","name":"main"}]},"metadata":{"labels":{"app":"web"}}}`, true},
		{"null and empty", `{"metadata":{"creationTimestamp":null,"annotations":{},"labels":{"app":"web"}},"spec":{"volumes":[],"containers":[{"name":"main","image":"app:1","resources":{},"securityContext":{"a":{}}}]}}`, true},
		{"false that means nothing", strings.ReplaceAll(plain, `"spec":{`, `"spec":{"hostNetwork":false,`), true},
		{"false that means something", strings.ReplaceAll(plain, `"spec":{`, `"spec":{"enableServiceLinks":false,`), false},
		{"false that nobody knows", strings.ReplaceAll(plain, `"spec":{`, `"spec":{"fromTheFuture":false,`), false},
		{"an empty text is a value", `{"metadata":{"labels":{"app":"web","x":""}},"spec":{"containers":[{"name":"main","image":"app:1"}]}}`, false},
		{"image", strings.ReplaceAll(plain, "app:1", "app:2"), false},
		{"unknown field", strings.ReplaceAll(plain, `"spec":{`, `"spec":{"fromTheFuture":1,`), false},
		{"a directive of a merge", strings.Replace(plain, `{`, `{"$patch":"replace",`, 1), true},
		{"one more container", strings.ReplaceAll(plain, `}]}}`, `},{"name":"b"}]}}`), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := decode(t, plain), decode(t, test.other)
			if got := Equal(a, b); got != test.want {
				t.Errorf("Equal = %v", got)
			}
			hashA, errA := Hash(a, 0)
			hashB, errB := Hash(b, 0)
			if errA != nil || errB != nil || (hashA == hashB) != test.want {
				t.Errorf("hashes %q %v and %q %v", hashA, errA, hashB, errB)
			}
		})
	}
}

// TestEqualQuantities: quantities are compared by value, and fields that a client fills
// in with their zero value make no difference.
func TestEqualQuantities(t *testing.T) {
	with := func(resources, env string) map[string]any {
		return decode(t, strings.ReplaceAll(plain, `"image":"app:1"`, `"image":"app:1","resources":`+resources+`,"env":[`+env+`]`))
	}
	for _, test := range []struct {
		name     string
		a, b     string
		envA     string
		envB     string
		wantSame bool
	}{
		{"milli", `{"limits":{"cpu":"1000m"}}`, `{"limits":{"cpu":"1"}}`, ``, ``, true},
		{"a number", `{"limits":{"cpu":2}}`, `{"limits":{"cpu":"2"}}`, ``, ``, true},
		{"a fraction", `{"limits":{"cpu":0.5}}`, `{"limits":{"cpu":"500m"}}`, ``, ``, true},
		{"binary", `{"requests":{"memory":"1024Mi"}}`, `{"requests":{"memory":"1Gi"}}`, ``, ``, true},
		{"another one", `{"limits":{"cpu":"1000m"}}`, `{"limits":{"cpu":"1001m"}}`, ``, ``, false},
		{"decimal is not binary", `{"requests":{"memory":"1G"}}`, `{"requests":{"memory":"1Gi"}}`, ``, ``, false},
		{"no limit is not a limit of 0", `{"limits":{"cpu":"0"}}`, `{}`, ``, ``, false},
		{"what is no quantity", `{"limits":{"cpu":"much"}}`, `{"limits":{"cpu":"more"}}`, ``, ``, false},
		{"empty value", `{}`, `{}`, `{"name":"A","value":""}`, `{"name":"A"}`, true},
		{
			"divisor", `{}`, `{}`,
			`{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"0"}}}`,
			`{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}`, true,
		},
		{
			"member of an embedded type", `{}`, `{}`,
			`{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}`,
			`{"name":"A","valueFrom":{"secretKeyRef":{"name":"","key":"k"}}}`, false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Equal(with(test.a, test.envA), with(test.b, test.envB)); got != test.wantSame {
				t.Errorf("Equal = %v", got)
			}
		})
	}
}

// TestEqualNumbers: JSON does not distinguish 1.0 from 1, and a revision may return
// either.
func TestEqualNumbers(t *testing.T) {
	for a, b := range map[string]string{
		"1.0": "1", "-0": "0", "1e3": "1000", "1152921504606846976.0": "1152921504606846976", "9007199254740993": "9007199254740993", "1e20": "100000000000000000000", "0.5": "5e-1",
	} {
		if !Equal(decode(t, `{"x":`+a+`}`), decode(t, `{"x":`+b+`}`)) {
			t.Errorf("%s is not %s", a, b)
		}
	}
	for a, b := range map[string]string{"1.5": "1", "9007199254740993": "9007199254740992.0", "1": `"1"`} {
		if Equal(decode(t, `{"x":`+a+`}`), decode(t, `{"x":`+b+`}`)) {
			t.Errorf("%s is %s", a, b)
		}
	}
}

// TestHash: a template's name never changes from one version of this program to the next;
// otherwise every set would roll out on an upgrade.
func TestHash(t *testing.T) {
	for collisions, want := range map[int32]string{0: "7c89647b54", 1: "79c8cc869", 2: "74c5889bd"} {
		got, err := Hash(decode(t, plain), collisions)
		if err != nil || got != want {
			t.Errorf("Hash with %d collisions = %q, %v; want %q", collisions, got, err, want)
		}
	}
}

// TestRoundTrip: what this program does not know survives a revision, whole numbers stay
// whole, and the data has the form that OpenKruise reads.
func TestRoundTrip(t *testing.T) {
	template := decode(t, `{"metadata":{"labels":{"app":"web"}},"spec":{"fromTheFuture":{"deep":[1,{"x":null}]},"runAsUser":9007199254740993,"share":0.5,`+
		`"containers":[{"name":"main","image":"app:1","unknown":true}]}}`)
	data, err := Data(template)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "9007199254740993") {
		t.Errorf("a large number lost digits: %s", data)
	}
	var form struct {
		Spec struct {
			Template map[string]any `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &form); err != nil || form.Spec.Template["$patch"] != "replace" {
		t.Errorf("data = %s, %v", data, err)
	}
	back, err := Template(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(template, back); diff != "" {
		t.Errorf("the template changed on the way:\n%s", diff)
	}
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
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"web-6f4", "web-6f4", true},
		{"web-6f4", "6f4", true},
		{"6f4", "6f4", true},
		{"my-web-6f4", "web-6f4", true},
		{"web-6f4", "web-6f5", false},
		{"", "", false},
		{"", "6f4", false},
	} {
		if got := Same(test.a, test.b); got != test.want {
			t.Errorf("Same(%q, %q) = %v", test.a, test.b, got)
		}
	}
}

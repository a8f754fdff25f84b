// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"testing"
)

func TestMerge(t *testing.T) {
	const base = `{a: 1, deep: {b: 2, c: 3}, list: [1, 2], named: [{name: x, v: 1, w: 1}, {name: q, v: 2}]}`
	cases := map[string]struct{ change, want string }{
		"nothing":     {``, `{"a":1,"deep":{"b":2,"c":3},"list":[1,2],"named":[{"name":"x","v":1,"w":1},{"name":"q","v":2}]}`},
		"a value":     {`{a: 5}`, `{"a":5,"deep":{"b":2,"c":3},"list":[1,2],"named":[{"name":"x","v":1,"w":1},{"name":"q","v":2}]}`},
		"null":        {`{a: null, deep: {b: null}, named: null}`, `{"deep":{"c":3},"list":[1,2]}`},
		"a list":      {`{list: [3], named: null}`, `{"a":1,"deep":{"b":2,"c":3},"list":[3]}`},
		"named items": {`{list: null, deep: null, named: [{name: q, v: 7}, {name: z}, {name: x, w: null}]}`, `{"a":1,"named":[{"name":"x","v":1},{"name":"q","v":7},{"name":"z"}]}`},
		"another kind": {`{list: null, named: null, deep: [{name: q}], a: {k: v}}`,
			`{"a":{"k":"v"},"deep":[{"name":"q"}]}`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			object, err := build(base)
			if err != nil {
				t.Fatal(err)
			}
			before := text(t, object.Object)
			merged, err := merge(object.Object, c.change)
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, merged); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if after := text(t, object.Object); after != before {
				t.Errorf("the old object has changed to %s", after)
			}
		})
	}
	if _, err := merge(nil, "a: [1"); err == nil {
		t.Error("what is no YAML is merged")
	}
}

func text(t *testing.T, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"maps"
	"strings"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// with is a complete Registration spec except for the given fields.
func with(fields object) object {
	spec := object{
		"selector":   object{"matchLabels": object{"app": "web"}},
		"registries": []any{"discovery"},
		"instance":   object{"service": "web", "port": int64(8080)},
	}
	maps.Copy(spec, fields)
	return spec
}

func withInstance(fields object) object {
	instance := object{"service": "web", "port": "http"}
	maps.Copy(instance, fields)
	return with(object{"instance": instance})
}

func fieldRef(path string) object { return object{"fieldRef": object{"fieldPath": path}} }

// TestRegistrationAdmission creates valid and invalid Registrations.
func TestRegistrationAdmission(t *testing.T) {
	for _, tests := range []map[string]admission{selectorAdmission(), instanceAdmission(), hookAdmission(), drainAdmission()} {
		admit(t, "Registration", tests)
	}
}

func selectorAdmission() map[string]admission {
	return map[string]admission{
		"the least":           {with(nil), ""},
		"no selector":         {with(object{"selector": object{}}), "selector cannot be empty"},
		"no registry":         {with(object{"registries": []any{}}), "spec.registries"},
		"one registry twice":  {with(object{"registries": []any{"a", "a"}}), "Duplicate value"},
		"a policy":            {with(object{"onInPlaceUpdate": "FailOver"}), ""},
		"another policy":      {with(object{"onInPlaceUpdate": "Failover"}), `"Deregister", "FailOver", "Stay"`},
		"no Pods may leave":   {with(object{"nodeFailure": object{"maxPercent": int64(0), "grace": "1m"}}), ""},
		"more than all leave": {with(object{"nodeFailure": object{"maxPercent": int64(101)}}), "spec.nodeFailure.maxPercent"},
	}
}

func instanceAdmission() map[string]admission {
	long := strings.Repeat("k", 250)
	return map[string]admission{
		"no port, as for Services": {with(object{"instance": object{"service": "web"}}), ""},
		"port 0":                   {withInstance(object{"port": int64(0)}), "a number from 1 to 65535"},
		"everything from the Pod": {withInstance(object{
			"weight": int64(10), "weightFrom": fieldRef("metadata.annotations['example.com/weight']"),
			"tags": []any{"v2", "urlprefix-/a"}, "tagsFrom": []any{fieldRef("metadata.labels['track']")},
			"metadata": object{"zone": "unknown"},
			"metadataFrom": []any{
				object{"key": "zone", "fieldRef": object{"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}},
				object{"key": "node", "fieldRef": object{"fieldPath": "spec.nodeName"}},
			},
		}), ""},
		"a port in quotes":     {withInstance(object{"port": "80"}), "without quotes"},
		"weight 0":             {withInstance(object{"weight": int64(0)}), "spec.instance.weight"},
		"weight as metadata":   {withInstance(object{"metadata": object{"weight": "1"}}), "use instance.weight"},
		"tags as metadata":     {withInstance(object{"metadata": object{"tags": "a"}}), "use instance.weight, instance.tags"},
		"weight from metadata": {withInstance(object{"metadataFrom": []any{object{"key": "weight", "fieldRef": object{"fieldPath": "metadata.name"}}}}), "use instance.weightFrom"},
		"a key twice": {withInstance(object{"metadataFrom": []any{
			object{"key": "a", "fieldRef": object{"fieldPath": "metadata.name"}},
			object{"key": "a", "fieldRef": object{"fieldPath": "metadata.uid"}},
		}}), "Duplicate value"},
		"a tag with a comma":       {withInstance(object{"tags": []any{"a,b"}}), "spec.instance.tags[0]"},
		"a field that is none":     {withInstance(object{"weightFrom": fieldRef("metadata.labels.weight")}), "metadata.labels['<key>']"},
		"a field of no use":        {withInstance(object{"weightFrom": fieldRef("spec.containers")}), "fieldPath is metadata.name"},
		"a field with more behind": {withInstance(object{"weightFrom": fieldRef("metadata.labels['a']['b']")}), "fieldPath is metadata.name"},
		"a long key":               {withInstance(object{"weightFrom": fieldRef("metadata.labels['" + long + "/a']")}), ""},
	}
}

func hookAdmission() map[string]admission {
	hooks := func(fields object) object { return with(object{"hooks": fields}) }
	return map[string]admission{
		"a hook for two gates":       {hooks(object{"inPlaceUpdate": "example.com/drained", "preDelete": "example.com/drained"}), ""},
		"a hook without a domain":    {hooks(object{"preDelete": "drained"}), ""},
		"created for another gate":   {hooks(object{"created": "example.com/a", "preDelete": "example.com/a"}), "created needs a key of its own"},
		"a hook that is no key":      {hooks(object{"preDelete": "example.com/drained=true"}), "the key of a label, or a finalizer"},
		"Usher's own finalizer":      {hooks(object{"preDelete": usherv1alpha1.Finalizer}), "those of usher.dev are Usher's own"},
		"named after a Registration": {hooks(object{"preDelete": "web.usher.dev/drained"}), ""},
	}
}

func drainAdmission() map[string]admission {
	drain := func(fields object) object { return with(object{"drain": fields}) }
	deadline := func(gate, after string) object {
		return with(object{"deadlines": object{gate: object{"after": after, "onDeadline": "Proceed"}}})
	}
	return map[string]admission{
		"no propagation":              {drain(object{"propagation": "0s"}), ""},
		"a longer propagation":        {drain(object{"propagation": "10m", "deadline": "5m"}), "no drain would meet it"},
		"longer than the default":     {drain(object{"propagation": "6m"}), "no drain would meet it"},
		"a propagation without units": {drain(object{"propagation": "5"}), "a number with a unit"},
		"a propagation in words":      {drain(object{"propagation": "5 seconds"}), "a number with a unit"},
		"a negative propagation":      {drain(object{"propagation": "-5s"}), "a number with a unit"},
		"a deadline beyond all times": {drain(object{"deadline": "99999999h"}), "spec.drain.deadline"},
		"a deadline of a hook":        {deadline("preNormal", "90s"), ""},
		"one without units":           {deadline("preNormal", "90"), "a number with a unit"},
		"one of no time":              {deadline("created", "0s"), "longer than 0s"},
		"one of a gate that is none":  {deadline("updated", "90s"), ""}, // Kubernetes prunes unknown fields.
		"a policy that is none":       {drain(object{"onDeadline": "Ignore"}), "spec.drain.onDeadline"},
	}
}

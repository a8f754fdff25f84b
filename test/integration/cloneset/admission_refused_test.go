// SPDX-License-Identifier: Apache-2.0

package cloneset

// Parts of manifests that are refused.
const (
	mountsData   = `[{name: main, image: "example.test/web:v1", volumeMounts: [{name: data, mountPath: /data}]}]`
	dataClaims   = `[{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}]`
	mountMessage = "each of volumeMounts must name a volume: add it to template.spec.volumes or volumeClaimTemplates, or correct its name"
	keyMessage   = `each key must be a label key such as "app" or "example.com/app"`
	countMessage = `must be a number of Pods such as 5, without quotes, or a percentage such as "20%"`
	valueMessage = "the operators In and NotIn need values, Exists and DoesNotExist take none"
)

// Why Usher refuses some of what OpenKruise accepts.
const (
	noMeaning = "it has no meaning"
	celCost   = "API servers bound what the rules of a CRD may cost"
)

// mounting returns containers that mount the last of a hundred volumes at many places.
func mounting(containers, mounts int) any {
	out := many(containers, "{name: $, image: a}")
	for _, container := range out.([]any) {
		container.(map[string]any)["volumeMounts"] = many(mounts, "{name: n99, mountPath: /$}")
	}
	return out
}

// refused is what Usher refuses.
var refused = []manifest{
	{name: "a selector that misses the template", openkruise: refuses,
		edits:   []any{"spec.selector.matchLabels.app", "other"},
		refusal: "selector.matchLabels must all be among template.metadata.labels: add the missing labels to the template"},
	{name: "an empty selector", openkruise: refuses,
		edits: []any{"spec.selector", of("{}")}, refusal: "selector cannot be empty"},
	{name: "an expression that the template does not meet", openkruise: refuses,
		edits:   []any{"spec.selector.matchExpressions", of(`[{key: app, operator: In, values: [a, b]}]`)},
		refusal: "selector.matchExpressions must match template.metadata.labels"},
	{name: "a selector with a key that is none", openkruise: refuses,
		edits: []any{"spec.selector.matchLabels", of(`{app: web, "a b": c}`), "spec.template.metadata.labels", of(`{app: web, "a b": c}`)}, refusal: keyMessage},
	{name: "a label of the template with a key that is none", openkruise: refuses,
		edits: []any{"spec.template.metadata.labels", of(`{app: web, -a: c}`)}, refusal: keyMessage},
	{name: "a label of the template with a value that is none", openkruise: refuses,
		edits: []any{"spec.template.metadata.labels", of(`{app: web, a: "b c"}`)}, refusal: "spec.template.metadata.labels.a"},
	{name: "an expression with a key that is none", openkruise: refuses,
		edits: []any{"spec.selector.matchExpressions", of(`[{key: "a b", operator: DoesNotExist}]`)}, refusal: "spec.selector.matchExpressions[0].key"},
	{name: "Exists with values", openkruise: refuses,
		edits: []any{"spec.selector", of(`{matchExpressions: [{key: app, operator: Exists, values: [x]}]}`)}, refusal: valueMessage},
	{name: "DoesNotExist with values", openkruise: refuses,
		edits: []any{"spec.selector.matchExpressions", of(`[{key: x, operator: DoesNotExist, values: [x]}]`)}, refusal: valueMessage},
	{name: "In without values", openkruise: refuses,
		edits: []any{"spec.selector.matchExpressions", of(`[{key: app, operator: In}]`)}, refusal: valueMessage},
	{name: "NotIn without values", openkruise: refuses,
		edits: []any{"spec.selector.matchExpressions", of(`[{key: app, operator: NotIn, values: []}]`)}, refusal: valueMessage},

	{name: "no Pod spec", openkruise: refuses,
		edits: []any{"spec.template.spec", nil}, refusal: "template.spec is missing"},
	{name: "containers under template.metadata", openkruise: refuses,
		edits:   []any{"spec.template.metadata.containers", of(`[{name: main}]`), "spec.template.spec", nil},
		refusal: "if they are under template.metadata, mend the indentation"},
	{name: "no containers", openkruise: refuses,
		edits: []any{"spec.template.spec", of("{}")}, refusal: "spec.template.spec.containers: Required value"},
	{name: "a container without an image", openkruise: refuses,
		edits: []any{"spec.template.spec.containers", of(`[{name: main}]`)}, refusal: "spec.template.spec.containers[0].image: Required value"},
	{name: "a container with an empty image", openkruise: refuses,
		edits: []any{"spec.template.spec.containers", of(`[{name: main, image: ""}]`)}, refusal: "spec.template.spec.containers[0].image"},
	{name: "an init container without an image", openkruise: refuses,
		edits: []any{"spec.template.spec.initContainers", of(`[{name: first}]`)}, refusal: "spec.template.spec.initContainers[0].image: Required value"},
	{name: "Pods that end", openkruise: refuses,
		edits: []any{"spec.template.spec.restartPolicy", "Never"}, refusal: "restartPolicy must be Always"},
	{name: "Pods with a deadline", openkruise: refuses,
		edits: []any{"spec.template.spec.activeDeadlineSeconds", 10}, refusal: "activeDeadlineSeconds is for Pods that end"},
	{name: "a mount without a volume", openkruise: refuses,
		edits: []any{"spec.template.spec.containers", of(mountsData)}, refusal: "spec.template.spec.containers: Invalid value: " + mountMessage},
	{name: "a mount of another volume", openkruise: refuses,
		edits: []any{"spec.template.spec.containers", of(mountsData), "spec.template.spec.volumes", of(`[{name: other, emptyDir: {}}]`),
			"spec.volumeClaimTemplates", of(`[{metadata: {name: date}, spec: {}}]`)},
		refusal: mountMessage},
	{name: "an init container's mount without a volume", openkruise: refuses,
		edits:   []any{"spec.template.spec.initContainers", of(mountsData)},
		refusal: "spec.template.spec.initContainers: Invalid value: " + mountMessage},
	{name: "two volumes of one name", openkruise: refuses,
		edits: []any{"spec.template.spec.volumes", of(`[{name: data, emptyDir: {}}, {name: data, emptyDir: {}}]`)}, refusal: "spec.template.spec.volumes[1]: Duplicate value"},
	{name: "a port of the node that is not the container's, with hostNetwork", openkruise: refuses,
		edits: []any{"spec.template.spec.hostNetwork", true,
			"spec.template.spec.containers", of(`[{name: main, image: a, ports: [{containerPort: 80, hostPort: 8080}]}]`)},
		refusal: "with hostNetwork each hostPort must be its containerPort: remove hostPort"},

	{name: "claims without metadata", openkruise: unasked,
		edits: []any{"spec.volumeClaimTemplates", of(`[{spec: {}}]`)}, refusal: "spec.volumeClaimTemplates[0].metadata: Required value"},
	{name: "claims without a name", openkruise: unasked,
		edits: []any{"spec.volumeClaimTemplates", of(`[{metadata: {}}]`)}, refusal: "spec.volumeClaimTemplates[0].metadata.name: Required value"},
	{name: "claims of one name", openkruise: unasked,
		edits:   []any{"spec.volumeClaimTemplates", of(`[{metadata: {name: data}}, {metadata: {name: data}}]`)},
		refusal: "each of volumeClaimTemplates needs a metadata.name of its own"},
	{name: "claims of a name that no volume can have", openkruise: unasked,
		edits: []any{"spec.volumeClaimTemplates", of(`[{metadata: {name: Data}}]`)}, refusal: "spec.volumeClaimTemplates[0].metadata.name"},
	{name: "claims of a volume's name", openkruise: refuses,
		edits: []any{"spec.template.spec.containers", of(mountsData), "spec.template.spec.volumes", of(`[{name: data, emptyDir: {}}]`),
			"spec.volumeClaimTemplates", of(dataClaims)},
		refusal: "a volume of template.spec.volumes has the name of one of volumeClaimTemplates"},

	{name: "a count in quotes", openkruise: refuses,
		edits: []any{"spec.updateStrategy.partition", "5"}, refusal: countMessage},
	{name: "a count that is neither", openkruise: refuses,
		edits: []any{"spec.updateStrategy.maxUnavailable", "all"}, refusal: countMessage},
	{name: "a count beyond all numbers of Pods", openkruise: unasked,
		edits: []any{"spec.updateStrategy.maxUnavailable", 99999999999}, refusal: countMessage},
	{name: "a fraction of a percent", openkruise: accepts,
		edits: []any{"spec.updateStrategy.partition", "1.5%"}, refusal: countMessage, why: "there it is an error at run time"},
	{name: "a negative maxSurge", openkruise: accepts,
		edits: []any{"spec.updateStrategy.maxSurge", -1}, refusal: countMessage, why: noMeaning},
	{name: "a negative maxUnavailable", openkruise: accepts,
		edits: []any{"spec.updateStrategy.maxUnavailable", -1, "spec.updateStrategy.maxSurge", 1}, refusal: countMessage, why: noMeaning},
	{name: "a negative minReadySeconds", openkruise: accepts,
		edits: []any{"spec.minReadySeconds", -1}, refusal: "spec.minReadySeconds in body should be greater than or equal to 0", why: noMeaning},
	{name: "a negative gracePeriodSeconds", openkruise: accepts,
		edits:   []any{"spec.updateStrategy", of(`{type: InPlaceIfPossible, inPlaceUpdateStrategy: {gracePeriodSeconds: -1}}`)},
		refusal: "gracePeriodSeconds in body should be greater than or equal to 0", why: noMeaning},
	{name: "nothing may move", openkruise: refuses,
		edits:   []any{"spec.updateStrategy", of(`{maxUnavailable: 0, maxSurge: 0}`)},
		refusal: "updateStrategy.maxUnavailable and updateStrategy.maxSurge cannot both be 0"},
	{name: "nothing may move, in percent", openkruise: refuses,
		edits:   []any{"spec.updateStrategy", of(`{maxUnavailable: 0%, maxSurge: 00000%}`)},
		refusal: "cannot both be 0: no Pod could ever be updated; raise one of them"},
	{name: "a surge in place alone", openkruise: refuses,
		edits: []any{"spec.updateStrategy", of(`{type: InPlaceOnly, maxSurge: 1}`)}, refusal: "maxSurge must be 0 with type InPlaceOnly"},
	{name: "a type that is none", openkruise: refuses,
		edits: []any{"spec.updateStrategy.type", "Recreate"}, refusal: `supported values: "", "ReCreate", "InPlaceIfPossible", "InPlaceOnly", "OnDelete"`},
	{name: "a Pod named twice", openkruise: refuses,
		edits: []any{"spec.scaleStrategy.podsToDelete", of("[a, a]")}, refusal: `spec.scaleStrategy.podsToDelete[1]: Duplicate value: "a"`},
	{name: "a deadline of no time", openkruise: refuses,
		edits: []any{"spec.progressDeadlineSeconds", 0}, refusal: "spec.progressDeadlineSeconds in body should be greater than or equal to 1"},
	{name: "a deadline within minReadySeconds", openkruise: refuses,
		edits: []any{"spec.progressDeadlineSeconds", 5, "spec.minReadySeconds", 5}, refusal: "progressDeadlineSeconds must be larger than minReadySeconds"},

	{name: "a weight out of range", openkruise: refuses,
		edits: []any{"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 101, matchSelector: {matchLabels: {a: b}}}]`)}, refusal: "should be less than or equal to 100"},
	{name: "a weight for everybody", openkruise: refuses,
		edits: []any{"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 1, matchSelector: {}}]`)}, refusal: "selector cannot be empty"},
	{name: "a weight for a key that is none", openkruise: refuses,
		edits: []any{"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 1, matchSelector: {matchLabels: {"a b": c}}}]`)}, refusal: keyMessage},
	{name: "a weight by an expression with a key that is none", openkruise: refuses,
		edits:   []any{"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 1, matchSelector: {matchExpressions: [{key: /a, operator: Exists}]}}]`)},
		refusal: "spec.updateStrategy.priorityStrategy.weightPriority[0].matchSelector.matchExpressions[0].key"},
	{name: "a weight by In without values", openkruise: refuses,
		edits: []any{"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 1, matchSelector: {matchExpressions: [{key: a, operator: In}]}}]`)}, refusal: valueMessage},
	{name: "weights and an order", openkruise: refuses,
		edits:   []any{"spec.updateStrategy.priorityStrategy", of(`{orderPriority: [{orderedKey: k}], weightPriority: [{weight: 1, matchSelector: {matchLabels: {a: b}}}]}`)},
		refusal: "orderPriority and weightPriority exclude each other"},
	{name: "an order without a key", openkruise: refuses,
		edits: []any{"spec.updateStrategy.priorityStrategy.orderPriority", of(`[{orderedKey: ""}]`)}, refusal: "should be at least 1 chars long"},
	{name: "scattering without a key", openkruise: refuses,
		edits: []any{"spec.updateStrategy.scatterStrategy", of(`[{key: "", value: b}]`)}, refusal: "should be at least 1 chars long"},
	{name: "scattering by one label twice", openkruise: refuses,
		edits: []any{"spec.updateStrategy.scatterStrategy", of(`[{key: a, value: b}, {value: b, key: a}]`)}, refusal: "spec.updateStrategy.scatterStrategy[1]: Duplicate value"},

	{name: "more than 1,024 labels", openkruise: accepts,
		edits: []any{"spec.template.metadata.labels", manyLabels(1024)}, refusal: "must have at most 1024 items", why: celCost},
	{name: "more than 512 expressions", openkruise: accepts,
		edits: []any{"spec.selector.matchExpressions", many(513, "{key: $, operator: DoesNotExist}")}, refusal: "must have at most 512 items", why: celCost},
	{name: "more than 4,096 values of an expression", openkruise: accepts,
		edits: []any{"spec.selector.matchExpressions", []any{map[string]any{"key": "app", "operator": "NotIn", "values": many(4097, "$")}}}, refusal: "must have at most 4096 items", why: celCost},
	{name: "more than 512 weights", openkruise: accepts,
		edits:   []any{"spec.updateStrategy.priorityStrategy.weightPriority", many(513, "{weight: 1, matchSelector: {matchLabels: {a: $}}}")},
		refusal: "must have at most 512 items", why: celCost},
	{name: "more than 256 claim templates", openkruise: accepts,
		edits: []any{"spec.volumeClaimTemplates", many(257, "{metadata: {name: $}, spec: {}}")}, refusal: "must have at most 256 items", why: celCost},
	{name: "more than 256 containers", openkruise: accepts,
		edits: []any{"spec.template.spec.containers", many(257, "{name: $, image: a}")}, refusal: "must have at most 256 items", why: celCost},
	{name: "more than 512 ports of a container", openkruise: accepts,
		edits:   []any{"spec.template.spec.containers", []any{map[string]any{"name": "main", "image": "a", "ports": many(513, "{containerPort: 80, name: $}")}}},
		refusal: "must have at most 512 items", why: celCost},
	{name: "more than 512 mounts of a container", openkruise: accepts,
		edits: []any{"spec.template.spec.containers", mounting(1, 513)}, refusal: "must have at most 512 items", why: celCost},
	{name: "more than 1,024 volumes", openkruise: accepts,
		edits: []any{"spec.template.spec.volumes", many(1025, "{name: $, emptyDir: {}}")}, refusal: "must have at most 1024 items", why: celCost},
	{name: "a million pairs of mount and volume", openkruise: accepts,
		edits:   []any{"spec.template.spec.containers", mounting(100, 100), "spec.template.spec.volumes", many(100, "{name: $, emptyDir: {}}")},
		refusal: "cost limit exceeded", why: celCost},
}

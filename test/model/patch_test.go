// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
)

const patchedObjects = `apiVersion: v1
kind: Pod
metadata:
  {namespace: demo, name: web, uid: "1", resourceVersion: "7", labels: {app: web, track: stable}, annotations: {example.com/weight: "5"},
    finalizers: [a, b, c], ownerReferences: [{apiVersion: v1, kind: Node, name: node, uid: "2"}]}
spec: {nodeName: node, containers: [{name: web, image: "web:1", resources: {requests: {cpu: 100m}}}, {name: log, image: "log:1"}]}
status: {phase: Running, podIP: 192.0.2.1, conditions: [{type: Ready, status: "True"}, {type: ContainersReady, status: "True", reason: Up}]}
---
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {namespace: demo, name: web, resourceVersion: "7", labels: {app: web}}
spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: "web:1"}]}}}
status: {replicas: 2, conditions: [{type: Failed, status: "False", reason: None, message: none, lastTransitionTime: "2026-03-01T12:00:00Z"}]}
---
apiVersion: v1
kind: Secret
metadata: {namespace: demo, name: web}
data: {key: dmFsdWU=}
---
apiVersion: v1
kind: Node
metadata: {name: node}`

// TestPatches: a patch that is applied only to the fields that it names gives the same object as one
// that is applied to the whole object, or the same error.
func TestPatches(t *testing.T) {
	patches := map[types.PatchType][]string{
		types.MergePatchType: {
			`{}`, `{"metadata":{}}`, `{"metadata":{"labels":{"app":null,"new":"x"},"annotations":null,"resourceVersion":"7"}}`,
			`{"metadata":{"finalizers":["b","d"],"unknown":1},"status":{"replicas":3,"conditions":[]}}`, `{"status":null}`,
			`{"spec":{"replicas":5,"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}`, `{"spec":{"template":null}}`,
			`{"Metadata":{"labels":{"app":"other"}}}`, `{"kind":"Other","unknown":{"a":1}}`, `{"data":{"key":null,"more":"bQ=="}}`,
			`{"metadata":{"labels":"text"}}`, `{"metadata":{"labels":{"app":7}}}`, `{"metadata":{"annotations":{}}}`, `{"metadata":{"labels":{"a":""}}}`,
			`{"metadata":{"finalizers":[null,"a"],"generation":"text"}}`, `{"metadata":{"resourceVersion":null,"generation":2.5}}`, `{"metadata":null}`, `{"metadata":[]}`, `[]`, `null`, `{`, ``,
		},
		types.StrategicMergePatchType: {
			`{}`, `{"metadata":{"uid":"1","labels":{"app":null,"new":"x"},"annotations":{"a":"b"}}}`,
			`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"x"},{"type":"New","status":"True"}],"podIP":null}}`,
			`{"status":{"$setElementOrder/conditions":[{"type":"ContainersReady"},{"type":"Ready"}],"conditions":[{"type":"Ready","$patch":"delete"}]}}`,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a","c"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"finalizers":["d"]}}`,
			`{"metadata":{"$setElementOrder/finalizers":["d","a"],"finalizers":["d"]}}`, `{"spec":{"$patch":"replace","nodeName":"other"}}`,
			`{"$patch":"replace","metadata":{"name":"web"}}`, `{"metadata":{"$retainKeys":["name"],"labels":{"a":"b"}}}`,
			`{"spec":{"containers":[{"name":"web","image":"web:2"}]}}`, `{"spec":{"containers":null}}`, `{"metadata":{"labels":7}}`, `{`,
		},
		types.JSONPatchType: {
			`[]`, `[{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/metadata/labels/new","value":"x"}]`,
			`[{"op":"test","path":"/metadata/resourceVersion","value":"8"}]`, `[{"op":"remove","path":"/metadata/labels/none"}]`,
			`[{"op":"replace","path":"/spec/containers/0/image","value":"web:2"},{"op":"test","path":"/spec/nodeName","value":"node"}]`,
			`[{"op":"add","path":"/spec/containers/9","value":{}}]`, `[{"op":"move","from":"/metadata/labels/app","path":"/metadata/annotations/app"}]`,
			`[{"op":"copy","from":"/metadata/labels","path":"/metadata/annotations"}]`, `[{"op":"remove","path":"/status"}]`,
			`[{"op":"replace","path":"/metadata","value":{"name":"web"}},{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`,
			`[{"op":"replace","path":"","value":{"metadata":{"name":"web"}}}]`, `[{"op":"add","path":"/unknown","value":1}]`,
			`[{"op":"add","path":"/metadata/annotations/example.com~1weight","value":"7"}]`, `[{"op":"spoil"}]`, `{`,
		},
	}
	for _, object := range checktest.Must(Read(patchedObjects))(t) {
		for patchType, bodies := range patches {
			for _, body := range bodies {
				if !takes(KindOf(object), patchType) {
					continue
				}
				before := encode.JSON(object)
				part, partErr := patched(object, patchType, []byte(body))
				whole, wholeErr := patchedWhole(object, patchType, []byte(body))
				name := string(KindOf(object)) + " " + string(patchType) + " " + body
				checktest.Same(t, "the error of "+name, errorText(wholeErr), errorText(partErr))
				if wholeErr == nil && partErr == nil {
					checktest.Same(t, "what is made by "+name, string(encode.JSON(whole)), string(encode.JSON(part)))
				}
				checktest.Same(t, "the original after "+name, string(before), string(encode.JSON(object)))
			}
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestPatchesOfParts: a patch of labels leaves the rest of the object as it is in memory.
func TestPatchesOfParts(t *testing.T) {
	var object client.Object
	for _, object = range checktest.Must(Read(patchedObjects))(t) {
		if KindOf(object) == Pods {
			break
		}
	}
	next := checktest.Must(patched(object, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`)))(t)
	if &next.GetFinalizers()[0] != &object.GetFinalizers()[0] || next.GetLabels()["a"] != "b" || object.GetLabels()["a"] != "" {
		t.Errorf("the labels are %v, and before %v, or the finalizers were copied", next.GetLabels(), object.GetLabels())
	}
}

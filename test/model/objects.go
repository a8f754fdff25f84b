// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// Kind names a kind of object, which is also the name of its Go type.
type Kind string

// The kinds of which the models know more than their metadata.
const (
	Pods      Kind = "Pod"
	CloneSets Kind = "CloneSet"
	Revisions Kind = "ControllerRevision"
	Claims    Kind = "PersistentVolumeClaim"
	Nodes     Kind = "Node"
)

// KindOf returns the kind of an object, or of the items of a list.
func KindOf(object any) Kind {
	switch o := object.(type) {
	case runtime.Unstructured:
		return Kind(o.GetObjectKind().GroupVersionKind().Kind)
	case *metav1.PartialObjectMetadata:
		return Kind(o.Kind)
	case *metav1.PartialObjectMetadataList:
		return Kind(strings.TrimSuffix(o.Kind, "List"))
	}
	return Kind(strings.TrimSuffix(reflect.TypeOf(object).Elem().Name(), "List"))
}

// Resource returns the kind's name in the API server's errors.
func (k Kind) Resource() schema.GroupResource {
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: string(k)})
	return plural.GroupResource()
}

// scheme makes objects of the kinds that are written in their raw form.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(apps.AddToScheme(s))
	utilruntime.Must(usher.AddToScheme(s))
	return s
}()

// Read decodes the objects in the documents of a YAML text.
func Read(text string) (objects []client.Object, err error) {
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq(text, "\n---\n") {
		decoded, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", document, err)
		}
		decoded.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		object, _ := decoded.(client.Object) // lists have no names, and are not written down
		objects = append(objects, object)
	}
	return objects, nil
}

// Objects are the objects of a server or a cache.
type Objects map[Kind]map[types.NamespacedName]client.Object

// Clone copies the maps, not the objects.
func (o Objects) Clone() Objects {
	out := make(Objects, len(o))
	for kind, objects := range o {
		out[kind] = maps.Clone(objects)
	}
	return out
}

// Put adds an object, or replaces it.
func (o Objects) Put(kind Kind, object client.Object) {
	if o[kind] == nil {
		o[kind] = map[types.NamespacedName]client.Object{}
	}
	o[kind][client.ObjectKeyFromObject(object)] = object
}

// List lists the objects of a type by name.
func List[T client.Object](o Objects) []T {
	var none T
	return list.Map(Sorted(o[KindOf(none)]), func(object client.Object) T { return object.(T) }) // objects are kept by their kind
}

// Get returns an object of a type; nil if there is none.
func Get[T client.Object](o Objects, at types.NamespacedName) T {
	var none T
	found, _ := o[KindOf(none)][at].(T)
	return found
}

// Sorted lists objects by name.
func Sorted(objects map[types.NamespacedName]client.Object) []client.Object {
	return SortedOnly(objects, func(client.Object) bool { return true })
}

// SortedOnly lists the objects for which keep is true by name.
func SortedOnly(objects map[types.NamespacedName]client.Object, keep func(client.Object) bool) []client.Object {
	var names []types.NamespacedName
	for at, object := range objects {
		if keep(object) {
			names = append(names, at)
		}
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list.Map(names, func(at types.NamespacedName) client.Object { return objects[at] })
}

// Clone returns a deep copy of an object.
func Clone[T client.Object](object T) T {
	out, _ := object.DeepCopyObject().(T) // a copy has the type of its original
	return out
}

// WithVersion returns a shallow copy of an object with another version.
func WithVersion(object client.Object, version string) client.Object {
	out := Empty(object)
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(object).Elem())
	out.SetResourceVersion(version)
	return out
}

// Version returns the version of an object; 0 if it has none.
func Version(object client.Object) int64 {
	number, _ := strconv.ParseInt(object.GetResourceVersion(), 10, 64) // 0 if it is no number
	return number
}

// Empty returns an empty object of the same type.
func Empty(object client.Object) client.Object {
	out, _ := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
	return out
}

// semantic compares the raw templates of CloneSets too.
var semantic = func() conversion.Equalities {
	e := equality.Semantic.Copy()
	utilruntime.Must(e.AddFuncs(
		func(a, b apps.PodTemplate) bool { return bytes.Equal(a.Raw(), b.Raw()) },
		func(a, b apps.ClaimTemplate) bool { return bytes.Equal(a.Raw(), b.Raw()) },
	))
	return e
}()

// Same reports whether two versions of an object look the same to a reader. It compares field by field,
// since most fields are the same.
func Same(a, b client.Object) bool {
	if a == nil || b == nil {
		return a == b
	}
	one, other := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range one.NumField() {
		if !same(one.Field(i).Addr().Interface(), other.Field(i).Addr().Interface()) {
			return false
		}
	}
	return true
}

// same reports whether two values look the same to a reader. Most are the same in memory, and the first
// comparison finds that sooner.
func same(a, b any) bool { return reflect.DeepEqual(a, b) || semantic.DeepEqual(a, b) }

// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"fmt"
	"maps"
	"reflect"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
)

// Client is a controller's client. Verbs that no controller uses are nil.
type Client struct {
	client.Client
	Server *Server
	// Actor is the name of the client in commits.
	Actor string
	// Cache returns the objects that gets and lists read; if it is nil, they read from the server.
	Cache func(Kind) map[types.NamespacedName]client.Object
	// Index holds the fields by which a cache can select objects.
	Index func(client.Object) fields.Set
	// Send takes each request to the server, or to the cache, and the answer back: do
	// carries out the request.
	Send func(r *Request, do func() error) error
}

// Verb is the verb of a request.
type Verb string

// The verbs.
const (
	VerbGet    Verb = "get"
	VerbList   Verb = "list"
	VerbCreate Verb = "create"
	VerbPatch  Verb = "patch"
	VerbDelete Verb = "delete"
)

// Request is one request of a client.
type Request struct {
	Verb        Verb
	Kind        Kind
	At          types.NamespacedName
	Subresource string
	// Cached requests do not reach the server.
	Cached, DryRun bool
	// Patch is the body of a patch.
	Patch []byte
	// Out is the caller's object or list, which the answer is copied into.
	Out any
	// Answer holds the server's objects once the request has been carried out.
	Answer []client.Object
}

// Writes reports whether the request can change an object.
func (r *Request) Writes() bool { return r.Verb != VerbGet && r.Verb != VerbList && !r.DryRun }

// Receive copies an answer into the caller's object or list. The items of a list share
// memory with the answer, as those of a cache do if the caller asks for no copies.
func (r *Request) Receive(answer []client.Object) error {
	r.Answer = answer
	switch out := r.Out.(type) {
	case *unstructured.Unstructured: // it has the methods of a list too
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(answer[0])
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		raw["apiVersion"], raw["kind"] = out.GetAPIVersion(), out.GetKind()
		out.Object = raw
	case *metav1.PartialObjectMetadata:
		out.ObjectMeta = meta.AsPartialObjectMetadata(Clone(answer[0])).ObjectMeta
	case *metav1.PartialObjectMetadataList:
		out.Items = list.Map(answer, func(object client.Object) metav1.PartialObjectMetadata {
			return metav1.PartialObjectMetadata{ObjectMeta: meta.AsPartialObjectMetadata(Clone(object)).ObjectMeta}
		})
	case client.ObjectList:
		return meta.SetList(out, list.Map(answer, func(object client.Object) runtime.Object { return object }))
	case client.Object:
		reflect.ValueOf(out).Elem().Set(reflect.ValueOf(Clone(answer[0])).Elem())
	}
	return nil
}

// send takes a request to the server and back; do returns the objects of the answer.
func (c *Client) send(r *Request, do func() ([]client.Object, error)) error {
	return c.Send(r, func() error {
		answer, err := do()
		if err != nil {
			return err
		}
		return r.Receive(answer)
	})
}

// Get reads an object.
func (c *Client) Get(_ context.Context, at client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	r := &Request{Verb: VerbGet, Kind: KindOf(out), At: at, Cached: c.Cache != nil, Out: out}
	if wrong := content.IsPathSegmentName(at.Name); c.Cache == nil && (at.Name == "" || len(wrong) > 0) {
		return fmt.Errorf("invalid resource name %q: %v", at.Name, wrong) // as client-go answers
	}
	return c.send(r, func() ([]client.Object, error) {
		if object, ok := c.objects(r.Kind)[at]; ok {
			return []client.Object{object}, nil
		}
		return nil, apierrors.NewNotFound(r.Kind.Resource(), at.Name)
	})
}

func (c *Client) objects(kind Kind) map[types.NamespacedName]client.Object {
	if c.Cache != nil {
		return c.Cache(kind)
	}
	return c.Server.Objects[kind]
}

// List reads objects. The server has no index: it selects only as a real one can.
func (c *Client) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	o := client.ListOptions{LabelSelector: labels.Everything(), FieldSelector: fields.Everything()}
	o.ApplyOptions(options)
	if c.Cache == nil && !o.FieldSelector.Empty() {
		return apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", o.FieldSelector))
	}
	r := &Request{Verb: VerbList, Kind: KindOf(into), Cached: c.Cache != nil, Out: into}
	return c.send(r, func() ([]client.Object, error) {
		return SortedOnly(c.objects(r.Kind), func(object client.Object) bool {
			return (o.Namespace == "" || o.Namespace == object.GetNamespace()) && o.LabelSelector.Matches(labels.Set(object.GetLabels())) &&
				(o.FieldSelector.Empty() || o.FieldSelector.Matches(c.Index(object)))
		}), nil
	})
}

// Create creates an object; one in its raw form is decoded strictly if asked.
func (c *Client) Create(_ context.Context, object client.Object, options ...client.CreateOption) error {
	var o client.CreateOptions
	o.ApplyOptions(options)
	typed, err := decode(object, o.FieldValidation == metav1.FieldValidationStrict)
	if err != nil {
		return err
	}
	r := &Request{Verb: VerbCreate, Kind: KindOf(object), At: client.ObjectKeyFromObject(object), DryRun: len(o.DryRun) > 0, Out: object}
	return c.send(r, func() ([]client.Object, error) { return one(c.Server.Create(c.Actor, typed, r.DryRun)) })
}

func one(object client.Object, err error) ([]client.Object, error) {
	return []client.Object{object}, err
}

// decode reads an object from its raw form.
func decode(object client.Object, strict bool) (client.Object, error) {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	made, err := scheme.New(raw.GroupVersionKind())
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw.Object, made, strict)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	typed, _ := made.(client.Object) // the scheme has lists too, but they are never created
	return typed, nil
}

// Patch changes an object.
func (c *Client) Patch(_ context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	var o client.PatchOptions
	o.ApplyOptions(options)
	return c.patch(object, "", patch, len(o.DryRun) > 0)
}

func (c *Client) patch(object client.Object, subresource string, patch client.Patch, dryRun bool) error {
	data, err := patch.Data(object)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	r := &Request{
		Verb: VerbPatch, Kind: KindOf(object), At: client.ObjectKeyFromObject(object), Subresource: subresource, Patch: data, Out: object,
		DryRun: dryRun,
	}
	return c.send(r, func() ([]client.Object, error) {
		return one(c.Server.Patch(c.Actor, r.Kind, r.At, subresource, patch.Type(), r.Patch, dryRun))
	})
}

// Delete deletes an object.
func (c *Client) Delete(_ context.Context, object client.Object, options ...client.DeleteOption) error {
	r := &Request{Verb: VerbDelete, Kind: KindOf(object), At: client.ObjectKeyFromObject(object)}
	return c.send(r, func() ([]client.Object, error) { return nil, c.Server.Delete(c.Actor, object, options...) })
}

// Status returns the status subresource.
func (c *Client) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource returns a subresource by name.
func (c *Client) SubResource(name string) client.SubResourceClient {
	return &subresource{client: c, name: name}
}

type subresource struct {
	client.SubResourceClient
	client *Client
	name   string
}

// Patch changes the subresource of an object.
func (s *subresource) Patch(_ context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	o := (&client.SubResourcePatchOptions{}).ApplyOptions(options)
	return s.client.patch(object, s.name, patch, len(o.DryRun) > 0)
}

// Create creates the subresource of an object: an eviction.
func (s *subresource) Create(_ context.Context, object, body client.Object, options ...client.SubResourceCreateOption) error {
	eviction, ok := body.(*policyv1.Eviction)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("there is no subresource %s to create", s.name))
	}
	o := (&client.SubResourceCreateOptions{}).ApplyOptions(options)
	r := &Request{Verb: VerbCreate, Kind: KindOf(object), At: client.ObjectKeyFromObject(object), Subresource: s.name, DryRun: len(o.DryRun) > 0}
	return s.client.send(r, func() ([]client.Object, error) {
		return nil, s.client.Server.Evict(s.client.Actor, r.At, eviction, r.DryRun)
	})
}

// Cache is a copy of a server's objects of one kind, up to a position in its log.
type Cache struct {
	Objects map[types.NamespacedName]client.Object
	// Shown holds the objects that the copy has ever had.
	Shown map[types.UID]bool
	// Applied is how much of the server's log the copy has.
	Applied int
	// Changed is called after each change of the copy.
	Changed func(before, after client.Object)

	server *Server
	kind   Kind
}

// NewCache returns a copy of the objects as they are now.
func NewCache(s *Server, kind Kind, changed func(before, after client.Object)) *Cache {
	c := &Cache{server: s, kind: kind, Shown: map[types.UID]bool{}, Changed: func(_, _ client.Object) {}}
	c.Relist()
	c.Changed = changed
	return c
}

// Report reports every object as new, as the first list does.
func (c *Cache) Report() {
	for _, object := range Sorted(c.Objects) {
		c.Changed(nil, object)
	}
}

// Deliver moves the copy forward to a position in the log, event by event.
func (c *Cache) Deliver(upTo int) {
	for c.Applied < upTo {
		commit := c.server.Log[c.kind][c.Applied]
		c.Applied++
		at := client.ObjectKeyFromObject(commit.Object())
		before := c.Objects[at]
		if commit.New == nil {
			delete(c.Objects, at)
		} else {
			c.put(at, commit.New)
		}
		c.Changed(before, commit.New)
	}
}

// Relist replaces the copy with the present state. An object that was removed and
// recreated under the same name shows as an update.
func (c *Cache) Relist() { c.replace(maps.Clone(c.server.Objects[c.kind]), len(c.server.Log[c.kind])) }

// RelistAt replaces the copy with the state at a position in the log, not before that of the copy: that is what an API
// server lists whose own cache lags, and a client asks for nothing older than it has.
func (c *Cache) RelistAt(position int) {
	objects := maps.Clone(c.Objects)
	for _, commit := range c.server.Log[c.kind][c.Applied:position] {
		if at := client.ObjectKeyFromObject(commit.Object()); commit.New == nil {
			delete(objects, at)
		} else {
			objects[at] = commit.New
		}
	}
	c.replace(objects, position)
}

// Present returns the position of the server's log.
func (c *Cache) Present() int { return len(c.server.Log[c.kind]) }

// replace replaces the copy as a list does.
func (c *Cache) replace(objects map[types.NamespacedName]client.Object, position int) {
	before := c.Objects
	c.Applied, c.Objects = position, map[types.NamespacedName]client.Object{}
	for at, object := range objects {
		c.put(at, object)
	}
	for _, object := range Sorted(before) {
		if c.Objects[client.ObjectKeyFromObject(object)] == nil {
			c.Changed(object, nil)
		}
	}
	for _, object := range Sorted(c.Objects) {
		was := before[client.ObjectKeyFromObject(object)]
		if was == nil || was.GetResourceVersion() != object.GetResourceVersion() {
			c.Changed(was, object)
		}
	}
}

func (c *Cache) put(at types.NamespacedName, object client.Object) {
	c.Objects[at], c.Shown[object.GetUID()] = object, true
}

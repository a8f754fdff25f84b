// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

var resource = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}

// faulty is an API server that refuses the calls for which fault returns an error.
// fault receives a verb and the slice's name, or the name prefix of a new slice.
type faulty struct {
	*testing.T
	*Registry
	fault  func(verb, name string) error
	writes []string
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{T: t, fault: func(string, string) error { return nil }}
	made := 0
	wrote := func(verb, name string) error {
		if err := f.fault(verb, name); err != nil {
			return err
		}
		f.writes = append(f.writes, verb+" "+name)
		return nil
	}
	kube := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := wrote("create", o.GetGenerateName()); err != nil {
				return err
			}
			made++
			o.SetName(fmt.Sprintf("%s%d", o.GetGenerateName(), made))
			// The fake client sets no UIDs.
			o.SetUID(types.UID(o.GetName()))
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := wrote("update", o.GetName()); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := wrote("delete", o.GetName()); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	})
	f.Registry = New(Options{Reader: kube, Writer: kube, Namespace: "demo"})
	return f
}

func (f *faulty) apply(op registry.Op, entries ...registry.Entry) error {
	f.Helper()
	f.writes = nil
	return registrytest.TryChange(f.T, f.Registry, op, entries...)
}

func (f *faulty) put(entries ...registry.Entry) {
	f.Helper()
	checktest.NoError(f.T, f.apply(registry.Put, entries...))
}

// fails lets calls fail with an error, if it is not nil, until the next fails.
func (f *faulty) fails(verb string, err error) {
	f.fault = func(called, _ string) error {
		if verb != "" && called != verb {
			return nil
		}
		return err
	}
}

// wrote checks the writes of the last change.
func (f *faulty) wrote(want string) {
	f.Helper()
	checktest.Same(f, "written", want, strings.Join(f.writes, ", "))
}

// lists checks the listed IDs with their port names.
func (f *faulty) lists(want string) {
	f.Helper()
	have := list.Map(registrytest.List(f.T, f.Registry), func(e registry.Entry) string { return strings.TrimSpace(e.ID + " " + e.Metadata[MetaPortName]) })
	checktest.Same(f, "listed", want, strings.Join(have, ","))
}

func entry(n int, portName string) registry.Entry {
	e := registrytest.Entry(fmt.Sprintf("web-%d", n))
	e.Address, e.Metadata = fmt.Sprintf("10.0.0.%d", n), nil
	if portName != "" {
		e.Metadata = map[string]string{MetaPortName: portName}
	}
	return e
}

func conflict() error { return apierrors.NewConflict(resource, "web", errors.New("changed")) }

// TestMoveIsNeverNowhere moves entries to another slice and fails halfway.
func TestMoveIsNeverNowhere(t *testing.T) {
	f := newFaulty(t)
	f.put(entry(1, ""), entry(2, ""))
	f.fails("create", apierrors.NewServiceUnavailable("down"))
	registrytest.Check(t, "a move that fails", f.apply(registry.Put, entry(1, "http")), registry.ErrTransient)
	f.lists("web-1,web-2")
	f.fails("", nil)
	f.put(entry(1, "http"))
	f.wrote("create web-usher-, update web-usher-1")
	f.lists("web-1 http,web-2")
	f.put(entry(2, "http"))
	f.wrote("update web-usher-2, delete web-usher-1")
	f.lists("web-1 http,web-2 http")
}

// TestSliceChangedMeanwhile retries changes, but not for ever.
func TestSliceChangedMeanwhile(t *testing.T) {
	f := newFaulty(t)
	f.put(entry(1, ""))
	tries := 0
	f.fault = func(string, string) error {
		if tries++; tries < registry.MaxRounds {
			return conflict()
		}
		return nil
	}
	f.put(entry(2, ""))
	f.lists("web-1,web-2")
	f.fails("", conflict())
	registrytest.CheckRefused(t, "for ever", f.apply(registry.Remove, entry(1, "")), "web-1", registry.ErrConflict)
	f.lists("web-1,web-2")
}

// TestRefusedSliceKeepsNoOtherBack continues with the slices that are accepted.
func TestRefusedSliceKeepsNoOtherBack(t *testing.T) {
	f := newFaulty(t)
	f.put(entry(1, "a"), entry(2, "b"))
	f.fault = func(_, name string) error {
		if name == "web-usher-1" {
			return apierrors.NewInvalid(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice").GroupKind(), name, nil)
		}
		return nil
	}
	registrytest.CheckRefused(t, "one slice", f.apply(registry.Put, entry(3, "a"), entry(4, "b")), "web-3", registry.ErrPermanent)
	f.lists("web-1 a,web-2 b,web-4 b")
}

// TestRefusalsNameTheirRemedy checks that each kind of refusal names what helps against it, and no other.
func TestRefusalsNameTheirRemedy(t *testing.T) {
	const value, restricted = "rbac.endpointSlices", "endpointslices/restricted"
	for name, test := range map[string]struct {
		cause  string
		remedy []string
	}{
		"no right": {
			`User "system:serviceaccount:usher-system:usher" cannot create resource "endpointslices" in API group "discovery.k8s.io" in the namespace "demo"`,
			[]string{value},
		},
		"OpenShift": {"endpoint address 10.128.0.7 is not allowed", []string{restricted}},
		"a quota":   {"exceeded quota: slices, requested: 1, used: 5, limited: 5", nil},
		"a policy":  {"ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", nil},
	} {
		f := newFaulty(t)
		f.fault = func(string, string) error { return apierrors.NewForbidden(resource, "", errors.New(test.cause)) }
		err := f.apply(registry.Put, entry(1, "a"))
		registrytest.Check(t, name, err, registry.ErrPermanent, test.cause)
		for _, remedy := range []string{value, restricted} {
			if has, want := strings.Contains(fmt.Sprint(err), remedy), slices.Contains(test.remedy, remedy); has != want {
				t.Errorf("%s: names %s: %t, wanted %t: %v", name, remedy, has, want, err)
			}
		}
	}
}

func TestTyped(t *testing.T) {
	for name, test := range map[string]struct{ err, want error }{
		"forbidden":    {apierrors.NewForbidden(resource, "web", errors.New("no")), registry.ErrPermanent},
		"unauthorized": {apierrors.NewUnauthorized("no"), registry.ErrPermanent},
		"overloaded":   {apierrors.NewTooManyRequests("later", 1), registry.ErrTransient},
		"broken":       {apierrors.NewInternalError(errors.New("broken")), registry.ErrTransient},
		"unreachable":  {errors.New("connection refused"), registry.ErrTransient},
	} {
		registrytest.Check(t, name, Typed(t.Context(), fmt.Errorf("list: %w", test.err)), test.want)
	}
}

// FuzzDecode decodes the annotation of a slice, and writes it again.
func FuzzDecode(f *testing.F) {
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{discoveryv1.LabelManagedBy: Manager}, Annotations: map[string]string{AnnotationEntries: text},
		}}
		for _, uid := range []types.UID{"a", "b", "b", ""} {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{UID: uid}})
		}
		l := newLayout(discoveryv1.EndpointSlice{}, []discoveryv1.EndpointSlice{s})
		l.shelves[0].render()
		return l.entries()
	})
}

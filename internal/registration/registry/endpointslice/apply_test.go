// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/usher-dev/usher/internal/registration/registry"
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
	r, err := New(Options{Reader: kube, Writer: kube, Namespace: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	f.Registry = r
	return f
}

func (f *faulty) apply(op registry.Op, entries ...registry.Entry) error {
	f.Helper()
	listed, err := f.List(f.Context(), "web")
	if err != nil {
		f.Fatal(err)
	}
	var changes []registry.Change
	for _, e := range entries {
		for _, have := range listed {
			if have.ID == e.ID {
				e.Version = have.Version
			}
		}
		changes = append(changes, registry.Change{Op: op, Entry: e})
	}
	f.writes = nil
	return f.Apply(f.Context(), "web", changes)
}

func (f *faulty) put(entries ...registry.Entry) {
	f.Helper()
	if err := f.apply(registry.Put, entries...); err != nil {
		f.Fatal(err)
	}
}

// lists checks the listed IDs with their port names.
func (f *faulty) lists(want string) {
	f.Helper()
	entries, err := f.List(f.Context(), "web")
	if err != nil {
		f.Fatal(err)
	}
	var have []string
	for _, e := range entries {
		have = append(have, strings.TrimSpace(e.ID+" "+e.Metadata[MetaPortName]))
	}
	if strings.Join(have, ",") != want {
		f.Errorf("listed: %v, want %s", have, want)
	}
}

func entry(n int, portName string) registry.Entry {
	id := fmt.Sprintf("web-%d", n)
	e := registry.Entry{
		ID: id, Address: fmt.Sprintf("10.0.0.%d", n), Port: 80, Weight: 1,
		Owner: registry.Owner{Cluster: "here", Namespace: "demo", Registration: "web", Pod: id, PodUID: "uid-" + id},
	}
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
	f.fault = func(verb, _ string) error {
		if verb == "create" {
			return apierrors.NewServiceUnavailable("down")
		}
		return nil
	}
	if err := f.apply(registry.Put, entry(1, "http")); !errors.Is(err, registry.ErrTransient) {
		t.Errorf("a move that fails: %v", err)
	}
	f.lists("web-1,web-2")
	f.fault = func(string, string) error { return nil }
	f.put(entry(1, "http"))
	if have := strings.Join(f.writes, ", "); have != "create web-usher-, update web-usher-1" {
		t.Errorf("a move is written as %s", have)
	}
	f.lists("web-1 http,web-2")
	f.put(entry(2, "http"))
	if have := strings.Join(f.writes, ", "); have != "update web-usher-2, delete web-usher-1" {
		t.Errorf("the last one's move is written as %s", have)
	}
	f.lists("web-1 http,web-2 http")
}

// TestSliceChangedMeanwhile retries changes, but not for ever.
func TestSliceChangedMeanwhile(t *testing.T) {
	f := newFaulty(t)
	f.put(entry(1, ""))
	tries := 0
	f.fault = func(string, string) error {
		if tries++; tries < maxRounds {
			return conflict()
		}
		return nil
	}
	f.put(entry(2, ""))
	f.lists("web-1,web-2")
	f.fault = func(string, string) error { return conflict() }
	byID, rest := registry.ChangeErrors(f.apply(registry.Remove, entry(1, "")))
	if rest != nil || !errors.Is(byID["web-1"], registry.ErrConflict) {
		t.Errorf("for ever: %v, %v", byID, rest)
	}
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
	byID, rest := registry.ChangeErrors(f.apply(registry.Put, entry(3, "a"), entry(4, "b")))
	if rest != nil || len(byID) != 1 || !errors.Is(byID["web-3"], registry.ErrPermanent) {
		t.Errorf("refused: %v, %v", byID, rest)
	}
	f.lists("web-1 a,web-2 b,web-4 b")
}

func TestTyped(t *testing.T) {
	for name, test := range map[string]struct{ err, want error }{
		"forbidden":    {apierrors.NewForbidden(resource, "web", errors.New("no")), registry.ErrPermanent},
		"unauthorized": {apierrors.NewUnauthorized("no"), registry.ErrPermanent},
		"overloaded":   {apierrors.NewTooManyRequests("later", 1), registry.ErrTransient},
		"broken":       {apierrors.NewInternalError(errors.New("broken")), registry.ErrTransient},
		"unreachable":  {errors.New("connection refused"), registry.ErrTransient},
	} {
		if err := typed(t.Context(), fmt.Errorf("list: %w", test.err)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if _, err := New(Options{}); !errors.Is(err, registry.ErrPermanent) {
		t.Errorf("no client: %v", err)
	}
}

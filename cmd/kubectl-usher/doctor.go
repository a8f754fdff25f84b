// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	regplan "github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/view"
)

// usherLabels are the labels of all objects of the chart.
var usherLabels = client.MatchingLabels{"app.kubernetes.io/name": "usher"}

func doctorCommand(s *session) *cobra.Command {
	return s.outputs(command("doctor", cobra.NoArgs, nil, func(ctx context.Context, _ []string) error {
		if err := s.connect(); err != nil {
			return err
		}
		s.discovery.Invalidate() // kubectl remembers for hours which kinds there are
		read, err := s.readAll(ctx)
		if err != nil {
			return err
		}
		screen := s.page()
		found := view.Examine(screen.clock(time.Now()), read)
		if err := screen.answer(found, func(p *page) { p.findings(found) }); err != nil {
			return err
		}
		return judge(found)
	}), "json", "yaml", "wide")
}

// unknownCode is the exit code of an examination that finds nothing wrong, but could not examine
// everything.
const unknownCode = 3

// judge returns the error that ends an examination.
func judge(found []view.Finding) error {
	switch {
	case slices.ContainsFunc(found, func(f view.Finding) bool { return f.Wrong }):
		return errors.New("something does not work")
	case slices.ContainsFunc(found, func(f view.Finding) bool { return f.Unknown }):
		return exitCode(unknownCode)
	}
	return nil
}

// findings prints the findings, and the questions that could not be examined.
func (p *page) findings(found []view.Finding) {
	unknown := 0
	for _, f := range found {
		switch {
		case f.Wrong:
			p.line(red, "wrong  %s: %s", f.Object, f.Message)
		case f.Unknown:
			unknown++
			p.line(dim, "not looked at: %s: %s", f.Object, f.Message)
		default:
			p.line(plain, "risk   %s: %s", f.Object, f.Message)
		}
	}
	switch {
	case len(found) == 0:
		p.line(plain, "Nothing is wrong.")
	case view.Blind(found):
		p.line(plain, "Nothing was looked at: you may look at none of it. Choose a namespace in which you may with -n NAMESPACE, "+
			"or ask for the rights that https://usher.dev/plugin.html lists.")
	case len(found) == unknown:
		p.line(plain, "Nothing is wrong in what you may look at; https://usher.dev/plugin.html lists the rights.")
	}
}

// readAll reads the input of an examination. Kinds that the caller may not list in all namespaces are
// read in the session's own.
func (s *session) readAll(ctx context.Context) (view.Read, error) {
	read := view.Read{Namespace: s.namespace}
	for _, kind := range []schema.GroupVersionKind{
		kindDeployment, kindLease, kindWebhooks, kindCloneSet, kindRegistration, kindRegistry, kindPod, kindEvent,
	} {
		some, err := s.list(ctx, kind, ofDoctor(kind)...)
		if apierrors.IsForbidden(err) && slices.Contains(tenants, kind) {
			if some, err = s.list(ctx, kind, append(ofDoctor(kind), client.InNamespace(s.namespace))...); err == nil {
				read.Partly = append(read.Partly, kind.Kind)
			}
		}
		switch {
		case apierrors.IsForbidden(err):
			read.Unread = append(read.Unread, kind.Kind)
		case meta.IsNoMatchError(err), withdrawn(err):
			read.Missing = append(read.Missing, kind.Kind)
		case err != nil:
			return read, failed(err, "list %s", plural(kind))
		}
		read.All = append(read.All, some...)
	}
	return read, nil
}

// tenants are the kinds for which the objects of a single namespace are useful.
var tenants = []schema.GroupVersionKind{kindCloneSet, kindRegistration, kindPod, kindEvent}

// ofDoctor returns the options that select the objects of a kind that an examination needs.
func ofDoctor(kind schema.GroupVersionKind) []client.ListOption {
	switch kind {
	case kindDeployment, kindWebhooks:
		return []client.ListOption{usherLabels}
	case kindEvent: // other events matter to no finding, and are many
		return []client.ListOption{client.MatchingFields{"reason": regplan.ReasonUnguarded}}
	}
	return nil
}

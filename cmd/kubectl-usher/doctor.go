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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	regplan "github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/view"
)

// usherLabels are those of everything that the chart makes.
var usherLabels = client.MatchingLabels{"app.kubernetes.io/name": "usher"}

func doctorCommand(s *session) *cobra.Command {
	return s.outputs(command("doctor", cobra.NoArgs, nil, func(ctx context.Context, _ []string) error {
		if err := s.connect(); err != nil {
			return err
		}
		s.discovery.Invalidate() // kubectl remembers for hours which kinds there are
		found, unread, err := s.examine(ctx)
		if err != nil {
			return err
		}
		if err := s.page().answer(found, func(p *page) { p.findings(found, unread) }); err != nil {
			return err
		}
		if slices.ContainsFunc(found, func(f view.Finding) bool { return f.Wrong }) {
			return errors.New("something does not work")
		}
		return nil
	}), "json", "yaml")
}

// findings prints what was found, and what could not be looked at.
func (p *page) findings(found []view.Finding, unread []string) {
	for _, f := range found {
		mark, colour := "risk ", plain
		if f.Wrong {
			mark, colour = "wrong", red
		}
		p.line(colour, "%s  %s: %s", mark, f.Object, f.Message)
	}
	for _, what := range unread {
		p.line(dim, "not looked at: %s", what)
	}
	if len(found) == 0 {
		p.line(plain, "Nothing is wrong.")
	}
}

// examine reads what an examination looks at. unread is what the caller may not read.
func (s *session) examine(ctx context.Context) (found []view.Finding, unread []string, err error) {
	var missing []string
	var all []metav1.Object
	for _, kind := range []schema.GroupVersionKind{
		kindDeployment, kindLease, kindWebhooks, kindCloneSet, kindRegistration, kindRegistry, kindPod, kindEvent,
	} {
		var options []client.ListOption
		if kind == kindDeployment || kind == kindWebhooks {
			options = append(options, usherLabels)
		}
		if kind == kindEvent { // others are no findings, and many
			options = append(options, client.MatchingFields{"reason": regplan.ReasonUnguarded})
		}
		some, err := s.list(ctx, kind, options...)
		switch {
		case apierrors.IsForbidden(err):
			unread = append(unread, plural(kind)+" (forbidden)")
		case meta.IsNoMatchError(err), withdrawn(err):
			missing = append(missing, kind.Kind)
		case err != nil:
			return nil, nil, failed(err, "list %s", plural(kind))
		}
		all = append(all, some...)
	}
	return view.Examine(time.Now(), missing, all), unread, nil
}

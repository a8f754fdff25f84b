// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
)

// usherLabels are those of everything that the chart makes.
var usherLabels = client.MatchingLabels{"app.kubernetes.io/name": "usher"}

func doctorCommand(s *session) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use: "doctor", Args: cobra.NoArgs,
		Short: "What is wrong with this installation of Usher, and what to do",
		Long: `What is wrong with this installation of Usher, and what to do.

It looks at all namespaces that you may read. The exit code is 1 if something does not work.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.connect(); err != nil {
				return err
			}
			if known, err := s.flags.ToDiscoveryClient(); err == nil {
				known.Invalidate() // kubectl remembers for hours which kinds there are
			}
			cluster, unread, err := s.cluster(c.Context())
			if err != nil {
				return err
			}
			found := view.Examine(cluster)
			if err := s.answer(output, found, func(p *page) { p.findings(found, unread) }); err != nil {
				return err
			}
			if slices.ContainsFunc(found, func(f view.Finding) bool { return f.Wrong }) {
				return errors.New("something does not work")
			}
			return nil
		},
	}
	return outputs(command, &output, "json", "yaml")
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

// cluster reads what an examination looks at. unread is what the caller may not read.
func (s *session) cluster(ctx context.Context) (c *view.Cluster, unread []string, err error) {
	var (
		deployments   appsv1.DeploymentList
		leases        coordinationv1.LeaseList
		guards        admissionregistrationv1.ValidatingWebhookConfigurationList
		sets          apps.CloneSetList
		registrations usherv1alpha1.RegistrationList
		registries    usherv1alpha1.RegistryList
		pods          corev1.PodList
	)
	for _, list := range []struct {
		what    string
		into    client.ObjectList
		options []client.ListOption
	}{
		{"Deployments", &deployments, []client.ListOption{usherLabels}},
		{"Leases", &leases, nil},
		{"ValidatingWebhookConfigurations", &guards, []client.ListOption{usherLabels}},
		{"CloneSets", &sets, nil}, {"Registrations", &registrations, nil}, {"Registries", &registries, nil}, {"Pods", &pods, nil},
	} {
		switch err := s.client.List(ctx, list.into, list.options...); {
		case apierrors.IsForbidden(err):
			unread = append(unread, list.what+" (forbidden)")
		case meta.IsNoMatchError(err), withdrawn(err), err == nil:
		default:
			return nil, nil, failed(err, "list %s", list.what)
		}
	}
	c = &view.Cluster{
		Now: time.Now(), Kinds: s.kinds(), Deployments: pointers(deployments.Items), Guards: pointers(guards.Items),
		CloneSets: pointers(sets.Items), Registrations: pointers(registrations.Items), Registries: pointers(registries.Items), Pods: pointers(pods.Items),
	}
	for _, lease := range pointers(leases.Items) {
		if strings.HasSuffix(lease.Name, "usher.dev") {
			c.Leases = append(c.Leases, lease)
		}
	}
	return c, unread, nil
}

// kinds are those of Usher's API that the API server knows.
func (s *session) kinds() []string {
	var known []string
	for _, kind := range view.Kinds {
		group := usherv1alpha1.GroupVersion.Group
		if kind == apps.KindCloneSet.Kind {
			group = apps.GroupVersion.Group
		}
		if _, err := s.mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind}); err == nil {
			known = append(known, kind)
		}
	}
	return known
}

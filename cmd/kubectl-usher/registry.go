// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

var kindRegistry = schema.GroupKind{Group: usherv1alpha1.GroupVersion.Group, Kind: "Registry"}

func registryCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "registry [NAME]", Args: cobra.MaximumNArgs(1),
		Short: "The registries, whether they answer, and whose Pods they list",
		Long: `The registries, whether they answer, and whose Pods they list.

The numbers are those of the last pass of the hook operator, which reads them back from the
registry. With NAME, each Registration that uses it, what it refuses, and the last outage.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.connect(); err != nil {
				return err
			}
			if len(args) == 1 {
				return s.registry(c.Context(), args[0])
			}
			return s.allRegistries(c.Context())
		},
	}
}

func (s *session) allRegistries(ctx context.Context) error {
	var list usherv1alpha1.RegistryList
	if err := s.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list Registries: %w", err)
	}
	var rows []row
	for i := range list.Items {
		r := &list.Items[i]
		state, colour := reachable(r)
		rows = append(rows, row{colour, []string{r.Name, cmp.Or(r.Status.Kind, "-"), state, strconv.Itoa(len(r.Status.Users)), outage(r, time.Now())}})
	}
	s.page().table([]string{"REGISTRY", "KIND", "ANSWERS", "SERVICES", "LAST OUTAGE"}, rows)
	return nil
}

func reachable(r *usherv1alpha1.Registry) (state, colour string) {
	c := apimeta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReachable)
	switch {
	case c == nil:
		return "not asked yet", dim
	case c.Status == metav1.ConditionTrue:
		return "yes", plain
	}
	return "no: " + c.Message, red
}

func outage(r *usherv1alpha1.Registry, now time.Time) string {
	o := r.Status.LastOutage
	switch {
	case o == nil:
		return "-"
	case o.To == nil:
		return "since " + ago(now, o.From.Time)
	}
	return fmt.Sprintf("%s ago, for %s", ago(now, o.To.Time), ago(o.To.Time, o.From.Time))
}

// registry prints who uses one registry.
func (s *session) registry(ctx context.Context, name string) error {
	r := &usherv1alpha1.Registry{}
	if err := s.get(ctx, target{kindRegistry, name}, r); err != nil {
		return err
	}
	p := s.page()
	state, colour := reachable(r)
	p.line(colour, "Registry %s (%s)  answers: %s", r.Name, r.Status.Kind, state)
	p.line(plain, "Last outage  %s\n", outage(r, time.Now()))
	var rows []row
	for _, user := range r.Status.Users {
		registration := &usherv1alpha1.Registration{}
		err := s.client.Get(ctx, client.ObjectKey{Namespace: user.Namespace, Name: user.Registration}, registration)
		line := row{cells: []string{user.Namespace + "/" + user.Registration, user.Service, "-", "-", "-", ""}}
		if apierrors.IsNotFound(err) {
			line.colour, line.cells[5] = red, "the Registration is gone, and its entries may be left"
		} else if err != nil {
			return fmt.Errorf("read Registration %s/%s: %w", user.Namespace, user.Registration, err)
		}
		rows = append(rows, withNumbers(line, registration, name))
	}
	p.table([]string{"REGISTRATION", "SERVICE", "LISTED", "DRAINING", "WAITING", "ERROR"}, rows)
	return nil
}

func withNumbers(line row, registration *usherv1alpha1.Registration, registry string) row {
	for _, one := range registration.Status.Registries {
		if one.Name != registry {
			continue
		}
		for i, count := range []int32{one.Registered, one.Draining, one.Waiting} {
			line.cells[2+i] = strconv.Itoa(int(count))
		}
		if one.Error != "" {
			line.colour, line.cells[5] = red, strings.ReplaceAll(one.Error, "\n", " ")
		}
	}
	return line
}

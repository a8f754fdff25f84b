// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

func registryCommand(s *session) *cobra.Command {
	var diff bool
	command := command("registry", cobra.MaximumNArgs(1), names(s.registryNames).offer, func(ctx context.Context, args []string) error {
		if diff && len(args) == 0 {
			return errors.New("--diff needs the name of a Registry: kubectl usher registry lists them")
		}
		if err := s.connect(); err != nil {
			return err
		}
		if len(args) == 1 {
			return s.registry(ctx, args[0], diff)
		}
		return s.allRegistries(ctx)
	})
	command.Flags().BoolVar(&diff, "diff", false, "compare the entries with what the Pods ask for")
	return s.outputs(command, "json", "yaml", "wide", "name")
}

func (s *session) allRegistries(ctx context.Context) error {
	found, err := s.list(ctx, kindRegistry)
	if err != nil {
		return failed(err, "list Registries")
	}
	var all []view.Registry
	var names []string
	var rows []row
	clock := s.page().clock(time.Now())
	for _, one := range view.Each[*usherv1alpha1.Registry](found) {
		r := view.OfRegistry(time.Now(), one, nil)
		state, colour := answers(&r)
		all, names = append(all, r), append(names, "registry/"+r.Name)
		rows = append(rows, row{colour, []string{r.Name, cmp.Or(r.Kind, "-"), state, strconv.Itoa(len(one.Status.Users)), outage(&r, clock)}})
	}
	return s.page().answer(all, func(p *page) {
		if len(all) == 0 {
			printf(s.ErrOut, "There are no Registries; https://usher.dev/registration.html shows how to make one.\n")
			return
		}
		p.table([]string{"REGISTRY", "KIND", "ANSWERS", "SERVICES", "LAST OUTAGE"}, rows)
	}, names...)
}

func answers(r *view.Registry) (state, colour string) {
	switch r.Answers {
	case string(metav1.ConditionTrue):
		return "yes", plain
	case string(metav1.ConditionFalse):
		return "no: " + r.Message, red
	}
	return "not asked yet", dim
}

func outage(r *view.Registry, clock view.Clock) string {
	switch {
	case r.OutageFrom.IsZero():
		return "-"
	case r.OutageTo.IsZero():
		return clock.Since(r.OutageFrom)
	}
	return clock.Ago(r.OutageTo) + ", for " + view.Lasted(r.OutageFrom, r.OutageTo)
}

// registry prints the Registrations that use one registry, and with diff the entries that it lists.
func (s *session) registry(ctx context.Context, name string, diff bool) error {
	r := &usherv1alpha1.Registry{}
	if err := s.get(ctx, target{kindRegistry, name}, r); err != nil {
		return err
	}
	namespaces, err := s.users(ctx, r, diff)
	if err != nil {
		return err
	}
	v := view.OfRegistry(time.Now(), r, namespaces)
	return s.page().answer(v, func(p *page) { p.registry(&v, time.Now(), diff) }, "registry/"+v.Name)
}

// users reads the namespaces that use a registry: all of them, or the one of --namespace.
func (s *session) users(ctx context.Context, r *usherv1alpha1.Registry, pods bool) (all []view.Namespace, err error) {
	names := list.Map(r.Status.Users, func(u usherv1alpha1.RegistryUser) string { return u.Namespace })
	registrations, err := s.list(ctx, kindRegistration)
	if err != nil && !apierrors.IsForbidden(err) { // forbidden: use the recorded namespaces
		return nil, failed(err, "list Registrations")
	}
	for _, one := range view.Each[*usherv1alpha1.Registration](registrations) {
		if slices.Contains(one.Spec.Registries, r.Name) {
			names = append(names, one.Namespace)
		}
	}
	if *s.flags.Namespace != "" {
		names = []string{s.namespace}
	}
	kinds := []schema.GroupVersionKind{kindRegistration}
	if pods {
		kinds = append(kinds, kindCloneSet, kindPod)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		n := view.Namespace{Name: name}
		switch n.Objects, err = s.in(name).read(ctx, kinds...); {
		case apierrors.IsForbidden(err):
			n.Unread = "not looked at: " + err.Error()
		case err != nil:
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// registry prints a registry for people.
func (p *page) registry(r *view.Registry, now time.Time, diff bool) {
	state, colour := answers(r)
	p.line(colour, "Registry %s (%s)  answers: %s", r.Name, cmp.Or(r.Kind, "-"), state)
	p.line(plain, "Last outage  %s", outage(r, p.clock(now)))
	if !diff {
		p.line(plain, "")
		p.uses(r)
		return
	}
	for _, u := range r.Uses {
		p.line(plain, "")
		p.use(&u)
	}
	if len(r.Uses) == 0 {
		p.line(plain, "\nNo Registration has entries in it.")
	}
}

// uses prints a line for each Registration.
func (p *page) uses(r *view.Registry) {
	rows := make([]row, 0, len(r.Uses))
	for _, u := range r.Uses {
		line := row{cells: []string{u.Namespace + "/" + u.Registration, u.Service}}
		for _, count := range []int{u.Listed, u.Differing, u.Draining, u.Waiting} {
			text := "-"
			if u.Known {
				text = strconv.Itoa(count)
			}
			line.cells = append(line.cells, text)
		}
		line.cells = append(line.cells, cmp.Or(u.Problem, "-"))
		if u.Problem != "" {
			line.colour = red
		}
		rows = append(rows, line)
	}
	p.table([]string{"REGISTRATION", "SERVICE", "LISTED", "DIFFERING", "DRAINING", "WAITING", "PROBLEM"}, rows)
}

// use prints the entries that are listed for one Registration, next to those that should be.
func (p *page) use(u *view.Use) {
	counts := ""
	if u.Known {
		counts = fmt.Sprintf(": %s expected, %d listed, %d differing", list.Count(u.Expected, "entry"), u.Listed, u.Differing)
	}
	p.line(bold, "Registration %s/%s, service %s%s", u.Namespace, u.Registration, u.Service, counts)
	if u.Problem != "" {
		p.line(red, "%s", u.Problem)
	}
	var rows []row
	differ := 0
	for _, e := range u.Entries {
		if e.Same() && !p.wide() {
			continue
		}
		line := row{cells: []string{e.Pod, e.ID, cmp.Or(e.Address, "-"), e.Should, e.Is, cmp.Or(e.Why, "-")}}
		if !e.Same() && e.Is != view.EntryUnknown {
			line.colour = red
			differ++
		}
		rows = append(rows, line)
	}
	if len(rows) > 0 {
		p.table([]string{"POD", "ENTRY", "ADDRESS", "SHOULD BE", "IS", "WHY"}, rows)
	}
	if more := u.Differing - differ; more > 0 {
		p.line(plain, "and %d more; kubectl usher status says what each Pod waits for", more)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/printable"
	"github.com/usher-dev/usher/internal/view"
)

// changes gives a command the flags of all commands that change a CloneSet.
func (s *session) changes(command *cobra.Command) *cobra.Command {
	s.dryRuns(command, "ask the API server whether it would accept the change, and change nothing")
	command.Flags().BoolVarP(&s.follow, "watch", "w", false, "then show the status until the rollout is done")
	return command
}

// dryRuns gives a command kubectl's flag --dry-run, which needs no value.
func (s *session) dryRuns(command *cobra.Command, usage string) {
	command.Flags().Func("dry-run", "`strategy`: none or server; "+usage, func(value string) error {
		switch value {
		case "server", "true":
			s.dryRun = true
		case "none", "false":
			s.dryRun = false
		default:
			return errors.New("it is server or none: what would change, only the API server knows")
		}
		return nil
	})
	command.Flags().Lookup("dry-run").NoOptDefVal = "server"
	completesFlag(command, "dry-run", func(context.Context, []string, string) []string { return []string{"none", "server"} })
}

// patchOf returns a patch with that content.
func patchOf(kind types.PatchType, content any) client.Patch {
	return client.RawPatch(kind, encode.JSON(content))
}

// strategy changes a field of a CloneSet's spec.updateStrategy.
func (s *session) strategy(ctx context.Context, set *apps.CloneSet, change, field string, value any) error {
	spec := map[string]any{"updateStrategy": map[string]any{field: value}}
	return s.patch(ctx, set, change, types.MergePatchType, map[string]any{"spec": spec})
}

// patch sends a change, prints its description, and with --watch shows the status at each change.
func (s *session) patch(ctx context.Context, set *apps.CloneSet, change string, kind types.PatchType, content any) error {
	switch err := s.client.Patch(ctx, set, patchOf(kind, content)); {
	case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "/metadata/generation"):
		return fmt.Errorf("clone/%s has changed meanwhile; run the command again", set.Name)
	case err != nil:
		return failed(err, "change clone/%s", set.Name)
	}
	s.did("clone/%s %s", set.Name, change)
	return s.after(ctx, set)
}

// patchPod changes a Pod's metadata.
func (s *session) patchPod(ctx context.Context, pod *corev1.Pod, metadata map[string]any) error {
	metadata["uid"] = pod.UID
	return s.client.Patch(ctx, pod, patchOf(types.MergePatchType, map[string]any{"metadata": metadata}))
}

// after shows, with --watch, the status at each change from now on.
func (s *session) after(ctx context.Context, set *apps.CloneSet) error {
	if !s.follow || s.dryRun {
		return nil
	}
	return s.watch(ctx, target{kindCloneSet, set.Name}, done)
}

// done reports whether a rollout is over, successfully or not.
func done(w *view.Workload) bool {
	return slices.Contains([]view.Phase{view.PhaseDone, view.PhaseDegraded, view.PhasePaused}, w.Phase)
}

func pauseCommand(s *session, name string) *cobra.Command {
	return s.changes(s.onCloneSet(name, func(ctx context.Context, set *apps.CloneSet) error { return s.pause(ctx, set, name == "pause") }))
}

func (s *session) pause(ctx context.Context, set *apps.CloneSet, pause bool) error {
	state := "resumed"
	if pause {
		state = "paused"
	}
	if set.Spec.UpdateStrategy.Paused == pause {
		return fmt.Errorf("clone/%s is %s already", set.Name, state)
	}
	return s.strategy(ctx, set, state, "paused", pause)
}

func partitionCommand(s *session) *cobra.Command {
	complete := s.completesTarget(onlyCloneSets, percentages)
	return s.changes(command("partition", cobra.RangeArgs(2, 3), complete, func(ctx context.Context, args []string) error {
		last := len(args) - 1
		set, err := s.cloneSet(ctx, args[:last])
		if err != nil {
			return err
		}
		value, err := partitionOf(args[last])
		if err != nil {
			return err
		}
		return s.strategy(ctx, set, "keeps "+args[last]+" at the old revision", "partition", value)
	}))
}

func historyCommand(s *session) *cobra.Command {
	command := s.onCloneSet("history", func(ctx context.Context, set *apps.CloneSet) error {
		objects, err := s.revisions(ctx, set)
		if err != nil {
			return err
		}
		all := list.Map(objects, func(o *appsv1.ControllerRevision) view.Revision { return view.RevisionOf(set, o) })
		return s.page().answer(all, func(p *page) { p.history(all, time.Now()) })
	})
	return s.outputs(command, "json", "yaml", "wide")
}

func (p *page) history(all []view.Revision, now time.Time) {
	var rows []row
	for _, r := range all {
		var roles []string
		if r.Current {
			roles = append(roles, "current")
		}
		if r.Update {
			roles = append(roles, "update")
		}
		rows = append(rows, row{cells: []string{strconv.FormatInt(r.Number, 10), r.Name, strings.Join(roles, ", "), p.clock(now).Age(r.Created), strings.Join(r.Images, " "), r.Cause}})
	}
	p.table([]string{"REVISION", "NAME", "ROLE", p.created(), "IMAGES", "CHANGE-CAUSE"}, rows)
}

// find returns the revision with that number or name; without one, the revision that a rollback leads
// to: the newest with another template than the present one.
func find(set *apps.CloneSet, all []*appsv1.ControllerRevision, wanted string) (*appsv1.ControllerRevision, error) {
	if wanted == "" {
		if previous := view.Previous(set, all); previous != nil {
			return previous, nil
		}
		return nil, fmt.Errorf("clone/%s has no other revision than the present one", set.Name)
	}
	for _, object := range all {
		if strconv.FormatInt(object.Revision, 10) == wanted || revision.Same(object.Name, wanted) {
			return object, nil
		}
	}
	return nil, fmt.Errorf("clone/%s has no revision %q; kubectl usher history clone/%s lists them", set.Name, wanted, set.Name)
}

func undoCommand(s *session) *cobra.Command {
	var to string
	command := s.changes(s.onCloneSet("undo", func(ctx context.Context, set *apps.CloneSet) error { return s.undo(ctx, set, to) }))
	command.Flags().StringVar(&to, "to-revision", "", "`number` or name of the revision; default: the one before")
	completesFlag(command, "to-revision", s.ofCloneSet(s.revisionNumbers))
	return command
}

// undo makes the template of a revision the present one again; "" is the one before.
func (s *session) undo(ctx context.Context, set *apps.CloneSet, to string) error {
	if set.Status.ObservedGeneration != set.Generation {
		return fmt.Errorf("clone/%s: the controller has not seen the last change yet; run the command again", set.Name)
	}
	all, err := s.revisions(ctx, set)
	if err != nil {
		return err
	}
	chosen, err := find(set, all, to)
	if err != nil {
		return err
	}
	template, err := revision.Template(chosen.Data.Raw)
	if err != nil {
		return fmt.Errorf("revision %s: %w", chosen.Name, err)
	}
	if revision.Same(chosen.Name, set.Status.UpdateRevision) {
		return fmt.Errorf("clone/%s has revision %d already", set.Name, chosen.Revision)
	}
	// The patch tests that the set is as it was read. A merge would keep fields that only the newer
	// template has.
	change := fmt.Sprintf("rolled back to revision %d (%s)", chosen.Revision, chosen.Name)
	return s.patch(ctx, set, change, types.JSONPatchType, []map[string]any{
		{"op": "test", "path": "/metadata/generation", "value": set.Generation},
		{"op": "replace", "path": "/spec/template", "value": template},
	})
}

func diffCommand(s *session) *cobra.Command {
	revisions := s.ofCloneSet(s.revisionNumbers)
	complete := s.completesTarget(onlyCloneSets, revisions, revisions)
	return command("diff", cobra.RangeArgs(1, 3), complete, func(ctx context.Context, args []string) error {
		if !strings.Contains(args[0], "/") {
			return errors.New("write the CloneSet as clone/NAME")
		}
		set, err := s.cloneSet(ctx, args[:1])
		if err != nil {
			return err
		}
		all, err := s.revisions(ctx, set)
		if err != nil {
			return err
		}
		wanted := append(args[1:], "", "")
		from, err := find(set, all, wanted[0])
		if err != nil {
			return err
		}
		to, err := find(set, all, cmp.Or(wanted[1], set.Status.UpdateRevision))
		if err != nil {
			return err
		}
		return s.page().diff(from, to)
	})
}

func (p *page) diff(from, to *appsv1.ControllerRevision) error {
	texts := [2]string{}
	for i, object := range []*appsv1.ControllerRevision{from, to} {
		template, err := revision.Template(object.Data.Raw)
		var text []byte
		if err == nil {
			text, err = yaml.Marshal(revision.Normalize(template))
		}
		if err != nil {
			return fmt.Errorf("revision %s: %w", object.Name, err)
		}
		texts[i] = string(text)
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(texts[0]), B: difflib.SplitLines(texts[1]), Context: 3,
		FromFile: title(from), ToFile: title(to),
	})
	put(p.out, printable.Text(text)) // YAML does not escape all characters that a terminal obeys
	return err
}

func title(object *appsv1.ControllerRevision) string {
	return printable.Line(fmt.Sprintf("revision %d (%s)", object.Revision, object.Name))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/printable"
	"github.com/usher-dev/usher/internal/view"
)

const (
	// completer is the name by which kubectl runs the plugin to complete the words after kubectl usher.
	completer = "kubectl_complete-usher"
	// completeWithin bounds how long the shell waits for names.
	completeWithin = 3 * time.Second
)

// arguments returns the arguments of a call; if kubectl asks for completions, the ones to complete.
func arguments(args []string) []string {
	if name := filepath.Base(args[0]); strings.TrimSuffix(name, ".exe") == completer {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

// names offers completions of a typed word, after the arguments before it. Names that cannot be read
// are missing: a shell has no place for an error.
type names func(ctx context.Context, args []string, typed string) []string

// offer adapts names to cobra; n gets TYPE NAME as TYPE/NAME. After a word that ends in a slash or a
// colon, the shell adds no space.
func (n names) offer(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completeWithin)
	defer cancel()
	if len(args) > 1 && !strings.Contains(args[0], "/") {
		args = append([]string{args[0] + "/" + args[1]}, args[2:]...)
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	found := list.Only(n(ctx, args, typed), func(word string) bool { return strings.HasPrefix(word, typed) })
	found = list.Map(found, shown)
	if len(found) > 0 && strings.ContainsAny(found[0][len(found[0])-1:], "/:") {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return found, directive
}

// shown returns an offer as a shell shows it: a word and, after a tab, its description.
func shown(offer string) string {
	word, what, described := strings.Cut(offer, "\t")
	if !described {
		return printable.Line(word)
	}
	return printable.Line(word) + "\t" + printable.Line(what)
}

// completesTarget offers TYPE/NAME, the NAME after a TYPE, and one list of names for each
// argument that follows.
func (s *session) completesTarget(kinds []schema.GroupVersionKind, rest ...names) cobra.CompletionFunc {
	return names(func(ctx context.Context, args []string, typed string) []string {
		if s.connect() != nil {
			return nil
		}
		switch {
		case len(args) == 0:
			return s.targets(ctx, kinds, typed)
		case !strings.Contains(args[0], "/"):
			return s.namesOf(ctx, s.kindOf(args[0], kinds))
		case len(args) > len(rest):
			return nil
		}
		return rest[len(args)-1](ctx, args, typed)
	}).offer
}

// completesFlag offers names for the value of a flag.
func completesFlag(command *cobra.Command, flag string, n names) {
	if err := command.RegisterFlagCompletionFunc(flag, n.offer); err != nil {
		panic(err) // there is no such flag
	}
}

// shortName returns the name that people type for a kind.
func shortName(kind schema.GroupVersionKind) string {
	if kind == kindCloneSet {
		return "clone"
	}
	return strings.ToLower(kind.Kind)
}

// targets offers TYPE/NAME for those kinds: first the types that the cluster has, then names.
func (s *session) targets(ctx context.Context, kinds []schema.GroupVersionKind, word string) (out []string) {
	prefix, _, named := strings.Cut(word, "/")
	if !named && len(kinds) > 1 {
		for _, kind := range kinds {
			if _, err := s.mapper.RESTMapping(kind.GroupKind()); err == nil {
				out = append(out, shortName(kind)+"/")
			}
		}
		return out
	}
	if !named {
		prefix = shortName(kinds[0])
	}
	return list.Map(s.namesOf(ctx, s.kindOf(prefix, kinds)), func(name string) string { return prefix + "/" + name })
}

// kindOf returns the kind that a word names; none if it is not one of the kinds.
func (s *session) kindOf(word string, kinds []schema.GroupVersionKind) schema.GroupVersionKind {
	t, _ := s.target([]string{word, ""}, kinds...) // the name is not typed yet
	return t.kind
}

// namesOf returns the names of all objects of a kind, in the namespace if they have one.
func (s *session) namesOf(ctx context.Context, kind schema.GroupVersionKind) []string {
	found := &metav1.PartialObjectMetadataList{}
	found.SetGroupVersionKind(kind)
	if s.connect() != nil || s.client.List(ctx, found, client.InNamespace(s.namespace)) != nil {
		return nil
	}
	return list.Map(found.Items, func(o metav1.PartialObjectMetadata) string { return o.Name })
}

// registryNames offers a Registry for the only argument.
func (s *session) registryNames(ctx context.Context, args []string, _ string) []string {
	if len(args) > 0 {
		return nil
	}
	return s.namesOf(ctx, kindRegistry)
}

// ofCloneSet offers words about the CloneSet that the first argument names.
func (s *session) ofCloneSet(offer func(context.Context, *apps.CloneSet) []string) names {
	return func(ctx context.Context, args []string, _ string) []string {
		set, err := s.cloneSet(ctx, args[:min(1, len(args))])
		if err != nil {
			return nil
		}
		return offer(ctx, set)
	}
}

// revisionNumbers returns the revision numbers of a CloneSet, the newest first, with their images.
func (s *session) revisionNumbers(ctx context.Context, set *apps.CloneSet) (out []string) {
	objects, _ := s.revisions(ctx, set) // an error means that there are none to offer
	for _, object := range slices.Backward(objects) {
		if !revision.Same(object.Name, set.Status.UpdateRevision) {
			out = append(out, strconv.FormatInt(object.Revision, 10)+"\t"+strings.Join(view.RevisionOf(set, object).Images, " "))
		}
	}
	return out
}

// tag matches the part after the repository in the name of an image.
var tag = regexp.MustCompile(`(:[^/:@]*)?(@.*)?$`)

// images returns the containers of a CloneSet, with the repositories of their images.
func images(_ context.Context, set *apps.CloneSet) []string {
	template, err := set.Spec.Template.Decode()
	if err != nil {
		return nil
	}
	return list.Map(template.Spec.Containers, func(c corev1.Container) string { return c.Name + "=" + tag.ReplaceAllString(c.Image, "") + ":" })
}

// keys returns the keys that hold the Pod that the first argument names.
func (s *session) keys(ctx context.Context, args []string, _ string) []string {
	t, err := s.target(args, kindPod)
	if err != nil {
		return nil
	}
	w, _ := s.load(ctx, t) // an error means that there is nothing to offer
	found := map[string]bool{}
	for _, pod := range w.Members {
		for _, wait := range pod.Waits {
			found[wait.Key] = true
		}
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// percentages returns usual steps of a rollout.
func percentages(context.Context, []string, string) []string {
	return []string{"0", "25%", "50%", "75%", "100%"}
}

// completeFlags offers values for kubectl's own flags.
func (s *session) completeFlags(root *cobra.Command) {
	completesFlag(root, "namespace", func(ctx context.Context, _ []string, _ string) []string { return s.namesOf(ctx, kindNamespace) })
	for flag, names := range map[string]func(*clientcmdapi.Config) []string{
		"context": func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) },
		"cluster": func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) },
		"user":    func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) },
	} {
		completesFlag(root, flag, func(context.Context, []string, string) []string {
			config, err := s.flags.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil
			}
			return names(&config)
		})
	}
}

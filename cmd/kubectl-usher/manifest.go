// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
)

// fromFile reads CloneSets from a file, and asks the API server in a dry run for the result of applying
// them.
func (s *session) fromFile(ctx context.Context, filename string) ([]proposal, error) {
	sets, err := s.readSets(filename)
	if err != nil {
		return nil, err
	}
	if err := s.connect(); err != nil {
		return nil, err
	}
	var all []proposal
	for _, set := range sets {
		if namespace := set.GetNamespace(); namespace != "" {
			s.namespace = namespace
		}
		set.SetNamespace(s.namespace)
		one, err := s.apply(ctx, set)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// readSets returns the CloneSets of a file, or of anything else that kubectl accepts as one. It skips
// other objects.
func (s *session) readSets(filename string) (sets []*unstructured.Unstructured, err error) {
	infos, err := resource.NewBuilder(s.flags).Unstructured().Local().Flatten().
		FilenameParam(false, &resource.FilenameOptions{Filenames: []string{filename}}).Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filename, err)
	}
	var others []string
	for _, info := range infos {
		object := info.Object.(*unstructured.Unstructured)
		if object.GroupVersionKind().GroupKind() == kindCloneSet.GroupKind() {
			sets = append(sets, object)
			continue
		}
		others = append(others, object.GetKind())
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("%s holds no CloneSet (%s); there are plans for nothing else", filename, cmp.Or(strings.Join(others, ", "), "it is empty"))
	}
	return sets, nil
}

// apply returns a CloneSet as kubectl apply would change it.
func (s *session) apply(ctx context.Context, set *unstructured.Unstructured) (proposal, error) {
	live := &apps.CloneSet{}
	err := s.client.Get(ctx, client.ObjectKeyFromObject(set), live)
	switch {
	case meta.IsNoMatchError(err):
		return proposal{}, errNoCloneSets
	case apierrors.IsNotFound(err):
		return s.create(ctx, set)
	case err != nil:
		return proposal{}, fmt.Errorf("read clone/%s: %w", set.GetName(), err)
	}
	patch, options, err := applied(set, live)
	if err != nil {
		return proposal{}, err
	}
	return s.propose(ctx, live, patch, options...)
}

// create returns a CloneSet that does not exist yet, as the API server would create it.
func (s *session) create(ctx context.Context, set *unstructured.Unstructured) (proposal, error) {
	if err := s.client.Create(ctx, set, client.DryRunAll); err != nil {
		return proposal{}, refused(set.GetName(), err)
	}
	to := &apps.CloneSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(set.Object, to); err != nil {
		return proposal{}, fmt.Errorf("read clone/%s: %w", set.GetName(), err)
	}
	return proposal{to: to}, nil
}

// applied returns the patch that kubectl apply sends: a server-side one if that was used before,
// otherwise one made of the last applied, the wanted and the live object.
func applied(set *unstructured.Unstructured, live *apps.CloneSet) (client.Patch, []client.PatchOption, error) {
	to, is := encode.JSON(set.Object), encode.JSON(live)
	last := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]
	byServer := func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "kubectl" && m.Operation == metav1.ManagedFieldsOperationApply
	}
	if last == "" && slices.ContainsFunc(live.GetManagedFields(), byServer) {
		return client.RawPatch(types.ApplyPatchType, to), []client.PatchOption{client.FieldOwner("kubectl"), client.ForceOwnership}, nil
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(last), to, is)
	if err != nil {
		return nil, nil, fmt.Errorf("compare clone/%s with what is there: %w", set.GetName(), err)
	}
	return client.RawPatch(types.MergePatchType, patch), nil, nil
}

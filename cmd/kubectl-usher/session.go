// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// session is what every command needs: kubectl's flags, and a client made from them.
type session struct {
	genericiooptions.IOStreams
	flags  *genericclioptions.ConfigFlags
	config *rest.Config
	client client.WithWatch
	// reader is the client, or what watches have brought.
	reader client.Reader
	mapper meta.RESTMapper
	// namespace is that of --namespace or of the context.
	namespace string
}

// connect reads kubectl's flags. It asks nothing of the API server yet.
func (s *session) connect() error {
	if s.client != nil {
		return nil
	}
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	config.QPS, config.Burst = 50, 300 // as kubectl
	s.config = config
	if s.mapper, err = s.flags.ToRESTMapper(); err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	if err := s.makeClient(); err != nil {
		return err
	}
	s.namespace, _, err = s.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return fmt.Errorf("find the namespace: %w", err)
	}
	return nil
}

func (s *session) makeClient() error {
	scheme := runtime.NewScheme()
	types := runtime.SchemeBuilder{clientgoscheme.AddToScheme, apps.AddToScheme, usherv1alpha1.AddToScheme}
	if err := types.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register API types: %w", err)
	}
	made, err := client.NewWithWatch(s.config, client.Options{Scheme: scheme, Mapper: s.mapper})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	s.client, s.reader = made, made
	return nil
}

// target names an object in the session's namespace.
type target struct {
	kind schema.GroupKind
	name string
}

// object is an empty object of the target's kind.
func (t target) object() client.Object {
	return map[schema.GroupKind]client.Object{
		kindCloneSet: &apps.CloneSet{}, kindPod: &corev1.Pod{}, kindDeployment: &appsv1.Deployment{},
		kindStatefulSet: &appsv1.StatefulSet{}, kindDaemonSet: &appsv1.DaemonSet{}, kindReplicaSet: &appsv1.ReplicaSet{},
	}[t.kind]
}

func (t target) String() string { return strings.ToLower(t.kind.Kind) + "/" + t.name }

var (
	kindCloneSet    = apps.KindCloneSet.GroupKind()
	kindPod         = schema.GroupKind{Kind: "Pod"}
	kindDeployment  = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	kindReplicaSet  = schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}
	kindStatefulSet = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	kindDaemonSet   = schema.GroupKind{Group: "apps", Kind: "DaemonSet"}
)

// target reads TYPE/NAME or TYPE NAME, and refuses other kinds than those.
func (s *session) target(args []string, kinds ...schema.GroupKind) (target, error) {
	kind, name, ok := strings.Cut(args[0], "/")
	switch {
	case ok && len(args) == 1:
	case !ok && len(args) == 2:
		name = args[1]
	default:
		return target{}, fmt.Errorf("%q names no object: write TYPE/NAME, such as %s", strings.Join(args, " "), example(kinds))
	}
	if err := s.connect(); err != nil {
		return target{}, err
	}
	found, err := s.mapper.KindFor(schema.ParseGroupResource(kind).WithVersion(""))
	if err != nil && meta.IsNoMatchError(err) {
		if slices.Contains(aliases, strings.ToLower(kind)) {
			return target{}, errNoCloneSets
		}
		return target{}, fmt.Errorf("the cluster knows no resource type %q; write for example %s", kind, example(kinds))
	}
	if err != nil {
		return target{}, failed(err, "ask which types the cluster has")
	}
	if !slices.Contains(kinds, found.GroupKind()) {
		return target{}, fmt.Errorf("this command works for %s, not for %s", list(kinds), found.Kind)
	}
	return target{found.GroupKind(), name}, nil
}

var errNoCloneSets = errors.New("this cluster has no CloneSets: install Usher's CustomResourceDefinitions, as docs/install.md says")

// aliases are names of CloneSets that somebody may type where none are installed.
var aliases = []string{"clone", "cloneset", "clonesets", "clonesets.apps.kruise.io"}

func example(kinds []schema.GroupKind) string {
	if slices.Contains(kinds, kindCloneSet) {
		return "clone/web"
	}
	return strings.ToLower(kinds[0].Kind) + "/web"
}

func list(kinds []schema.GroupKind) string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = kind.Kind + "s"
	}
	return strings.Join(names, ", ")
}

// get reads an object, and says what to do if it is not there.
func (s *session) get(ctx context.Context, t target, object client.Object) error {
	err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: t.name}, object)
	if !apierrors.IsNotFound(err) || withdrawn(err) {
		return failed(err, "read %s", t)
	}
	where, list := " in namespace "+s.namespace, strings.ToLower(t.kind.Kind)+"s -A"
	if mapping, err := s.mapper.RESTMapping(t.kind); err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		where, list = "", mapping.Resource.Resource
	}
	return fmt.Errorf("there is no %s%s; kubectl get %s shows those that exist", t, where, list)
}

// failed says what an error means for the user, and what to do; nil for none.
func failed(err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	switch missing := (*meta.NoKindMatchError)(nil); {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: %w; ask for a role with that right: docs/plugin.md lists those that each command needs", doing, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %w: log in anew, or choose another --context", doing, err)
	case utilnet.IsConnectionRefused(err):
		return fmt.Errorf("%s: %w; does the cluster run, and is it that of --kubeconfig and --context?", doing, err)
	case errors.As(err, &missing):
		return fmt.Errorf("%s: this cluster has no %s (%s): install Usher's CustomResourceDefinitions, or those of this version, as docs/install.md says",
			doing, missing.GroupKind.Kind, strings.Join(append([]string{missing.GroupKind.Group}, missing.SearchedVersions...), "/"))
	case withdrawn(err):
		return fmt.Errorf("%s: this cluster does not have these any more: install Usher's CustomResourceDefinitions, as docs/install.md says", doing)
	case unknown(err) != "":
		return fmt.Errorf("%s: %s", doing, unknown(err))
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%s: %w: install Usher's CustomResourceDefinitions, or those of this version, as docs/install.md says", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// withdrawn reports whether the API server has lost a kind since it was asked which it has.
func withdrawn(err error) bool {
	return apierrors.IsNotFound(err) && strings.Contains(err.Error(), "could not find the requested resource")
}

// unknown says which fields the API server does not know; "" if it does not complain of any.
// It repeats the whole object otherwise.
func unknown(err error) string {
	_, fields, ok := strings.Cut(err.Error(), "strict decoding error: ")
	if !ok {
		return ""
	}
	return fields + ": misspelt, or newer than this cluster's CustomResourceDefinitions: docs/install.md says how to install those of this version"
}

// onCloneSet runs a command that is about one CloneSet.
func (s *session) onCloneSet(do func(ctx context.Context, set *apps.CloneSet) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		set, err := s.cloneSet(c.Context(), args)
		if err != nil {
			return err
		}
		return do(c.Context(), set)
	}
}

func (s *session) cloneSet(ctx context.Context, args []string) (*apps.CloneSet, error) {
	t, err := s.target(args, kindCloneSet)
	if err != nil {
		return nil, err
	}
	set := &apps.CloneSet{}
	return set, s.get(ctx, t, set)
}

// owned lists the objects whose controller is the owner.
func owned[T client.Object](all []T, owner client.Object) []T {
	return slices.DeleteFunc(all, func(one T) bool { return !metav1.IsControlledBy(one, owner) })
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// podsOf are the Pods that the owner controls.
func (s *session) podsOf(ctx context.Context, owner client.Object) ([]*corev1.Pod, error) {
	var pods corev1.PodList
	if err := s.reader.List(ctx, &pods, client.InNamespace(s.namespace)); err != nil {
		return nil, failed(err, "list Pods")
	}
	return owned(pointers(pods.Items), owner), nil
}

// takes one object's name, as TYPE/NAME or TYPE NAME.
var takesTarget = cobra.RangeArgs(1, 2)

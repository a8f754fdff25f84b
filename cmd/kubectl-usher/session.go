// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // auth-provider in kubeconfigs, as kubectl knows it
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

// session has what every command needs: kubectl's flags, and a client made from them.
type session struct {
	genericiooptions.IOStreams
	flags  *genericclioptions.ConfigFlags
	config *rest.Config
	client client.WithWatch
	// reader is the client, or the cache of watches.
	reader    client.Reader
	mapper    meta.RESTMapper
	discovery discovery.CachedDiscoveryInterface
	// namespace is the namespace of --namespace or of the context.
	namespace string
	// Flags that several commands have: output is the format of the answer, dryRun asks the API server
	// and changes nothing, follow shows the status at each change.
	output         string
	path           *jsonpath.JSONPath
	dryRun, follow bool
	// verbose prints a line for each Pod, even if several are alike. crowd joins the events of Pods that are
	// alike into one line; nil if it joins none.
	verbose bool
	crowd   *crowd
	// lines prints a line for each change, instead of the screens that follow draws.
	lines bool
}

// connect reads kubectl's flags. It does not contact the API server yet.
func (s *session) connect() error {
	if s.client != nil {
		return nil
	}
	config, err := s.flags.ToRESTConfig()
	if err == nil {
		s.discovery, err = s.flags.ToDiscoveryClient()
	}
	if err == nil {
		s.mapper, err = s.flags.ToRESTMapper()
	}
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	config.QPS, config.Burst = 50, 300 // as kubectl
	s.config = config
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
	made, err := client.NewWithWatch(s.config, client.Options{
		Scheme: scheme, Mapper: s.mapper, FieldOwner: "kubectl-usher", DryRun: &s.dryRun,
		// A field that the API server does not know would be dropped, and nothing would change.
		FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	s.client, s.reader = made, made
	return nil
}

// in returns the session for another namespace; "" means all.
func (s *session) in(namespace string) *session {
	other := *s
	other.namespace = namespace
	return &other
}

var scheme = runtime.NewScheme()

func init() {
	types := runtime.SchemeBuilder{clientgoscheme.AddToScheme, apps.AddToScheme, usherv1alpha1.AddToScheme}
	utilruntime.Must(types.AddToScheme(scheme))
}

// The kinds that commands read.
var (
	kindCloneSet     = apps.KindCloneSet
	kindRegistration = usherv1alpha1.GroupVersion.WithKind("Registration")
	kindRegistry     = usherv1alpha1.GroupVersion.WithKind("Registry")
	kindPod          = corev1.SchemeGroupVersion.WithKind("Pod")
	kindEvent        = corev1.SchemeGroupVersion.WithKind("Event")
	kindNode         = corev1.SchemeGroupVersion.WithKind("Node")
	kindNamespace    = corev1.SchemeGroupVersion.WithKind("Namespace")
	kindClaim        = corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
	kindQuota        = corev1.SchemeGroupVersion.WithKind("ResourceQuota")
	kindDeployment   = appsv1.SchemeGroupVersion.WithKind("Deployment")
	kindReplicaSet   = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	kindStatefulSet  = appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	kindDaemonSet    = appsv1.SchemeGroupVersion.WithKind("DaemonSet")
	kindRevision     = appsv1.SchemeGroupVersion.WithKind("ControllerRevision")
	kindLease        = coordinationv1.SchemeGroupVersion.WithKind("Lease")
	kindWebhooks     = admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration")
)

// The kinds that commands accept.
var (
	workloads     = []schema.GroupVersionKind{kindCloneSet, kindDeployment, kindStatefulSet, kindDaemonSet, kindReplicaSet, kindPod}
	onlyCloneSets = []schema.GroupVersionKind{kindCloneSet}
	onlyPods      = []schema.GroupVersionKind{kindPod}
	drainable     = []schema.GroupVersionKind{kindPod, kindNode}
)

// target names an object in the session's namespace.
type target struct {
	kind schema.GroupVersionKind
	name string
}

func (t target) String() string { return strings.ToLower(t.kind.Kind) + "/" + t.name }

// target reads TYPE/NAME or TYPE NAME, and refuses other kinds than those.
func (s *session) target(args []string, kinds ...schema.GroupVersionKind) (target, error) {
	example := shortName(kinds[0]) + "/web"
	parts := strings.Split(strings.Join(args, "/"), "/")
	if len(parts) != 2 {
		return target{}, fmt.Errorf("%q names no object: write TYPE/NAME, such as %s", strings.Join(args, " "), example)
	}
	kind, name := parts[0], parts[1]
	if err := s.connect(); err != nil {
		return target{}, err
	}
	found, err := s.mapper.KindFor(schema.ParseGroupResource(kind).WithVersion(""))
	switch {
	case meta.IsNoMatchError(err) && slices.Contains(aliases, strings.ToLower(kind)):
		return target{}, errNoCloneSets
	case meta.IsNoMatchError(err):
		return target{}, fmt.Errorf("the cluster knows no resource type %q; write for example %s", kind, example)
	case err != nil:
		return target{}, failed(err, "ask which types the cluster has")
	}
	// The cluster may prefer another version of the kind.
	at := slices.IndexFunc(kinds, func(kind schema.GroupVersionKind) bool { return kind.GroupKind() == found.GroupKind() })
	if at < 0 {
		return target{}, fmt.Errorf("this command works for %s, not for %s", strings.Join(list.Map(kinds, plural), ", "), found.Kind)
	}
	return target{kinds[at], name}, nil
}

var errNoCloneSets = errors.New("this cluster has no CloneSets: install Usher's CustomResourceDefinitions, as https://usher.dev/install.html says")

// aliases are names of CloneSets that users may type in a cluster without that kind.
var aliases = []string{"clone", "cloneset", "clonesets", "clonesets.apps.kruise.io"}

// plural returns the plural of a kind for people.
func plural(kind schema.GroupVersionKind) string { return list.Plural(kind.Kind) }

// get reads an object. If there is none, the error says what to do.
func (s *session) get(ctx context.Context, t target, object client.Object) error {
	err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: t.name}, object)
	if !apierrors.IsNotFound(err) || withdrawn(err) {
		return failed(err, "read %s", t)
	}
	where, those := " in namespace "+s.namespace, strings.ToLower(t.kind.Kind)+"s -A"
	if mapping, err := s.mapper.RESTMapping(t.kind.GroupKind()); err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		where, those = "", mapping.Resource.Resource
	}
	return fmt.Errorf("there is no %s%s; kubectl get %s shows those that exist", t, where, those)
}

// failed returns an error that says what err means for the user, and what to do; nil for nil.
func failed(err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	switch missing := (*meta.NoKindMatchError)(nil); {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: %w; ask for a role with that right: https://usher.dev/plugin.html lists those that each command needs", doing, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %w: log in anew, or choose another --context", doing, err)
	case utilnet.IsConnectionRefused(err):
		return fmt.Errorf("%s: %w; does the cluster run, and is it that of --kubeconfig and --context?", doing, err)
	case errors.As(err, &missing):
		return fmt.Errorf("%s: this cluster has no %s (%s): install Usher's CustomResourceDefinitions, or those of this version, as https://usher.dev/install.html says",
			doing, missing.GroupKind.Kind, strings.Join(append([]string{missing.GroupKind.Group}, missing.SearchedVersions...), "/"))
	case withdrawn(err):
		return fmt.Errorf("%s: this cluster does not have these any more: install Usher's CustomResourceDefinitions, as https://usher.dev/install.html says", doing)
	}
	return fmt.Errorf("%s: %w", doing, short(err))
}

// withdrawn reports whether the API server no longer has a kind that it listed before.
func withdrawn(err error) bool {
	return apierrors.IsNotFound(err) && strings.Contains(err.Error(), "could not find the requested resource")
}

// short returns an error without the whole object, which the API server repeats if it does not know
// fields of it.
func short(err error) error {
	_, fields, ok := strings.Cut(err.Error(), "strict decoding error: ")
	if !ok {
		return err
	}
	return errors.New(fields + ": misspelt, or newer than this cluster's CustomResourceDefinitions: https://usher.dev/install.html says how to install those of this version")
}

// on makes a command for one object of those kinds, as TYPE/NAME or TYPE NAME.
func (s *session) on(kinds []schema.GroupVersionKind, name string, do func(ctx context.Context, t target) error) *cobra.Command {
	return command(name, cobra.RangeArgs(1, 2), s.completesTarget(kinds), func(ctx context.Context, args []string) error {
		t, err := s.target(args, kinds...)
		if err != nil {
			return err
		}
		return do(ctx, t)
	})
}

// verboses adds the flag --verbose to a command.
func (s *session) verboses(command *cobra.Command, usage string) {
	command.Flags().BoolVar(&s.verbose, "verbose", false, usage)
}

// onCloneSet makes a command for one CloneSet.
func (s *session) onCloneSet(name string, do func(ctx context.Context, set *apps.CloneSet) error) *cobra.Command {
	return command(name, cobra.RangeArgs(1, 2), s.completesTarget(onlyCloneSets), func(ctx context.Context, args []string) error {
		set, err := s.cloneSet(ctx, args)
		if err != nil {
			return err
		}
		return do(ctx, set)
	})
}

func (s *session) cloneSet(ctx context.Context, args []string) (*apps.CloneSet, error) {
	t, err := s.target(args, kindCloneSet)
	if err != nil {
		return nil, err
	}
	set := &apps.CloneSet{}
	return set, s.get(ctx, t, set)
}

// load reads a workload and its objects. A Pod comes with its CloneSet, whose hooks say what holds it.
func (s *session) load(ctx context.Context, t target) (view.Workload, error) {
	object, err := scheme.New(t.kind)
	if err != nil {
		return view.Workload{}, err
	}
	workload := object.(client.Object)
	if err := s.get(ctx, t, workload); err != nil {
		return view.Workload{}, err
	}
	o, err := s.objects(ctx, t, workload)
	if err != nil {
		return view.Workload{}, err
	}
	return view.Of(o), nil
}

// objects reads the objects of a workload.
func (s *session) objects(ctx context.Context, t target, workload client.Object) (o view.Objects, err error) {
	pod, _ := workload.(*corev1.Pod)
	if owner := cloneSetOf(workload); pod != nil && owner != "" {
		t, workload = target{kindCloneSet, owner}, &apps.CloneSet{}
		if err := s.get(ctx, t, workload); err != nil {
			return o, err
		}
	}
	if o, err = s.gather(ctx, workload, append(below[t.kind], kindRegistration)...); err == nil && pod != nil {
		o.Pods = []*corev1.Pod{pod}
	}
	if err == nil && o.AsksOperator() {
		o.Leases = s.operatorLeases(ctx)
	}
	return o, err
}

// operatorLeases returns the leases of the hook operator, in any namespace; none if the user may not
// list them.
func (s *session) operatorLeases(ctx context.Context) (leases []*coordinationv1.Lease) {
	for _, name := range view.OperatorLeases {
		found := &coordinationv1.LeaseList{}
		if err := s.client.List(ctx, found, client.MatchingFields{"metadata.name": name}); err == nil {
			leases = append(leases, list.Pointers(found.Items)...)
		}
	}
	return leases
}

// below are the kinds of objects that a workload controls.
var below = map[schema.GroupVersionKind][]schema.GroupVersionKind{
	kindCloneSet: {kindRevision, kindPod}, kindDeployment: {kindReplicaSet, kindPod},
	kindReplicaSet: onlyPods, kindStatefulSet: onlyPods, kindDaemonSet: onlyPods,
}

// cloneSetOf returns the name of the CloneSet that controls an object; "" if none does.
func cloneSetOf(object client.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == apps.KindCloneSet.Kind {
		return owner.Name
	}
	return ""
}

// gather reads the objects of those kinds, and selects those that belong to a workload.
func (s *session) gather(ctx context.Context, workload client.Object, kinds ...schema.GroupVersionKind) (view.Objects, error) {
	all, err := s.read(ctx, kinds...)
	return view.Gather(time.Now(), workload, all), err
}

// revisions returns the CloneSet's ControllerRevisions, the oldest first.
func (s *session) revisions(ctx context.Context, set *apps.CloneSet) ([]*appsv1.ControllerRevision, error) {
	o, err := s.gather(ctx, set, kindRevision)
	return o.Revisions, err
}

// read lists the namespace's objects of those kinds. A cluster may lack a kind, for example if it has
// no hook operator.
func (s *session) read(ctx context.Context, kinds ...schema.GroupVersionKind) (all []metav1.Object, err error) {
	for _, kind := range kinds {
		some, err := s.list(ctx, kind, client.InNamespace(s.namespace))
		if err != nil && !meta.IsNoMatchError(err) {
			return nil, failed(err, "list %s", plural(kind))
		}
		all = append(all, some...)
	}
	return all, nil
}

// list lists objects of a kind, in all namespaces unless the options name one.
func (s *session) list(ctx context.Context, kind schema.GroupVersionKind, options ...client.ListOption) ([]metav1.Object, error) {
	made, err := scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil {
		return nil, err
	}
	if err := s.reader.List(ctx, made.(client.ObjectList), options...); err != nil {
		return nil, err
	}
	found, err := meta.ExtractList(made)
	return list.Map(found, func(object runtime.Object) metav1.Object { return object.(metav1.Object) }), err
}

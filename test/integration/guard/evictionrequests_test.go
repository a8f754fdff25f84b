// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/responder"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/integration/scene"
)

// evictionsEnv names the environment variable that has the stories of Kubernetes' EvictionRequest API played,
// and no others: the API server serves it, behind a feature gate since 1.37, and the controllers of 1.38 run.
const evictionsEnv = "USHER_EVICTION_REQUESTS"

var evictionRequests = os.Getenv(evictionsEnv) != ""

// evictionFlags are the further arguments of a control plane that serves the API.
func evictionFlags() cluster.ExtraArgs {
	if !evictionRequests {
		return nil
	}
	return cluster.ExtraArgs{build.APIServer: {
		"--feature-gates=ImageVolume=true,EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true",
	}}
}

// The rights that Kubernetes 1.38 gives the service accounts of both controllers.
var evictionRoles = map[string][]rbacv1.PolicyRule{
	"evictionrequest-controller": {
		rule("lifecycle.k8s.io", "evictions", "get", "list", "watch", "create", "update", "patch"),
		rule("lifecycle.k8s.io", "evictions/status", "update", "patch"),
		rule("lifecycle.k8s.io", "evictionrequests", "get", "list", "watch"),
		rule("lifecycle.k8s.io", "evictionrequests/status", "update", "patch"),
		rule("", "pods", "get", "list", "watch"),
	},
	"imperative-eviction-responder-controller": {
		rule("", "pods", "get", "list", "watch"),
		rule("lifecycle.k8s.io", "evictions", "get", "list", "watch"),
		rule("lifecycle.k8s.io", "evictions/status", "update", "patch"),
		rule("", "pods/eviction", "create"),
	},
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// startEvictions starts the controllers of 1.38 until ctx ends, with the rights that they have there.
func startEvictions(ctx context.Context) error {
	if !evictionRequests {
		return nil
	}
	for name, rules := range evictionRoles {
		account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: name}
		if err := grant(ctx, name, "", rules, account); err != nil {
			return err
		}
	}
	program, err := fetch.GoProgram(ctx, "evictions", scene.Root+"/test/cluster/evictions", ".", "about three minutes on two cores")
	if err != nil {
		return err
	}
	p, err := process.Start(process.Spec{
		Name: "evictions", Path: program, Args: []string{"--kubeconfig=" + plane.Kubeconfig()},
		Log: filepath.Join(filepath.Dir(plane.Logs()[0]), "evictions.log"),
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = p.Kill() })
	return nil
}

// grant gives rights in a namespace, or in the cluster.
func grant(ctx context.Context, name, namespace string, rules []rbacv1.PolicyRule, subjects ...rbacv1.Subject) error {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	objects := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name}},
	}
	if namespace != "" {
		objects = []client.Object{
			&rbacv1.Role{ObjectMeta: meta, Rules: rules},
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: name}},
		}
	}
	return errors.Join(plane.Create(ctx, objects[0]), plane.Create(ctx, objects[1]))
}

// evictionWords are about Kubernetes' own evictions.
var evictionWords = []scenariotest.Word[*story]{
	{Name: "request eviction", Args: "NAME POD",
		Does: "makes an EvictionRequest of the Pod, by the requester example.com/NAME, and waits until its Eviction is there",
		Run:  (*story).requestEviction},
	{Name: "responder completes", Args: "NAME POD",
		Does: "has the responder say that it has done its part of the Pod's eviction",
		Run:  (*story).completes},
	{Name: "until says", Args: "NAME POD FIELD FIELD",
		Does: "waits until the responder's status in the Pod's eviction has these fields",
		Run:  (*story).untilSays},
	{Name: "the policy names Usher",
		Does: "labels the namespace so that new Pods name Usher as a responder, and waits until they do",
		Run:  (*story).namesUsher},
	{Name: "forge evictions", Args: "POD",
		Does: "tries in vain to have Usher believe that it is its turn to respond to the Pod's eviction",
		Run:  (*story).forge},
	{Name: "stays", Args: "N", Does: "fails if the registry has another number of entries than N within a second",
		Run: func(s *story, n string) {
			s.Stays(n+" entries", time.Second, func() string {
				if have := len(s.registered()); have != scenariotest.Number(n) {
					return "there are others"
				}
				return ""
			})
		}},
}

func (s *story) requestEviction(rest string) {
	name, pod, _ := strings.Cut(rest, " ")
	s.Make(s.Prop("EvictionRequest", "metadata: {name: "+name+"}", "spec: {requester: example.com/"+name+
		", target: {pod: {name: "+pod+", uid: "+string(s.Pod(pod).UID)+"}}}"))
	s.Await("an Eviction for "+name, func() bool {
		_, found := s.evictionOf(pod, func(e *lifecyclev1alpha1.Eviction) bool { return e.Labels["example.com/"+name] != "" })
		return found
	})
}

// evictionOf finds the Pod's eviction that is so.
func (s *story) evictionOf(pod string, is func(*lifecyclev1alpha1.Eviction) bool) (lifecyclev1alpha1.Eviction, bool) {
	var all lifecyclev1alpha1.EvictionList
	s.All(&all)
	at := slices.IndexFunc(all.Items, func(e lifecyclev1alpha1.Eviction) bool { return e.Spec.Target.Pod.Name == pod && is(&e) })
	if at < 0 {
		return lifecyclev1alpha1.Eviction{}, false
	}
	return all.Items[at], true
}

func (s *story) untilSays(rest string) {
	words := strings.Fields(rest)
	eviction := s.Ref("Eviction/pod-1-" + words[1])
	s.Until(words[0]+" says so", func() string {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(eviction), eviction); err != nil {
			return err.Error()
		}
		responders, _, _ := unstructured.NestedSlice(eviction.Object, "status", "responders")
		for _, field := range words[2:] {
			if !slices.ContainsFunc(responders, func(one any) bool {
				said, _ := one.(map[string]any)
				return said["name"] == words[0] && said[field] != nil
			}) {
				return "there is no " + field
			}
		}
		return ""
	})
}

func (s *story) completes(rest string) {
	name, pod, _ := strings.Cut(rest, " ")
	var eviction lifecyclev1alpha1.Eviction
	s.Await(name+" to be active", func() (found bool) {
		eviction, found = s.evictionOf(pod, func(e *lifecyclev1alpha1.Eviction) bool {
			return slices.ContainsFunc(e.Status.TargetResponders, func(r lifecyclev1alpha1.TargetResponder) bool {
				return r.Name == name && r.State == lifecyclev1alpha1.ResponderStateActive
			})
		})
		return found
	})
	now := time.Now().UTC().Format(time.RFC3339)
	s.Must(s.Status().Patch(s.Context(), &eviction, client.RawPatch(types.ApplyPatchType, []byte(
		"{apiVersion: lifecycle.k8s.io/v1alpha1, kind: Eviction, metadata: {name: "+eviction.Name+"}, status: {responders: "+
			"[{name: "+name+", completionTime: \""+now+"\", heartbeatTime: \""+now+"\"}]}}")),
		client.FieldOwner(name), client.ForceOwnership))
}

func (s *story) namesUsher(string) {
	s.Change(s.Ref("Namespace/"+s.Namespace), "metadata: {labels: {usher.dev/eviction-responder: enabled}}")
	s.Await("the policy to know of the namespace and the Registration", func() bool {
		probe := s.Prop("Pod", "metadata: {name: probe}")
		s.Must(s.Create(s.Context(), probe, client.DryRunAll))
		_, named := probe.Object["spec"].(map[string]any)["evictionResponders"]
		return named
	})
}

// TestServed: Usher is a responder where the API server serves evictions, and Usher has the chart's role. Where
// it serves none, nothing is asked for and nothing is wrong.
func TestServed(t *testing.T) {
	s := begin(t)
	objects := checktest.Must(checkout.ReadObjects(scene.Root + "/config/rbac/evictions/role.yaml"))(t)
	var role rbacv1.ClusterRole
	s.Must(runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, &role))
	for user, rules := range map[string][]rbacv1.PolicyRule{"with-role": role.Rules, "without": nil} {
		s.Must(grant(t.Context(), user, "", rules, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}))
		config := plane.RESTConfig()
		config.Impersonate.UserName = user
		mayAnswer := evictionRequests && rules != nil
		s.Until(user+" to have its rights", func() string {
			served, allowed, err := responder.Served(t.Context(), config)
			s.Must(err)
			checktest.Same(t, "evictions are served", evictionRequests, served)
			return registrytest.Unless(allowed == mayAnswer, fmt.Sprintf("it may answer: %t", allowed))
		})
	}
}

// forge has three users try. What each may do is more than the one before.
func (s *story) forge(name string) {
	pod, other := s.Pod(name), begin(s.T)
	tenant := s.userWith(other.Namespace, "tenant", rule("lifecycle.k8s.io", "evictionrequests", "create"))
	clerk := s.userWith(other.Namespace, "clerk", rule("lifecycle.k8s.io", "evictions", "create", "get"), rule("lifecycle.k8s.io", "evictions/status", "update"))
	maker := s.userWith(s.Namespace, "maker", rule("lifecycle.k8s.io", "evictions", "create", "get"))

	// A tenant asks for the eviction of a Pod of another namespace from its own, and cannot write what responders read.
	request := &lifecyclev1alpha1.EvictionRequest{ObjectMeta: metav1.ObjectMeta{Namespace: other.Namespace, Name: "forged"}, Spec: lifecyclev1alpha1.EvictionRequestSpec{
		Requester: "example.com/tenant", Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
		Target: lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod.Name, UID: pod.UID}},
	}}
	s.Must(tenant.Create(s.Context(), request))
	s.forbids("a tenant creates an Eviction", tenant.Create(s.Context(), turnOf(other.Namespace, pod)))
	s.forbids("a tenant of another namespace asks here", tenant.Create(s.Context(), &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "forged"}, Spec: request.Spec,
	}))
	seen := other.Ref("EvictionRequest/forged")
	other.Has(seen, "status: {conditions: [{type: Failed, status: \"True\", reason: EvictionInvalid}]}")

	// Somebody may write Evictions of another namespace, and says there that it is Usher's turn for this Pod.
	forged := turnOf(other.Namespace, pod)
	said := forged.Status.DeepCopy()
	s.Must(clerk.Create(s.Context(), forged))
	forged.Status = *said
	if err := clerk.Status().Update(s.Context(), forged); !apierrors.IsConflict(err) { // Kubernetes' controller may be faster
		s.Must(err)
	}

	// Somebody may create Evictions here. Kubernetes takes no status from them, and cancels what nobody has requested.
	mine := turnOf(s.Namespace, pod)
	s.Must(maker.Create(s.Context(), mine))
	s.Has(s.Ref("Eviction/"+mine.Name), "status: {conditions: [{type: Failed, status: \"True\"}]}")
	s.forbids("who may create Evictions answers one", maker.Status().Update(s.Context(), mine))
}

// userWith is a client of a user with these rights in a namespace alone.
func (s *story) userWith(namespace, name string, rules ...rbacv1.PolicyRule) client.Client {
	user := name + "-" + s.Namespace
	s.Must(grant(s.Context(), user, namespace, rules, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}))
	config := plane.RESTConfig()
	config.Impersonate.UserName = user
	as := checktest.Must(client.New(config, client.Options{Scheme: plane.Scheme()}))(s.T)
	s.Await("RBAC to know "+user, func() bool {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Group: rules[0].APIGroups[0], Resource: rules[0].Resources[0], Verb: rules[0].Verbs[0],
			},
		}}
		s.Must(as.Create(s.Context(), review))
		return review.Status.Allowed
	})
	return as
}

func (s *story) forbids(what string, err error) {
	if !apierrors.IsForbidden(err) {
		s.Errorf("%s: %v", what, err)
	}
}

// turnOf is an Eviction of the Pod, in any namespace, that says it is Usher's turn.
func turnOf(namespace string, pod *corev1.Pod) *lifecyclev1alpha1.Eviction {
	now := new(metav1.Now())
	return &lifecyclev1alpha1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "forged", Labels: map[string]string{usherv1alpha1.EvictionResponder: "responder"}},
		Spec:       lifecyclev1alpha1.EvictionSpec{Target: lifecyclev1alpha1.EvictionTarget{Pod: &lifecyclev1alpha1.EvictionPodReference{Name: pod.Name, UID: pod.UID}}},
		Status: lifecyclev1alpha1.EvictionStatus{
			TargetResponders: []lifecyclev1alpha1.TargetResponder{
				{Name: usherv1alpha1.EvictionResponder, Priority: new(int32(20000)), State: lifecyclev1alpha1.ResponderStateActive},
			},
			Responders: []lifecyclev1alpha1.ResponderStatus{{Name: usherv1alpha1.EvictionResponder, StartTime: now}},
		},
	}
}

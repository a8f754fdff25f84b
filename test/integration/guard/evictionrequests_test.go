// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/integration/scene"
)

// evictionsEnv names the environment variable that has the stories of Kubernetes' EvictionRequest API played, and no others:
// the API server serves it, behind a feature gate since 1.37, and the controllers of 1.38 run.
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
		Does: "makes an EvictionRequest of the Pod, by the requester example.com/NAME",
		Run:  (*story).requestEviction},
	{Name: "responder completes", Args: "NAME POD",
		Does: "has the responder say that it has done its part of the Pod's eviction",
		Run:  (*story).completes},
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
}

func (s *story) completes(rest string) {
	name, pod, _ := strings.Cut(rest, " ")
	now := time.Now().UTC().Format(time.RFC3339)
	eviction := s.Ref("Eviction/pod-1-" + pod)
	s.Must(s.Status().Patch(s.Context(), eviction, client.RawPatch("application/apply-patch+yaml", []byte(
		"{apiVersion: lifecycle.k8s.io/v1alpha1, kind: Eviction, metadata: {name: "+eviction.GetName()+"}, status: {responders: "+
			"[{name: "+name+", completionTime: \""+now+"\", heartbeatTime: \""+now+"\"}]}}")),
		client.FieldOwner(name), client.ForceOwnership))
}

// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// The keys of hooks in testdata/props.yaml.
const inPlaceKey, registeredKey = "example.com/unready-blocker-inplace", "example.com/registered"

// patch changes the set by a merge patch.
func (s *story) patch(format string, args ...any) {
	s.Helper()
	s.Change(s.key(), format, args...)
}

// image changes the template's image.
func (s *story) image(image string) {
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/%s"}]}}}`, image)
}

// otherImage changes the template's image, and leaves the rest of the container as it is.
func (s *story) otherImage(image string) {
	s.Helper()
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.test/%s"}]`, image)
	s.Must(s.Patch(s.Context(), s.key(), client.RawPatch(types.JSONPatchType, []byte(patch))))
}

// label labels a Pod, as an operator that answers a hook.
func (s *story) label(pod, key, value string) {
	s.Helper()
	s.Change(s.Ref("Pod/"+pod), `metadata: {labels: {%q: %q}}`, key, value)
}

// key is the key of the set.
func (s *story) key() *apps.CloneSet {
	return &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.name}}
}

func (s *story) set() *apps.CloneSet {
	s.Helper()
	set := s.key()
	s.Read(set)
	return set
}

func (s *story) replicas() int32 {
	s.Helper()
	return *s.set().Spec.Replicas
}

// pods lists the story's Pods that are not being deleted, by name.
func (s *story) pods() []corev1.Pod {
	s.Helper()
	return slices.DeleteFunc(s.Pods(), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func state(pod *corev1.Pod) apps.LifecycleState {
	return apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
}

// in lists the Pods in a state.
func (s *story) in(want apps.LifecycleState) []corev1.Pod {
	s.Helper()
	return slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return state(&p) != want })
}

// identities maps Pod names to UIDs.
func (s *story) identities() map[string]types.UID {
	s.Helper()
	out := map[string]types.UID{}
	for _, pod := range s.pods() {
		out[pod.Name] = pod.UID
	}
	return out
}

// newPods checks that none of the Pods before is left.
func (s *story) newPods() {
	for name := range s.identities() {
		if s.noted.pods[name] != "" {
			s.Errorf("Pod %s was not recreated", name)
		}
	}
}

// carryTemplate checks that the Pods are what the template says.
func (s *story) carryTemplate() {
	template := s.template()
	want := template.Spec.Containers[0]
	for _, pod := range s.pods() {
		got := pod.Spec.Containers[0]
		if got.Image != want.Image || !slices.Equal(got.Env, want.Env) || len(got.Ports) != len(want.Ports) ||
			!got.Resources.Requests.Cpu().Equal(*want.Resources.Requests.Cpu()) {
			s.Errorf("Pod %s has %+v, the template %+v", pod.Name, got, want)
		}
		carries := labels.Set(template.Labels).AsSelector().Matches(labels.Set(pod.Labels)) &&
			labels.Set(template.Annotations).AsSelector().Matches(labels.Set(pod.Annotations))
		if !carries {
			s.Errorf("Pod %s has the labels %v and the annotations %v, the template %v and %v", pod.Name, pod.Labels, pod.Annotations, template.Labels, template.Annotations)
		}
	}
}

// revisions are the story's ControllerRevisions, oldest first.
func (s *story) revisions() []appsv1.ControllerRevision {
	var all appsv1.ControllerRevisionList
	s.All(&all)
	slices.SortFunc(all.Items, func(a, b appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	return all.Items
}

func (s *story) revisionNames() []string {
	return list.Map(s.revisions(), func(r appsv1.ControllerRevision) string { return r.Name })
}

// podVersions are the resource versions of the story's Pods.
func (s *story) podVersions() map[string]string {
	out := map[string]string{}
	for _, pod := range s.pods() {
		out[pod.Name] = pod.ResourceVersion
	}
	return out
}

// versions are the resource versions of the story's Pods and revisions.
func (s *story) versions() map[string]string {
	out := s.podVersions()
	for _, r := range s.revisions() {
		out["revision "+r.Name] = fmt.Sprint(r.Revision, " ", r.ResourceVersion)
	}
	return out
}

// untilStatus waits for a status of the set's present generation.
func (s *story) untilStatus(what string, condition func(status *apps.CloneSetStatus) bool) {
	s.Helper()
	s.Await(what, func() bool {
		set := s.set()
		return set.Status.ObservedGeneration == set.Generation && condition(&set.Status)
	})
}

// observed waits until the controller has run a pass over the present set.
func (s *story) observed() {
	s.Helper()
	s.untilStatus("the set's generation to be observed", func(*apps.CloneSetStatus) bool { return true })
}

// settled waits until all Pods are available in the update revision.
func (s *story) settled(replicas int32) {
	s.Helper()
	s.untilStatus(fmt.Sprintf("%d available Pods, all updated", replicas), func(status *apps.CloneSetStatus) bool {
		return status.Replicas == replicas && status.UpdatedAvailableReplicas == replicas &&
			status.CurrentRevision == status.UpdateRevision && len(s.pods()) == int(replicas)
	})
}

// gone waits until a Pod is being deleted.
func (s *story) gone(pod string) {
	s.Await("Pod "+pod+" to go", func() bool { return s.identities()[pod] == "" })
}

// offerVolumes creates volumes for claims that select them by the label story.
func (s *story) offerVolumes(count int, label string) {
	for i := range count {
		s.Make(s.Prop("PersistentVolume", fmt.Sprintf("metadata: {name: %s-%d, labels: {story: %s}}", s.Namespace, i, label)))
	}
}

// claims maps the names of the remaining claims to their UIDs.
func (s *story) claims() map[string]types.UID {
	var all corev1.PersistentVolumeClaimList
	s.All(&all)
	out := map[string]types.UID{}
	for _, claim := range all.Items {
		if claim.DeletionTimestamp == nil {
			out[claim.Name] = claim.UID
		}
	}
	return out
}

// paired waits until there are so many claims, and checks that each Pod has its claim from the
// template, and mounts it.
func (s *story) paired(count string) {
	s.Await(count+" claims", func() bool { return fmt.Sprint(len(s.claims())) == count })
	claims := s.claims()
	for _, pod := range s.pods() {
		name := plan.ClaimName("data", "web", pod.Labels[apps.LabelInstanceID])
		if claims[name] == "" {
			s.Errorf("Pod %s has no claim %s; there are %v", pod.Name, name, slices.Sorted(maps.Keys(claims)))
		}
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == "data" && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
		}) {
			s.Errorf("Pod %s mounts %+v", pod.Name, pod.Spec.Volumes)
		}
	}
}

// withoutResize requests a subresource that the API server does not know.
func withoutResize(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	if path, ok := strings.CutSuffix(request.URL.Path, "/resize"); ok {
		request = request.Clone(request.Context())
		request.URL.Path = path + "/unknown"
	}
	return next.RoundTrip(request)
}

// forbidResizes makes the API server refuse resizes in the story's namespace.
func (s *story) forbidResizes() {
	s.Make(s.Prop("ValidatingAdmissionPolicy"), s.Prop("ValidatingAdmissionPolicyBinding"))
	pod := s.pods()[0]
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"150m"}}}]}}`))
	s.Await("the policy to be in force", func() bool {
		err := s.SubResource("resize").Patch(s.Context(), pod.DeepCopy(), patch, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "nothing is resized here")
	})
}

// forbidImage makes the API server refuse changes of Pods to an image, which it creates Pods with.
func (s *story) forbidImage(image string) {
	policy := fmt.Sprintf(`spec: {validations: [{expression: "!object.spec.containers.exists(c, c.image.endsWith('%s'))", message: "%s is not for here"}]}`, image, image)
	s.Make(s.Prop("ValidatingAdmissionPolicy", `spec: {matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}]}}`, policy),
		s.Prop("ValidatingAdmissionPolicyBinding"))
	pod := s.pods()[0]
	patch := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec":{"containers":[{"name":"main","image":"example.test/%s"}]}}`, image))
	s.Await("the policy to be in force", func() bool {
		err := s.Patch(s.Context(), pod.DeepCopy(), patch, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "is not for here")
	})
}

// annotate gives the template an annotation of so many bytes, and another image with it.
func (s *story) annotate(rest string) {
	bytes, image, _ := strings.Cut(rest, " and image ")
	s.patch(`spec: {template: {metadata: {annotations: {note: %q}}, spec: {containers: [{name: main, image: "example.test/%s"}]}}}`,
		strings.Repeat("x", scenariotest.Number(bytes)), image)
}

// restrict lets only Pods into the namespace that may do nothing special.
func (s *story) restrict(string) {
	s.Helper()
	s.Change(s.Ref("Namespace/"+s.Namespace), "metadata: {labels: {pod-security.kubernetes.io/enforce: restricted}}")
	s.Await("the namespace to be restricted", func() bool {
		pod := s.Object(`{apiVersion: v1, kind: Pod, metadata: {name: any}, spec: {containers: [{name: main, image: any}]}}`)
		return apierrors.IsForbidden(s.Create(s.Context(), pod, client.DryRunAll))
	})
}

// somebody applies objects.
const somebody = "example.com/somebody"

func (s *story) apply(object string) {
	s.Must(s.Apply(s.Context(), client.ApplyConfigurationFromUnstructured(s.Object(object)), client.FieldOwner(somebody)))
}

// managed are the Pods with a record of who manages which field. Somebody must be in it, who applies.
func (s *story) managed() (names []string) {
	for _, pod := range s.pods() {
		if len(pod.ManagedFields) == 0 {
			continue
		}
		names = append(names, pod.Name)
		if !slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Operation == metav1.ManagedFieldsOperationApply && e.Manager == somebody
		}) {
			s.Errorf("Pod %s has managed fields of %s", pod.Name, pod.ManagedFields[0].Manager)
		}
	}
	return names
}

// pulls is "POD pulls IMAGE": another Pod is there for that on its node. It is called pull.
func (s *story) pulls(rest string) {
	s.Helper()
	pod, image, _ := strings.Cut(rest, " pulls ")
	want := plan.ImageOnNode{Node: s.Pod(s.named(pod)).Spec.NodeName, Image: "example.test/" + image}
	s.Await("a Pod that pulls "+image, func() bool {
		found := list.Find(s.pods(), func(pod *corev1.Pod) bool { return plan.PulledBy(pod) == want })
		if found != nil {
			s.Call("pull", found.Name)
		}
		return found != nil
	})
}

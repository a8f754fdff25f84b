// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/width"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/podcache"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestTakenName: if a name is taken, by a terminating Pod or by an object of somebody else, another one
// is tried, a few times.
func TestTakenName(t *testing.T) {
	for taken, want := range map[int]string{
		0: "web-id0", 1: "web-id1", idTries - 1: fmt.Sprintf("web-id%d", idTries-1), idTries: "",
	} {
		t.Run(fmt.Sprint(taken), func(t *testing.T) {
			var there []client.Object
			for i := range taken {
				there = append(there, podOf(nil, fmt.Sprintf("web-id%d", i)))
			}
			r, _ := reconcilerOn(server(t, there...))
			tries := 0
			r.NewID = func() string { tries++; return fmt.Sprintf("id%d", tries-1) }
			made := performed(t, r, web(), plan.Action{Verb: plan.Create, Revision: emptyRevision()})
			if want == "" {
				if !apierrors.IsAlreadyExists(made.err) || tries != idTries {
					t.Errorf("after %d tries: %v", tries, made.err)
				}
				return
			}
			if made.err != nil || made.pod.Name != want || "web-"+made.pod.Labels[apps.LabelInstanceID] != want {
				t.Fatalf("made %v: %v", made.pod, made.err)
			}
			if i := write.IndexOf(made.pod, apps.ConditionInPlaceUpdateReady); i < 0 || made.pod.Status.Conditions[i].Status != corev1.ConditionTrue {
				t.Errorf("conditions %v", made.pod.Status.Conditions)
			}
		})
	}
}

// TestManifests: the manifests of Pods, beyond the template, and of claims. Pods have the gates with
// every update type, since no webhook adds them. Fields that no library knows stay.
func TestManifests(t *testing.T) {
	scenariotest.Run(t, "testdata/manifests.txt", func(t *testing.T, lines []string) []string {
		var test struct {
			// Template is the set's Pod template; Claim is its claim template.
			Template, Claim json.RawMessage
			Type            apps.UpdateStrategyType
			Lifecycle       *apps.Lifecycle
			Claims          []string
		}
		checktest.NoError(t, yaml.UnmarshalStrict([]byte(strings.Join(lines, "\n")), &test))
		set := web(test.Claims...)
		set.Spec.UpdateStrategy.Type, set.Spec.Lifecycle = test.Type, test.Lifecycle
		var made *unstructured.Unstructured
		if test.Claim != nil {
			set = web(string(test.Claim))
			made = checktest.Must(write.ClaimManifest(set, &set.Spec.VolumeClaimTemplates[0], "abcde"))(t)
		} else {
			r := &revision.Revision{Name: "web-r1", Template: checktest.Must(revision.Decode(test.Template))(t)}
			made = write.PodManifest(set, r, "abcde", now)
		}
		checktest.Same(t, "the set controls it", true, metav1.IsControlledBy(made, set))
		made.SetOwnerReferences(nil)
		return strings.Split(strings.TrimSpace(string(checktest.Must(yaml.Marshal(made.Object))(t))), "\n")
	})
}

// TestPatchIsEncoded: an encoder builds the patch from the user's keys and values, so that it touches
// only the fields that it names.
func TestPatchIsEncoded(t *testing.T) {
	key, value := `a/b~c`, `x","op":"remove`
	pod := podWithSecret("web-a")
	pod.Labels, pod.Finalizers = map[string]string{"kept": "1"}, []string{"example.com/theirs"}
	_, data := write.Patch("", pod, &plan.Action{Verb: plan.Move, Pod: pod, Labels: map[string]*string{key: &value}, AddFinalizers: []string{"example.com/ours"}}, false, now)
	var patch write.Operations
	checktest.NoError(t, json.Unmarshal(data, &patch))
	stops(t, pod, data, map[string]func(*corev1.Pod){
		"an owner": func(p *corev1.Pod) { p.OwnerReferences = podOf(anotherSet(), "").OwnerReferences }, // it had none
	})
	patch = slices.DeleteFunc(patch, func(o write.Operation) bool { return o.Op == "test" })
	want := write.Operations{
		{Op: "add", Path: "/metadata/labels/a~1b~0c", Value: value},
		{Op: "add", Path: "/metadata/finalizers", Value: []any{"example.com/theirs", "example.com/ours"}},
	}
	checktest.Same(t, "patch", want, patch)
}

// TestKeysGoThroughThePod: keys that users choose are written to the Pod itself, where policies on Pods
// see them, with the state, and the conditions follow; everything else is one write. If a policy or a
// webhook refuses the first write, the failure names the keys, and no conditions are written.
func TestKeysGoThroughThePod(t *testing.T) {
	value := "dmz"
	for name, test := range map[string]struct {
		action plan.Action
		chosen string
	}{
		"a label":                    {plan.Action{Labels: map[string]*string{"zone": &value}}, "zone"},
		"a label, and another value": {plan.Action{Labels: map[string]*string{"app": &value}}, "app"},
		"a label that goes":          {plan.Action{Labels: map[string]*string{"app": nil}}, "app"},
		"a finalizer":                {plan.Action{AddFinalizers: []string{"example.com/hold"}}, "example.com/hold"},
		"a finalizer that goes":      {plan.Action{RemoveFinalizers: []string{"example.com/there"}}, "example.com/there"},
		"a foreign domain's":         {plan.Action{AddFinalizers: []string{"notusher.dev/hold"}}, "notusher.dev/hold"},
		"two": {plan.Action{
			Labels: map[string]*string{"zone": &value, "web.usher.dev/drained": &value}, AddFinalizers: []string{"b"},
		}, "b, zone"},
		"a Registration's":      {plan.Action{Labels: map[string]*string{"web.usher.dev/drained": &value}, AddFinalizers: []string{"web.usher.dev/hold"}}, ""},
		"named for its removal": {plan.Action{Labels: map[string]*string{apps.LabelSpecifiedDelete: &value}}, ""},
		"nothing new": {plan.Action{
			Labels: map[string]*string{"gone": nil}, AddFinalizers: []string{"example.com/there"}, RemoveFinalizers: []string{"gone"},
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := test.action
			a.Verb, a.To, a.Pod = plan.Move, apps.StatePreparingNormal, podOf(web(), "web-a", func(pod *corev1.Pod) {
				pod.Finalizers = []string{"example.com/there"}
			})
			a.Conditions = []plan.Condition{{Type: apps.ConditionPodReady, Status: corev1.ConditionTrue}}
			writes, done := writesOf(t, a, nil)
			checktest.NoError(t, done.err)
			want := []string{"status"}
			if test.chosen != "" {
				want = []string{"", "status"}
			}
			checktest.Same(t, "writes", want, writes)
			if write.IndexOf(done.pod, apps.ConditionPodReady) < 0 {
				t.Errorf("conditions %v", done.pod.Status.Conditions)
			}
			if test.chosen == "" {
				return // the fake API server ignores metadata in a status
			}
			checktest.Same(t, "state", string(a.To), done.pod.Labels[apps.LabelLifecycleState])
			checktest.Same(t, "keys that the Pod lacks", []string(nil), (&plan.Action{
				Verb: plan.Move, Pod: done.pod, Labels: a.Labels, AddFinalizers: a.AddFinalizers, RemoveFinalizers: a.RemoveFinalizers,
			}).ChosenKeys())
			for _, refusal := range []error{
				apierrors.NewForbidden(corev1.Resource("pods"), "web-a", errors.New("not here")),
				&apierrors.StatusError{ErrStatus: metav1.Status{
					Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
					Message: `admission webhook "zones" denied the request: not here`,
				}},
			} {
				writes, done := writesOf(t, a, refusal)
				checktest.Same(t, "writes when refused", []string{""}, writes)
				if text := fmt.Sprint(done.err); !done.failed() || !strings.Contains(text, "keys "+test.chosen+" of") || !strings.Contains(text, "not here") {
					t.Errorf("it ends with %v", done.err)
				}
			}
		})
	}
}

// performed returns the outcome of all steps of an action.
func performed(t *testing.T, r *Reconciler, set *apps.CloneSet, a plan.Action) outcome {
	o, next := r.perform(t.Context(), set, a)
	for next != nil {
		o, next = next()
	}
	return o
}

// writesOf performs an action and returns the subresources that it writes. The write to the Pod itself
// gets the given answer, unless that is nil.
func writesOf(t *testing.T, a plan.Action, answer error) (writes []string, done outcome) {
	t.Helper()
	r, _ := reconcilerOn(interceptor.NewClient(server(t, a.Pod), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			writes = append(writes, "")
			if answer != nil {
				return answer
			}
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			writes = append(writes, name)
			return c.SubResource(name).Patch(ctx, object, patch, options...)
		},
	}))
	a.Pod = read(t, r.Client, a.Pod)
	done = performed(t, r, web(), a)
	return writes, done
}

func cpu(amount string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
}

// resizing returns a drained Pod whose record asks for cpu 200m, and whose spec has 100m.
func resizing(edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := podOf(web(), "web-a", inUpdate(corev1.ConditionFalse, time.Unix(0, 0)))
	pod.Generation, pod.Spec.NodeName = 3, "n1"
	pod.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	pod.Spec.Containers = []corev1.Container{{Name: "log"}, {Name: "main", Resources: cpu("100m")}}
	change := &inplace.Change{Resources: map[string]corev1.ResourceRequirements{"main": cpu("200m")}}
	pod.Annotations = map[string]string{apps.AnnotationInPlaceUpdateState: inplace.Begin(pod, change, "web-r2", time.Unix(0, 0)).State.String()}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

// TestResizePatch: the patch sets the resources of the right container, and depends on
// the Pod being drained, in the update, and unchanged since it was observed.
func TestResizePatch(t *testing.T) {
	pod := resizing()
	_, data := write.Patch("resize", pod, &plan.Action{Verb: plan.Continue, Pod: pod}, false, now)
	after := checktest.Must(patched(t, pod, data))(t)
	if got := after.Spec.Containers[1].Resources.Requests.Cpu(); got.String() != "200m" || len(after.Spec.Containers[0].Resources.Requests) > 0 {
		t.Errorf("patched: %v", after.Spec.Containers)
	}
	stops(t, pod, data, map[string]func(*corev1.Pod){
		"service":        func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue },
		"another drain":  func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(100, 0)) },
		"another spec":   func(p *corev1.Pod) { p.Generation++ },
		"another record": func(p *corev1.Pod) { p.Annotations[apps.AnnotationInPlaceUpdateState] = "{}" },
		"another Pod":    func(p *corev1.Pod) { p.UID = "uid-b" },
		"another state":  func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = "Normal" },
	})
	// Nothing is written twice, or over someone else's change.
	for name, edit := range map[string]func(*corev1.Pod){
		"written":   func(p *corev1.Pod) { p.Spec.Containers[1].Resources = cpu("0.2") },
		"no record": func(p *corev1.Pod) { p.Annotations = nil },
		"long done": func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = "Normal" }, // a later change was made on purpose
	} {
		pod := resizing(edit)
		_, data := write.Patch("resize", pod, &plan.Action{Verb: plan.Continue, Pod: pod}, false, now)
		checktest.Same(t, "a patch, "+name, "", string(data))
	}
}

// TestResizeAnswers: a refusal is reported as one, and never taken for a deleted Pod, a
// lost answer or a conflict.
func TestResizeAnswers(t *testing.T) {
	scenariotest.Table(t, "testdata/resize-answers.txt", func(t *testing.T, test struct {
		Answer metav1.Status
		// Live is the UID of the existing Pod; "" if there is none.
		Live types.UID
	}) string {
		var live []client.Object
		if test.Live != "" {
			live = append(live, resizing(func(p *corev1.Pod) { p.UID = test.Live }))
		}
		r, _ := reconcilerOn(interceptor.NewClient(server(t, live...), interceptor.Funcs{
			SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				return &apierrors.StatusError{ErrStatus: test.Answer}
			},
		}))
		action := plan.Action{Verb: plan.Continue, Pod: resizing()}
		_, err := r.writePod(t.Context(), web(), action.Pod, action, "resize")
		switch o := (outcome{action: action, err: err}); {
		case o.conflicted():
			return fmt.Sprint(apierrors.ReasonForError(err), ": decided again")
		case kube.Unanswered(err):
			return fmt.Sprint(apierrors.ReasonForError(err), ": nobody knows")
		default:
			failure := find(&plan.Plan{}, nil, []outcome{o})[apps.ConditionFailedUpdate]
			return fmt.Sprint(apierrors.ReasonForError(err), ": ", failure.Reason, ": ", failure.Message)
		}
	})
}

func record(operations ...metav1.ManagedFieldsOperationType) []metav1.ManagedFieldsEntry {
	var entries []metav1.ManagedFieldsEntry
	for _, operation := range operations {
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: "somebody", Operation: operation, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:restartPolicy":{}}}`),
		})
	}
	return entries
}

// andHere returns managed fields: entries of another manager, and one of Usher for a field.
func andHere(field string, operations ...metav1.ManagedFieldsOperationType) []metav1.ManagedFieldsEntry {
	return append(record(operations...), metav1.ManagedFieldsEntry{
		Manager: write.Creator, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"` + field + `":{}}}`),
	})
}

// TestRecordIsDropped: a patch that is sent anyway drops the field managers' record, from the Pod as
// the cache keeps it and as the API server returns it. The record stays on a Pod that somebody uses
// server-side apply on, on a Pod that somebody else has created, and on every Pod if records are to be
// kept.
func TestRecordIsDropped(t *testing.T) {
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	dropped := write.Operations{
		{Op: "test", Path: "/metadata/managedFields/0/operation", Value: string(update)},
		{Op: "replace", Path: "/metadata/managedFields", Value: []any{map[string]any{}}},
	}
	move := &plan.Action{Verb: plan.Move, To: apps.StateNormal}
	for _, test := range []struct {
		name   string
		record []metav1.ManagedFieldsEntry
		action *plan.Action
		keep   bool
		want   write.Operations
	}{
		{"made here, written by others", andHere("f:restartPolicy", update), move, false, dropped},
		{"somebody applies", andHere("f:restartPolicy", apply, update), move, false, nil},
		{"somebody else has made it", record(update), move, false, nil},
		{"somebody else has made it, written here", andHere("f:containers", update), move, false, nil},
		{"there is none", nil, move, false, nil},
		{"it is to be kept", andHere("f:restartPolicy"), move, true, nil},
		{"nothing is sent", andHere("f:restartPolicy"), &plan.Action{Verb: plan.Move}, false, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			answered := podWithSecret("web-a")
			answered.ManagedFields = test.record
			kept := checktest.Must(podcache.New().Options().Transform(answered.DeepCopy()))(t)
			for from, pod := range map[string]*corev1.Pod{"an answer": answered, "the cache": kept.(*corev1.Pod)} {
				_, data := write.Patch("", pod, test.action, test.keep, now)
				checktest.Same(t, "from "+from, test.want, aboutRecord(t, data))
			}
		})
	}
}

// aboutRecord returns the operations of a patch that name managed fields.
func aboutRecord(t *testing.T, data []byte) write.Operations {
	t.Helper()
	if data == nil {
		return nil
	}
	var patch write.Operations
	checktest.NoError(t, json.Unmarshal(data, &patch))
	patch = slices.DeleteFunc(patch, func(o write.Operation) bool {
		return o.Path != "/metadata/managedFields" && o.Path != "/metadata/managedFields/0/operation"
	})
	if len(patch) == 0 {
		return nil
	}
	return patch
}

// TestBeside: while a large set has as many unanswered writes under way as the API server takes, the
// writes of a small set are not held up.
func TestBeside(t *testing.T) {
	large, small := web(), anotherSet()
	small.Name = "small"
	large.Spec.Replicas, small.Spec.Replicas = new(int32(200)), new(int32(3))
	objects := []client.Object{large, small}
	for _, set := range []*apps.CloneSet{large, small} {
		for n := range *set.Spec.Replicas {
			objects = append(objects, podOf(set, fmt.Sprintf("%s-%03d", set.Name, n), func(pod *corev1.Pod) {
				pod.Labels[apps.LabelLifecycleState], pod.Spec.NodeName = string(apps.StatePreparingNormal), "n1"
			}))
		}
	}
	sent, release := make(chan string, 200), make(chan struct{})
	c := server(t, objects...)
	r, _ := reconcilerOn(interceptor.NewClient(c, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if strings.HasPrefix(object.GetName(), large.Name+"-") {
				sent <- object.GetName()
				<-release
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}))
	done := make(chan error)
	go func() {
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(large)})
		done <- err
	}()
	checktest.Same(t, "how many Pods of 2,000 and of 20,000 a pass begins with", [2]int{4 * r.Width.Now(), 200}, [2]int{r.starts(2000), r.starts(20_000)})
	for range width.Room(r.Width.Now(), 0) {
		receive(t, sent)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(small)}); err != nil {
		t.Error(err)
	}
	for n := range *small.Spec.Replicas {
		pod := read(t, c, podOf(small, fmt.Sprintf("%s-%03d", small.Name, n)))
		checktest.Same(t, "the state of Pod "+pod.Name, string(apps.StateNormal), pod.Labels[apps.LabelLifecycleState])
	}
	close(release)
	checktest.NoError(t, <-done)
}

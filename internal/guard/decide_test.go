// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pod makes a registered Pod and changes it.
func pod(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "demo", Name: "web-1", UID: "uid-1", Finalizers: []string{usherv1alpha1.Finalizer},
		Labels: map[string]string{}, Annotations: map[string]string{},
	}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func owner(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", Controller: &yes}}
	}
}

// TestTurns: the Pods of a DaemonSet leave one after the other, as its controller asks.
func TestTurns(t *testing.T) {
	daemonSet := func(changes ...func(*corev1.Pod)) *corev1.Pod {
		p := pod(owner("apps/v1", "DaemonSet"))
		p.OwnerReferences[0].UID = "set"
		for _, change := range changes {
			change(p)
		}
		return p
	}
	is := func(kind corev1.PodConditionType) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
		}
	}
	other := func(changes ...func(*corev1.Pod)) corev1.Pod {
		p := daemonSet(changes...)
		p.Name, p.UID = "web-2", "uid-2"
		return *p
	}
	served := []func(*corev1.Pod){is(corev1.PodReady), is(usherv1alpha1.ConditionRegistered)}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		user  string
		other corev1.Pod
		after string
	}{
		"the other one serves":            {other: other(served...)},
		"the other one drains":            {other: other(append(served, requested(0, 0, ""))...), after: "web-2"},
		"the other one is not listed yet": {other: other(is(corev1.PodReady)), after: "web-2"},
		"nobody registers the other one": {other: other(is(corev1.PodReady), func(p *corev1.Pod) {
			p.Finalizers, p.Status.Conditions[0].LastTransitionTime = nil, metav1.Time{Time: now.Add(-joinTime)}
		})},
		"the other one got ready a moment ago": {after: "web-2", other: other(is(corev1.PodReady), func(p *corev1.Pod) {
			p.Finalizers, p.Status.Conditions[0].LastTransitionTime = nil, metav1.Time{Time: now.Add(-joinTime / 2)}
		})},
		"the other one does not get ready":       {other: other()},
		"the other one ends":                     {other: other(requested(0, 0, ""), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} })},
		"this one drains already":                {pod: daemonSet(requested(0, 0, "")), other: other(requested(0, 0, ""))},
		"somebody else deletes it":               {user: "ann", other: other(requested(0, 0, ""))},
		"the other one belongs to somebody else": {other: other(requested(0, 0, ""), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" })},
	} {
		r := Request{Pod: c.pod, User: perNode, Now: now}
		if c.user != "" {
			r.User = c.user
		}
		if r.Pod == nil {
			r.Pod = daemonSet(served...)
		}
		if r.takesTurns() {
			r.After = r.turn([]corev1.Pod{*r.Pod, c.other})
		}
		d, err := Decide(r, nil)
		if err != nil || r.After != c.after || d.Allowed || (d.Patch == nil) != (c.after != "" || c.pod != nil) {
			t.Errorf("%s: after %q, %+v, %v", name, r.After, d, err)
		}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

// requested puts a request on the Pod that was made first and last so long ago.
func requested(since, at time.Duration, fields string) func(*corev1.Pod) {
	return annotated(usherv1alpha1.AnnotationDeletionRequest, fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob"%s}`,
		stamp(since), stamp(at), fields))
}

// drainedIn says on the Pod when its drain ends.
func drainedIn(left time.Duration) func(*corev1.Pod) {
	return annotated(usherv1alpha1.AnnotationDrain, fmt.Sprintf(`{"until":%q}`, now.Add(left).Format(time.RFC3339Nano)))
}

func stamp(ago time.Duration) string { return now.Add(-ago).Format(metav1.RFC3339Micro) }

var (
	cloneSet   = owner("apps.kruise.io/v1alpha1", "CloneSet")
	replicaSet = owner("apps/v1", "ReplicaSet")
)

func gated(p *corev1.Pod) {
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usherv1alpha1.ConditionRegistered}}
}

// claim mounts a claim.
func claim(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
}

func named(p *corev1.Pod) { p.Labels[appsv1alpha1.LabelSpecifiedDelete] = "true" }

// TestDecide holds every branch of a decision: what is allowed, what is asked for, and
// when to come again.
func TestDecide(t *testing.T) {
	fresh := fmt.Sprintf(`{"since":%q,"at":%q,"by":"ann"`, stamp(0), stamp(0))
	request := func(json string) string {
		text, err := marshal(json)
		if err != nil {
			t.Fatal(err)
		}
		return `{"metadata":{"annotations":{"usher.dev/deletion-request":` + text + `},"uid":"uid-1"}}`
	}
	for name, c := range map[string]struct {
		pod      *corev1.Pod
		user     string
		eviction bool
		allowed  bool
		skipped  bool
		after    int
		patch    string
	}{
		"no registry lists it": {pod: pod(func(p *corev1.Pod) { p.Finalizers = []string{"other"} }), allowed: true},
		"it is being deleted":  {pod: pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), allowed: true},
		"its annotation lets it go": {
			pod: pod(annotated(usherv1alpha1.AnnotationSkipDrain, "true")), allowed: true, skipped: true},
		"its annotation says something else": {
			pod: pod(annotated(usherv1alpha1.AnnotationSkipDrain, "1")), after: 1, patch: request(fresh + "}")},

		"first deletion": {pod: pod(), after: 1, patch: request(fresh + "}")},
		"first eviction": {pod: pod(), eviction: true, after: 1, patch: request(fresh + `,"eviction":true}`)},
		"second deletion, nothing known of the drain": {
			pod: pod(requested(5*time.Second, 5*time.Second, "")), after: 4},
		"a deletion that was asked for a moment ago": {
			pod: pod(requested(3*time.Second, time.Second, "")), after: 1},
		"an unreadable request is replaced": {
			pod: pod(annotated(usherv1alpha1.AnnotationDeletionRequest, "{")), after: 1, patch: request(fresh + "}")},
		"the drain ends in 4.2 s": {
			pod: pod(requested(time.Second, time.Second, ""), drainedIn(4200*time.Millisecond)), after: 5},
		"the drain should have ended": {
			pod: pod(requested(8*time.Second, time.Second, ""), drainedIn(0)), after: 1},
		"the drain should have ended long ago": {
			pod: pod(requested(8*time.Second, time.Second, ""), drainedIn(-5*time.Second)), after: 7},
		"a long drain is asked about rarely, and renewed": {
			pod: pod(requested(5*time.Minute, 10*time.Second, "")), after: 45,
			patch: request(fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob"}`, stamp(5*time.Minute), stamp(0)))},
		"a deletion after an eviction lifts the budget": {
			pod: pod(requested(time.Second, time.Second, `,"eviction":true`)), after: 1,
			patch: request(fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob"}`, stamp(time.Second), stamp(0)))},
		"an eviction after a deletion does not bring it back": {
			pod: pod(requested(time.Second, time.Second, "")), eviction: true, after: 1},

		"a controller that watches Pods does not wait": {
			pod: pod(), user: "system:serviceaccount:kube-system:statefulset-controller",
			patch: request(strings.Replace(fresh, "ann", "system:serviceaccount:kube-system:statefulset-controller", 1) + "}")},
		"that of StatefulSets waits for a Pod with the readiness gate": {
			pod: pod(gated), after: 1, user: inOrder, patch: request(strings.Replace(fresh, "ann", inOrder, 1) + "}")},
		"a collector waits for a drain that ends soon": {
			pod: pod(requested(time.Second, time.Second, ""), drainedIn(4*time.Second)), user: collectors[0], after: 4},
		"a collector does not wait for a long drain": {
			pod: pod(requested(time.Second, time.Second, ""), drainedIn(6*time.Second)), user: collectors[0]},
		"a collector does not wait if the end is not known": {
			pod: pod(requested(time.Second, time.Second, "")), user: collectors[0]},
		"a ReplicaSet chooses it again": {
			pod: pod(replicaSet), after: 1,
			patch: strings.Replace(request(fresh+"}"), `"usher.dev/`, `"controller.kubernetes.io/pod-deletion-cost":"-2147483648","usher.dev/`, 1)},
		"a ReplicaSet's own cost is kept": {
			pod: pod(replicaSet, annotated(corev1.PodDeletionCost, "7")), after: 1,
			patch: strings.Replace(request(fresh+`,"deletionCost":"7"}`), `"usher.dev/`, `"controller.kubernetes.io/pod-deletion-cost":"-2147483648","usher.dev/`, 1)},
		"the kept cost stays when the request is renewed": {
			pod: pod(replicaSet, annotated(corev1.PodDeletionCost, "-2147483648"), requested(time.Minute, time.Minute, `,"deletionCost":"7"`)), after: 45,
			patch: request(fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob","deletionCost":"7"}`, stamp(time.Minute), stamp(0)))},

		"a CloneSet's Pod with claims is drained, since its claims would go with a named one": {
			pod: pod(cloneSet, claim("data-web-1")), after: 1, patch: request(fresh + "}")},
		"claims that are not its CloneSet's stay in any case": {
			pod: pod(cloneSet, claim("shared")), after: 1,
			patch: strings.Replace(request(fresh+`,"named":true}`), `"uid"`, `"labels":{"apps.kruise.io/specified-delete":"true"},"uid"`, 1)},
		"a CloneSet's Pod becomes a named deletion": {
			pod: pod(cloneSet), after: 1,
			patch: strings.Replace(request(fresh+`,"named":true}`), `"uid"`, `"labels":{"apps.kruise.io/specified-delete":"true"},"uid"`, 1)},
		"an eviction of a CloneSet's Pod as well": {
			pod: pod(cloneSet), eviction: true, after: 1,
			patch: strings.Replace(request(fresh+`,"eviction":true,"named":true}`), `"uid"`, `"labels":{"apps.kruise.io/specified-delete":"true"},"uid"`, 1)},
		"a named deletion is asked for once": {
			pod: pod(cloneSet, named, requested(time.Minute, time.Minute, `,"named":true`)), after: 45},
		"a named deletion that somebody took back is asked for again": {
			pod: pod(cloneSet, requested(time.Second, time.Second, `,"named":true`)), after: 1,
			patch: strings.Replace(request(fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob","named":true}`, stamp(time.Second), stamp(0))),
				`"uid"`, `"labels":{"apps.kruise.io/specified-delete":"true"},"uid"`, 1)},
		"the CloneSet controller itself asks for a drain": {
			pod: pod(cloneSet, named, requested(time.Second, time.Second, `,"named":true`)), user: "controller", after: 1,
			patch: request(fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob"}`, stamp(time.Second), stamp(0)))},
		"a user after the CloneSet controller waits with it": {
			pod: pod(cloneSet, named, requested(time.Second, time.Second, "")), after: 1},
	} {
		t.Run(name, func(t *testing.T) {
			user := "ann"
			if c.user != "" {
				user = c.user
			}
			got, err := Decide(Request{Pod: c.pod, User: user, Eviction: c.eviction, Now: now}, []string{"controller"})
			if err != nil {
				t.Fatal(err)
			}
			want := Decision{Allowed: c.allowed, Skipped: c.skipped, RetryAfter: time.Duration(c.after) * time.Second, Message: got.Message}
			if c.patch != "" {
				want.Patch = []byte(c.patch)
			}
			if diff := cmp.Diff(want, got, cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if c.allowed != (got.Message == "") {
				t.Errorf("message %q", got.Message)
			}
		})
	}
}

func marshal(text string) (string, error) {
	quoted, err := json.Marshal(text)
	return string(quoted), err
}

// TestTenRetries: the ten attempts of client-go last for at least two minutes of a drain
// whose end nobody knows.
func TestTenRetries(t *testing.T) {
	at := now
	for range 10 {
		p := pod(requested(0, 0, ""))
		d, err := Decide(Request{Pod: p, User: "ann", Now: at}, nil)
		if err != nil {
			t.Fatal(err)
		}
		at = at.Add(d.RetryAfter)
	}
	if passed := at.Sub(now); passed < 2*time.Minute || passed > 5*time.Minute {
		t.Errorf("ten attempts last for %v", passed)
	}
}

// TestMessage names whom the request waits for and how to go on without.
func TestMessage(t *testing.T) {
	p := pod(cloneSet, requested(time.Second, time.Second, ""), annotated(usherv1alpha1.AnnotationDrain, `{"until":"2026-03-01T12:00:04Z"}`))
	p.Status.Conditions = []corev1.PodCondition{{Type: usherv1alpha1.ConditionRegistered, Status: corev1.ConditionFalse, Message: "Waits for Registry backup."}}
	d, err := Decide(Request{Pod: p, User: "ann", Now: now}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"CloneSet web", "web-1", "2026-03-01T12:00:04Z", "Waits for Registry backup. To delete", "usher.dev/skip-drain=true"} {
		if !strings.Contains(d.Message, part) {
			t.Errorf("%q does not say %q", d.Message, part)
		}
	}
}

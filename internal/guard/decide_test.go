// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/scenariotest"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pod makes a registered Pod.
func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "demo", Name: "web-1", UID: "uid-1", Finalizers: []string{usherv1alpha1.Finalizer},
		Labels: map[string]string{}, Annotations: map[string]string{},
	}}
}

// TestDecide checks the scenarios: a line for the user, for the Pod, and for another Pod of its
// DaemonSet; then the decision.
func TestDecide(t *testing.T) {
	scenariotest.Run(t, "testdata/decisions.txt", func(t *testing.T, lines []string) []string {
		r, other, invented := Request{Pod: pod(), User: "ann", Now: now, Secret: "the path"}, pod(), false
		other.Name, other.UID = "web-2", "uid-2"
		for _, line := range lines {
			kind, about, _ := strings.Cut(line, ": ")
			err := map[string]func() error{
				"Owner":   func() error { invented = about == "invented"; return nil },
				"Request": func() error { return scenariotest.Say(requestWords, &r, about) },
				"Pod":     func() error { return scenariotest.Say(podWords, r.Pod, about) },
				"Other":   func() error { return scenariotest.Say(podWords, other, about) },
			}[kind]()
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if r.Owner = r.claim(); invented {
			r.Owner = nil
		}
		if r.takesTurns() {
			r.First = r.drainsFirst([]*corev1.Pod{r.Pod, other})
		}
		return decided(t, r)
	})
}

func decided(t *testing.T, r Request) []string {
	t.Helper()
	d := Decide(r, []string{"controller"})
	var lines []string
	switch {
	case d.Hurried:
		lines = append(lines, "allowed, and hurried")
	case d.Skipped:
		lines = append(lines, "allowed, and skipped")
	case d.Allowed:
		lines = append(lines, "allowed")
	}
	if d.RetryAfter > 0 {
		lines = append(lines, "come again in "+d.RetryAfter.String())
	}
	if d.Patch != nil {
		lines = append(lines, "patch "+string(d.Patch))
	}
	if d.Evict != nil {
		lines = append(lines, "evict "+d.Evict.Name)
	}
	if d.Message != "" {
		lines = append(lines, "says "+d.Message)
	}
	return lines
}

// requestWords describe the request; by default, ann deletes the Pod.
var requestWords = map[string]func(r *Request, value string){
	"eviction":   func(r *Request, _ string) { r.Eviction = true },
	"user":       func(r *Request, name string) { r.User = name },
	"inOrder":    func(r *Request, _ string) { r.User = inOrder },
	"daemonSets": func(r *Request, _ string) { r.User = perNode },
	"grace":      func(r *Request, seconds string) { r.GracePeriodSeconds = new(int64Of(seconds)) },
	"collector":  func(r *Request, _ string) { r.User = collectors[0] },
}

// podWords describe a Pod.
var podWords = map[string]func(p *corev1.Pod, value string){
	"nobodys": func(p *corev1.Pod, _ string) { p.Finalizers = []string{"other"} },
	// ends has the Pod deleted now, or some time ago.
	"ends": func(p *corev1.Pod, ago string) {
		p.DeletionTimestamp = &metav1.Time{Time: now.Add(-scenariotest.Duration(cmp.Or(ago, "0s")))}
	},
	"graceful": func(p *corev1.Pod, seconds string) { p.Spec.TerminationGracePeriodSeconds = new(int64Of(seconds)) },
	"owner": func(p *corev1.Pod, value string) {
		kind, uid, _ := strings.Cut(value, " ")
		owner := metav1.ObjectMeta{Name: "web", UID: "set"}
		of := appsv1alpha1.KindCloneSet
		if kind != of.Kind {
			of = corev1.SchemeGroupVersion.WithKind(kind)
			of.Group = "apps"
		}
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&owner, of)}
		if uid != "" {
			p.OwnerReferences[0].UID = "another"
		}
	},
	"revision": func(p *corev1.Pod, value string) { p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = value },
	"gated": func(p *corev1.Pod, _ string) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usherv1alpha1.ConditionRegistered}}
	},
	"claim": func(p *corev1.Pod, name string) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	},
	"named": func(p *corev1.Pod, _ string) { p.Labels[appsv1alpha1.LabelSpecifiedDelete] = "true" },
	"cost":  func(p *corev1.Pod, value string) { p.Annotations[corev1.PodDeletionCost] = value },
	"skips": func(p *corev1.Pod, value string) { p.Annotations[usherv1alpha1.AnnotationSkipDrain] = value },
	// requested puts a request on the Pod, with the times since it was made first and last.
	"requested": func(p *corev1.Pod, value string) {
		words := append(strings.SplitN(value, " ", 3), "")
		stamp := func(ago string) string { return now.Add(-scenariotest.Duration(ago)).Format(metav1.RFC3339Micro) }
		p.Annotations[usherv1alpha1.AnnotationDeletionRequest] = fmt.Sprintf(`{"since":%q,"at":%q,"by":"bob"%s}`, stamp(words[0]), stamp(words[1]), words[2])
	},
	// sealed makes the Pod's request one of the controller of DaemonSets.
	"sealed": func(p *corev1.Pod, secret string) {
		stored, _ := usherv1alpha1.DeletionRequestOf(p)
		stored.Seal = Request{Secret: secret}.seal(p, stored.Since)
		p.Annotations[usherv1alpha1.AnnotationDeletionRequest] = string(encode.JSON(stored))
	},
	"unreadable": func(p *corev1.Pod, _ string) { p.Annotations[usherv1alpha1.AnnotationDeletionRequest] = "{" },
	"drainedIn": func(p *corev1.Pod, left string) {
		until := now.Add(scenariotest.Duration(left)).Format(time.RFC3339Nano)
		p.Annotations[usherv1alpha1.AnnotationDrain] = fmt.Sprintf(`{"until":%q}`, until)
	},
	"ready": func(p *corev1.Pod, ago string) {
		is(corev1.PodReady)(p)
		if ago != "" {
			p.Status.Conditions[len(p.Status.Conditions)-1].LastTransitionTime = metav1.Time{Time: now.Add(-scenariotest.Duration(ago))}
		}
	},
	"registered": func(p *corev1.Pod, _ string) { is(usherv1alpha1.ConditionRegistered)(p) },
	"deregistered": func(p *corev1.Pod, _ string) {
		p.Status.Conditions = []corev1.PodCondition{{Type: usherv1alpha1.ConditionRegistered, Status: corev1.ConditionFalse,
			Reason: plan.ReasonDeregistered, Message: "At least one registry does not list the Pod."}}
	},
	// hooks are on the Pod, those of Usher's domain as labels and others as finalizers.
	"hooks": func(p *corev1.Pod, keys string) {
		for key := range strings.SplitSeq(keys, " ") {
			if strings.Contains(key, usherv1alpha1.HookDomain) {
				p.Labels[key] = "true"
			} else {
				p.Finalizers = append(p.Finalizers, key)
			}
		}
	},
	"waits": func(p *corev1.Pod, message string) {
		p.Status.Conditions = []corev1.PodCondition{{Type: usherv1alpha1.ConditionRegistered, Status: corev1.ConditionFalse, Message: message}}
	},
}

func int64Of(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err) // the scenario is misspelt
	}
	return n
}

func is(kind corev1.PodConditionType) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	}
}

// TestTenRetries: for a drain whose end is unknown, client-go's ten attempts last for at least two
// minutes if a person waits. A controller, which sleeps inside its request and may have a single
// worker, waits for less.
func TestTenRetries(t *testing.T) {
	for user, bounds := range map[string][2]time.Duration{
		"ann":                                 {2 * time.Minute, 5 * time.Minute},
		"system:serviceaccount:rollouts:argo": {5 * time.Second, 15 * time.Second},
	} {
		for _, stuck := range []string{"requested 0s 0s", "requested 0s 0s; drainedIn 0s", "requested 0s 0s; drainedIn 10m"} {
			at := now
			for range 10 {
				p := pod()
				for word := range strings.SplitSeq(stuck, "; ") {
					name, value, _ := strings.Cut(word, " ")
					podWords[name](p, value)
				}
				at = at.Add(Decide(Request{Pod: p, User: user, Now: at}, nil).RetryAfter)
			}
			if passed := at.Sub(now); user != "ann" && passed > bounds[1] || passed < bounds[0] || passed > 10*maxRetry {
				t.Errorf("%s, %s: ten attempts last for %v", user, stuck, passed)
			}
		}
	}
}

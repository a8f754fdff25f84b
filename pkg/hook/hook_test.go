// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	created  = "example.com/newly-create"
	inPlace  = "example.com/unready-blocker-inplace"
	blocked  = "example.com/unready-blocker-delete"
	guard    = "example.com/traffic"
	reported = corev1.PodConditionType("example.com/hooks")
	deadline = time.Minute
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pod carries the labels of the operator's keys, and became Ready a second ago.
func pod(state appsv1alpha1.LifecycleState, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: "nginx-aaaaa", UID: "uid",
			Labels: map[string]string{
				appsv1alpha1.LabelLifecycleState: string(state), created: "true", inPlace: "true", blocked: "true",
			},
			Annotations: map[string]string{
				appsv1alpha1.AnnotationLifecycleTimestamp: epoch.Add(-time.Minute).Format(time.RFC3339),
			},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(epoch.Add(-time.Second)),
		}}},
	}
	for _, do := range change {
		do(p)
	}
	return p
}

func label(key, value string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Labels[key] = value } }

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func finalizer(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, name) }
}

func deleted(p *corev1.Pod) {
	grace := int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: epoch.Add(20 * time.Second)}, &grace
}

// journal records which Handlers were called, and answers with err.
type journal struct {
	calls []string
	err   error
}

func (j *journal) note(what string) Handler {
	return func(_ context.Context, pod *corev1.Pod) error {
		j.calls = append(j.calls, what+" "+pod.Name)
		return j.err
	}
}

// seed is the operator of the well-known example, with its own hook for new Pods.
func seed(j *journal, options ...Option) *Operator {
	return New("traffic").
		OnPreNormal(Label("example.com/registered"), j.note("preNormal"), options...).
		OnCreated(Label(created), j.note("register"), options...).
		OnPreUpdate(Label(inPlace), j.note("fail over"), options...).
		OnUpdated(Label(inPlace), j.note("register again"), options...).
		OnPreDelete(Label(blocked), j.note("deregister"), options...)
}

type bench struct {
	*testing.T
	client   client.Client
	events   *events.FakeRecorder
	clock    *clocktesting.FakePassiveClock
	operator *reconciler
}

func newBench(t *testing.T, o *Operator, p *corev1.Pod, funcs ...interceptor.Funcs) *bench {
	t.Helper()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, events: events.NewFakeRecorder(100), clock: clocktesting.NewFakePassiveClock(epoch)}
	builder := fake.NewClientBuilder().WithStatusSubresource(p).WithObjects(p)
	for _, f := range funcs {
		builder = builder.WithInterceptorFuncs(f)
	}
	b.client = builder.Build()
	o.Clock, o.Timeout = b.clock, time.Second
	b.operator = &reconciler{Operator: o, client: b.client, events: b.events}
	return b
}

func (b *bench) reconcile() (ctrl.Result, error) {
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "demo", Name: "nginx-aaaaa"}}
	return b.operator.Reconcile(b.Context(), request)
}

// live is the Pod as the API server has it; nil if it is gone.
func (b *bench) live() *corev1.Pod {
	b.Helper()
	var p corev1.Pod
	err := b.client.Get(b.Context(), client.ObjectKey{Namespace: "demo", Name: "nginx-aaaaa"}, &p)
	if client.IgnoreNotFound(err) != nil {
		b.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return &p
}

// TestGates follows a Pod's life: which Handler is called where, and what lets the Pod
// continue.
func TestGates(t *testing.T) {
	tests := []struct {
		name       string
		pod        *corev1.Pod
		call       string
		key, value string
	}{
		{"new and not ready", pod(appsv1alpha1.StatePreparingNormal, notReady), "", "example.com/registered", ""},
		{"new and ready", pod(appsv1alpha1.StatePreparingNormal), "preNormal", "example.com/registered", "true"},
		{"new, answered", pod(appsv1alpha1.StatePreparingNormal, label("example.com/registered", "true")), "", created, "true"},
		{"Normal and not ready", pod(appsv1alpha1.StateNormal, notReady), "", created, "true"},
		{"Normal and ready", pod(appsv1alpha1.StateNormal), "register", created, "false"},
		{"Normal, answered", pod(appsv1alpha1.StateNormal, label(created, "false")), "", created, "false"},
		{"before the update", pod(appsv1alpha1.StatePreparingUpdate, notReady), "fail over", inPlace, "false"},
		{"before the update, answered", pod(appsv1alpha1.StatePreparingUpdate, label(inPlace, "false")), "", inPlace, "false"},
		{"while the kubelet works", pod(appsv1alpha1.StateUpdating, label(inPlace, "false")), "", inPlace, "false"},
		{"updated, not ready", pod(appsv1alpha1.StateUpdated, label(inPlace, "false"), notReady), "", inPlace, "false"},
		{"updated and ready", pod(appsv1alpha1.StateUpdated, label(inPlace, "false")), "register again", inPlace, "true"},
		{"before the end", pod(appsv1alpha1.StatePreparingDelete, notReady), "deregister", blocked, "false"},
		{"before the end, answered", pod(appsv1alpha1.StatePreparingDelete, label(blocked, "false")), "", blocked, "false"},
		{"of another controller", pod(""), "", created, "true"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			j := &journal{}
			b := newBench(t, seed(j), test.pod)
			for range 2 { // The second pass finds nothing left to do.
				if _, err := b.reconcile(); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			if test.call != "" {
				want = []string{test.call + " nginx-aaaaa"}
			}
			if !slices.Equal(j.calls, want) {
				t.Errorf("calls %v, want %v", j.calls, want)
			}
			if have := b.live().Labels[test.key]; have != test.value {
				t.Errorf("label %s is %q, want %q", test.key, have, test.value)
			}
		})
	}
}

// TestFinalizersAndGuard: whoever deletes the Pod, the Handler is called.
func TestFinalizersAndGuard(t *testing.T) {
	const hold = "example.com/unregister"
	guarded := func(j *journal) *Operator { return seed(j).Guard(guard) }
	held := func(j *journal) *Operator { return New("traffic").OnPreDelete(Finalizer(hold), j.note("deregister")) }
	tests := []struct {
		name     string
		operator func(*journal) *Operator
		pod      *corev1.Pod
		calls    int
		want     []string
		gone     bool
	}{
		{"a finalizer holds at the gate", held, pod(appsv1alpha1.StatePreparingDelete, finalizer(hold), finalizer("other/one")), 1, []string{"other/one"}, false},
		{"deleted by somebody", held, pod(appsv1alpha1.StateNormal, finalizer(hold), deleted), 1, nil, true},
		{"deleted, nothing of ours", held, pod(appsv1alpha1.StateNormal, finalizer("other/one"), deleted), 0, []string{"other/one"}, false},
		{"guarded before it is registered", guarded, pod(appsv1alpha1.StateNormal), 1, []string{guard}, false},
		{"guarded and deleted by somebody", guarded, pod(appsv1alpha1.StateNormal, finalizer(guard), finalizer("other/one"), deleted), 1, []string{"other/one"}, false},
		{"guarded, at the gate", guarded, pod(appsv1alpha1.StatePreparingDelete, finalizer(guard)), 1, []string{guard}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			j := &journal{}
			b := newBench(t, test.operator(j), test.pod)
			if _, err := b.reconcile(); err != nil {
				t.Fatal(err)
			}
			live := b.live()
			if (live == nil) != test.gone {
				t.Fatalf("the Pod is gone: %t, want %t", live == nil, test.gone)
			}
			if live != nil && !slices.Equal(live.Finalizers, test.want) {
				t.Errorf("finalizers %v, want %v", live.Finalizers, test.want)
			}
			if len(j.calls) != test.calls {
				t.Errorf("calls %v, want %d", j.calls, test.calls)
			}
		})
	}
}

// TestNothingIsMadeForAPodThatCannotBeGuarded: the finalizer comes first.
func TestNothingIsMadeForAPodThatCannotBeGuarded(t *testing.T) {
	j := &journal{}
	b := newBench(t, seed(j).Guard(guard), pod(appsv1alpha1.StateNormal), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return errors.New("forbidden")
		},
	})
	if _, err := b.reconcile(); err == nil || len(j.calls) > 0 {
		t.Errorf("error %v, calls %v; want an error and no call", err, j.calls)
	}
}

// TestAPodThatChangedIsReadAgain: the release applies to the Pod that was read.
func TestAPodThatChangedIsReadAgain(t *testing.T) {
	j := &journal{}
	b := newBench(t, seed(j), pod(appsv1alpha1.StatePreparingDelete))
	b.operator.hooks[PreDelete] = hook{gate: PreDelete, key: Label(blocked), handle: func(ctx context.Context, seen *corev1.Pod) error {
		live := seen.DeepCopy()
		live.Labels[appsv1alpha1.LabelLifecycleState] = string(appsv1alpha1.StateNormal)
		j.calls = append(j.calls, "deregister "+seen.Name)
		return b.client.Update(ctx, live)
	}}
	result, err := b.reconcile()
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("result %v, error %v; want another run and no error", result, err)
	}
	if have := b.live().Labels[blocked]; have != "true" {
		t.Errorf("the hook of a Pod that is in service again was released: %s", have)
	}
}

// TestFailures: what a Pod waits for is reported, once per change, and what happens at
// the deadline is as configured.
func TestFailures(t *testing.T) {
	tests := []struct {
		name    string
		err     error
		options []Option
		after   time.Duration
		reason  string
		passes  bool
		event   string
	}{
		{"an error", errors.New("registry down"), nil, 0, ReasonFailed, false, ReasonFailed},
		{"too early", Wait(5*time.Second, "callers may still use it"), nil, 0, ReasonWaiting, false, ""},
		{"late, block", errors.New("registry down"), []Option{Deadline(deadline, Block)}, deadline, ReasonOverdue, false, ReasonOverdue},
		{"not yet late", errors.New("registry down"), []Option{Deadline(3*deadline, Proceed)}, deadline, ReasonFailed, false, ReasonFailed},
		{"late, proceed", errors.New("registry down"), []Option{Deadline(deadline, Proceed)}, deadline, ReasonPassed, true, ReasonForced},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			j := &journal{err: test.err}
			o := seed(j, test.options...)
			o.Condition = reported
			b := newBench(t, o, pod(appsv1alpha1.StatePreparingDelete))
			b.clock.SetTime(epoch.Add(test.after))
			result, err := b.reconcile()
			if early := errors.As(test.err, new(*wait)); early != (result.RequeueAfter == 5*time.Second) {
				t.Errorf("the next run is after %s", result.RequeueAfter)
			}
			if wantErr := !test.passes && test.reason != ReasonWaiting; wantErr != (err != nil) {
				t.Errorf("error: %v", err)
			}
			b.shows(test.passes, test.reason, test.err)
			b.event(test.event)
		})
	}
}

// shows checks the label and the condition.
func (b *bench) shows(passes bool, reason string, failure error) {
	b.Helper()
	live := b.live()
	if released := live.Labels[blocked] == "false"; released != passes {
		b.Errorf("released: %t, want %t", released, passes)
	}
	c := condition(live, reported)
	switch {
	case passes && c != nil:
		b.Errorf("a Pod that never waited has %+v", c)
	case passes:
	case c == nil || c.Status != corev1.ConditionFalse || c.Reason != reason:
		b.Errorf("the condition is %+v, want reason %s", c, reason)
	case !strings.Contains(c.Message, failure.Error()) || !strings.Contains(c.Message, blocked) || !strings.Contains(c.Message, "2026-03-01T11:59:00Z"):
		b.Errorf("the message lacks why, what or since when: %s", c.Message)
	}
}

// event checks the one event, or that there is none.
func (b *bench) event(reason string) {
	b.Helper()
	select {
	case event := <-b.events.Events:
		if reason == "" || !strings.Contains(event, reason) {
			b.Errorf("event %q, want %q", event, reason)
		}
	default:
		if reason != "" {
			b.Errorf("no event %s", reason)
		}
	}
}

// TestTheConditionFollows: it returns to True when the Pod has passed.
func TestTheConditionFollows(t *testing.T) {
	j := &journal{err: errors.New("registry down")}
	o := seed(j)
	o.Condition = reported
	b := newBench(t, o, pod(appsv1alpha1.StatePreparingDelete))
	if _, err := b.reconcile(); err == nil {
		t.Fatal("the failure was swallowed")
	}
	if !o.concerns(b.live()) {
		t.Error("a Pod that waits causes no run")
	}
	j.err = nil
	if _, err := b.reconcile(); err != nil {
		t.Fatal(err)
	}
	if c := condition(b.live(), reported); c == nil || c.Status != corev1.ConditionTrue || c.Reason != ReasonPassed {
		t.Errorf("the condition is %+v", c)
	}
	if o.concerns(b.live()) {
		t.Error("a Pod that has passed still causes runs")
	}
}

// TestMistakes are those of the program that builds the operator.
func TestMistakes(t *testing.T) {
	do := (&journal{}).note("x")
	tests := map[string]*Operator{
		"no name":                 New("").OnPreDelete(Label(blocked), do),
		"no gate has a Handler":   New("traffic"),
		"Handler already":         New("traffic").OnPreDelete(Label(blocked), do).OnPreDelete(Label(blocked), do),
		"Handler is nil":          New("traffic").OnPreDelete(Label(blocked), nil),
		"name part must consist":  New("traffic").OnPreDelete(Label("not a key"), do),
		"the same value":          New("traffic").OnPreDelete(LabelValue(blocked, "x", "x"), do),
		"needs OnPreDelete":       New("traffic").OnCreated(Label(created), do).Guard(guard),
		"needs a domain":          New("traffic").OnPreDelete(Label(blocked), do).Guard("traffic"),
		"template cannot set one": New("traffic").OnCreated(Finalizer(guard), do),
	}
	for want, o := range tests {
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const (
	created  = "example.com/newly-create"
	inPlace  = "example.com/unready-blocker-inplace"
	blocked  = "example.com/unready-blocker-delete"
	guard    = "example.com/traffic"
	reported = corev1.PodConditionType("example.com/hooks")
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pod carries the labels of the operator's keys, and became Ready a second ago.
func pod(state appsv1alpha1.LifecycleState) *corev1.Pod {
	return &corev1.Pod{
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

// seed returns the operator of the well-known example, with its own hook for new Pods.
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
	checktest.NoError(t, o.check())
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

// live returns the Pod as the API server has it; nil if it is gone.
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

// scenario is an operator, a Pod, and the results of passes over it.
type scenario struct {
	*bench
	journal journal
	options []Option
	build   func(*Operator) *Operator
	faults  []interceptor.Funcs
	after   time.Duration
	lines   []string
}

// operatorWords describe the operator, podWords the Pod.
var (
	operatorWords = map[string]func(s *scenario, value string){
		"guarded": func(s *scenario, _ string) { s.build = func(o *Operator) *Operator { return o.Guard(guard) } },
		"holds": func(s *scenario, name string) {
			s.build = func(*Operator) *Operator {
				return New("traffic").OnPreDelete(Finalizer(name), s.journal.note("deregister"))
			}
		},
		"reports": func(s *scenario, _ string) {
			s.build = func(o *Operator) *Operator { o.Condition = reported; return o }
		},
		"fails": func(s *scenario, why string) { s.journal.err = errors.New(why) },
		"waits": func(s *scenario, why string) { s.journal.err = Wait(5*time.Second, why) },
		"deadline": func(s *scenario, value string) {
			span, policy, _ := strings.Cut(value, " ")
			s.options = append(s.options, Deadline(scenariotest.Duration(span), AtDeadline(policy)))
		},
		"after": func(s *scenario, span string) { s.after = scenariotest.Duration(span) },
		"refused": func(s *scenario, why string) {
			s.faults = append(s.faults, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return errors.New(why)
				},
			})
		},
	}
	podWords = map[string]func(p *corev1.Pod, value string){
		"unready":   func(p *corev1.Pod, _ string) { p.Status.Conditions[0].Status = corev1.ConditionFalse },
		"label":     func(p *corev1.Pod, value string) { key, value, _ := strings.Cut(value, "="); p.Labels[key] = value },
		"finalizer": func(p *corev1.Pod, name string) { p.Finalizers = append(p.Finalizers, name) },
		"deleted": func(p *corev1.Pod, _ string) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: epoch.Add(20 * time.Second)}, new(int64(30))
		},
	}
)

// TestPasses plays the scenarios in testdata/passes.txt: which Handler is called at which gate, what
// lets the Pod continue, and what is reported while it waits.
func TestPasses(t *testing.T) {
	scenariotest.Run(t, "testdata/passes.txt", func(t *testing.T, lines []string) []string {
		s := &scenario{build: func(o *Operator) *Operator { return o }}
		for _, line := range lines {
			head, about, _ := strings.Cut(line, ": ")
			what, state, _ := strings.Cut(head, " ")
			var err error
			switch what {
			case "Operator":
				err = scenariotest.Say(operatorWords, s, about)
			case "Pod":
				p := pod(appsv1alpha1.LifecycleState(state))
				err = scenariotest.Say(podWords, p, about)
				s.bench = newBench(t, s.build(seed(&s.journal, s.options...)), p, s.faults...)
				s.clock.SetTime(epoch.Add(s.after))
			case "recovers":
				s.journal.err = nil
			default:
				s.pass()
			}
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		return s.lines
	})
}

// pass makes a pass over the Pod, and prints the result.
func (s *scenario) pass() {
	s.Helper()
	before := s.live()
	result, err := s.reconcile()
	tell := func(format string, args ...any) {
		s.lines = append(s.lines, strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
	for _, call := range s.journal.calls {
		tell("calls %s", call)
	}
	s.journal.calls = nil
	if err != nil {
		tell("error: %v", err)
	}
	if result.RequeueAfter > 0 {
		tell("again in %s", result.RequeueAfter)
	}
	for len(s.events.Events) > 0 {
		tell("event %s", <-s.events.Events)
	}
	live := s.live()
	if live == nil {
		tell("gone")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(live.Labels)) {
		if before.Labels[key] != live.Labels[key] {
			tell("%s=%s", key, live.Labels[key])
		}
	}
	if !slices.Equal(before.Finalizers, live.Finalizers) {
		tell("finalizers %v", live.Finalizers)
	}
	if c := condition(live, reported); c != nil {
		tell("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	if s.operator.concerns(live) {
		tell("more passes")
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
	checktest.Same(t, "the hook of a Pod that is in service again", "true", b.live().Labels[blocked])
}

// TestMistakes: mistakes of the program that builds the operator are errors.
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
		checktest.Says(t, "the error", o.check(), want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/registration/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quiet is how long the same event about the same object is not repeated.
const quiet = 10 * time.Minute

// Reasons and actions of events.
const (
	eventForced    = "HookReleasedAtDeadline"
	eventOverdue   = plan.ReasonDeadlineExceeded
	actionRelease  = "ReleaseHook"
	actionDrain    = "Drain"
	actionAnswer   = "AnswerHook"
	actionRegister = "Register"
	maxEventLength = 1000
)

// announcer sends events, each once in a while.
type announcer struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu   sync.Mutex
	sent map[string]time.Time
}

func newAnnouncer(recorder events.EventRecorder, clock clock.PassiveClock) *announcer {
	return &announcer{recorder: recorder, clock: clock, sent: map[string]time.Time{}}
}

func (a *announcer) warn(about client.Object, reason, action, message string) {
	key := string(about.GetUID()) + "\n" + reason + "\n" + message
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for old, at := range a.sent {
		if now.Sub(at) >= quiet {
			delete(a.sent, old)
		}
	}
	if _, again := a.sent[key]; again {
		return
	}
	a.sent[key] = now
	a.recorder.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", plan.Shorten(message, maxEventLength))
}

// forced tells that a hook was released although registries had not confirmed.
func (a *announcer) forced(pod *corev1.Pod, release plan.Release) {
	a.warn(pod, eventForced, actionRelease, fmt.Sprintf(
		"The deadline has gone by and onDeadline is Proceed: %s (%s) was released before %s confirmed. "+
			"Requests may be lost.", release.Gate, release.Key, strings.Join(release.Forced, ", ")))
}

// overdue tells that a Pod has missed a deadline and goes on waiting.
func (a *announcer) overdue(pod *corev1.Pod, w plan.Waiting) {
	a.warn(pod, eventOverdue, actionDrain, fmt.Sprintf(
		"The deadline of Registration %s has gone by and onDeadline is Block: %s", w.Registration, w))
}

// finding tells a CloneSet of a hook that one side names and the other does not.
func (a *announcer) finding(f plan.Finding) {
	a.warn(f.CloneSet, f.Reason, actionAnswer, f.Message)
}

// invalidValue tells of a value of a Pod that cannot be used.
func (a *announcer) invalidValue(m plan.InvalidValue) {
	a.warn(m.Pod, plan.ReasonInstanceInvalid, actionRegister, fmt.Sprintf("Registration %s: %s", m.Registration, m.Message))
}

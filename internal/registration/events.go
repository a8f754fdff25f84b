// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quiet is how long the same event about the same object is not repeated.
const quiet = 10 * time.Minute

// Reasons and actions of events.
const (
	eventTakenBack = "DeletionTakenBack"
	actionRelease  = "ReleaseHook"
	actionDrain    = "Drain"
	actionAnswer   = "AnswerHook"
	actionRegister = "Register"
	maxEventLength = 1000
)

// announcer sends events, and repeats none within that time.
type announcer struct {
	recorder events.EventRecorder
	sent     *cache.Expiring
}

func (a *announcer) warn(about client.Object, reason, action, message string) {
	message = plan.Shorten(message, maxEventLength)
	key := string(about.GetUID()) + "\n" + reason + "\n" + message
	if _, again := a.sent.Get(key); again {
		return
	}
	a.sent.Set(key, nil, quiet)
	a.recorder.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", message)
}

// announce sends the events of a pass whose writes are done.
func (p *pass) announce(decided plan.Plan) {
	for _, w := range decided.Waiting {
		if at, found := p.find(w.Pod); w.Overdue && found {
			p.announcer.warn(p.snapshot.Pods[at], plan.ReasonDeadlineExceeded, actionDrain, fmt.Sprintf(
				"The deadline of Registration %s has passed and onDeadline is Block: %s", w.Registration, w))
		}
	}
	for i := range decided.Outcomes {
		p.announceOutcome(&decided.Outcomes[i])
	}
}

func (p *pass) announceOutcome(o *plan.Outcome) {
	for _, w := range o.Missing {
		if slices.Contains([]plan.Reason{plan.ReasonServiceTaken, plan.ReasonServiceNotAllowed, plan.ReasonRegistryFull}, w.Reason) {
			p.announcer.warn(o.Registration, string(w.Reason), actionRegister, w.Message)
		}
	}
	if o.Released && len(o.Forced) > 0 {
		p.announcer.warn(o.Registration, plan.ReasonForced, actionRelease, fmt.Sprintf(
			"The deadline has passed and onDeadline is Proceed: the Registration goes before %s confirmed that nothing "+
				"of it is listed. Usher removes the rest when it can.", strings.Join(o.Forced, ", ")))
	}
	for _, f := range o.Findings {
		p.announcer.warn(f.CloneSet, f.Reason, actionAnswer, f.Message)
	}
	for _, v := range o.InvalidValues {
		p.announcer.warn(v.Pod, plan.ReasonInstanceInvalid, actionRegister,
			fmt.Sprintf("Registration %s: %s", o.Registration.Name, v.Message))
	}
}

// reportReleases reports the hooks that a patch has released.
func (p *pass) reportReleases(ctx context.Context, patch *plan.PodPatch) {
	logPatch(ctx, patch)
	if t := patch.TakenBack; t != nil {
		p.announcer.warn(patch.Pod, eventTakenBack, actionRegister, fmt.Sprintf(
			"%s asked to delete the Pod, and has not come back for %s: it is registered again.", t.By, t.After.Round(time.Second)))
	}
	for _, release := range patch.Released {
		p.metrics.released(release)
		if len(release.Forced) > 0 {
			p.announcer.warn(patch.Pod, plan.ReasonForced, actionRelease, fmt.Sprintf(
				"The deadline has passed and onDeadline is Proceed: %s (%s) was released before %s confirmed. "+
					"Requests may be lost.", release.Gate, release.Key, strings.Join(release.Forced, ", ")))
		}
	}
}

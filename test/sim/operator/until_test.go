// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// untilTimeout is how long Registrations let Pods stay busy, untilFor how long Pods have to be idle. A request
	// follows another one sooner than that.
	untilTimeout = 10 * time.Second
	untilFor     = 2 * time.Second
)

// untilIdle has Pods asked until nothing is under way there; nil if they are not.
func (f features) untilIdle() *usher.Until {
	if !f.until {
		return nil
	}
	return &usher.Until{
		Timeout: &metav1.Duration{Duration: untilTimeout}, For: &metav1.Duration{Duration: untilFor},
		HTTP: &usher.UntilHTTP{Port: intstr.FromInt32(8080), Path: "/"},
	}
}

// work is what is really under way in a Pod.
type work struct {
	underWay int64
	// idleSince is when that ended.
	idleSince time.Time
	// endless requests end only when all is well.
	endless bool
	// says is how the Pod answers: as it is, not at all, or that it is busy.
	says string
	// habit is how busy the Pod is while it serves. same is since when it is that, and the operator can know; passes are
	// those that have seen it.
	habit  string
	same   time.Time
	passes int
}

// How Pods answer.
const truly, never, busily = "truly", "never", "busily"

// serve lets requests begin, end and follow each other in all Pods, and has those asked that are to be asked.
func (s *simulation) serve() {
	if !s.features.until {
		return
	}
	for _, pod := range s.pods() {
		w := s.work[pod.UID]
		if w == nil {
			w = &work{says: truly, endless: s.fates.IntN(4) == 0, idleSince: s.clock.Now(), habit: s.drawHabit()}
			s.work[pod.UID] = w
		}
		if s.fates.IntN(30) == 0 && !s.calm {
			w.says = []string{truly, never, busily}[s.fates.IntN(3)]
		}
		s.goesOn(pod, w)
		s.noteSettled(pod, w, s.clock.Now().Sub(s.lastSeen[pod.UID]) < propagation)
	}
	s.asker.ask()
}

// goesOn lets some of the requests in a Pod end, and others begin: callers begin some, and a request follows another one
// soon.
func (s *simulation) goesOn(pod *corev1.Pod, w *work) {
	before := w.underWay
	called := s.clock.Now().Sub(s.lastSeen[pod.UID]) < propagation
	switch {
	case plan.StateOf(pod) == apps.StateUpdating: // its containers are replaced
		w.underWay = 0
	case w.followsHabit(called):
	case called && s.fates.IntN(3) == 0:
		w.underWay = min(w.underWay+1, 4)
	case w.underWay > 0:
		s.ends(w)
	case s.clock.Now().Sub(w.idleSince) < untilFor-time.Second && !s.calm && s.fates.IntN(4) == 0:
		s.log("%s: is busy again", pod.Name)
		w.underWay = 1
	}
	if before > 0 && w.underWay == 0 {
		s.log("%s: is idle", pod.Name)
		w.idleSince = s.clock.Now()
	}
}

// ends lets a request end now and then.
func (s *simulation) ends(w *work) {
	if !w.endless && s.fates.IntN(2) == 0 {
		w.underWay--
	}
}

// endWork has all requests end in time, and all Pods answer as it is, from now on.
func (s *simulation) endWork() {
	s.calm = true
	for _, w := range s.work {
		w.endless, w.says = false, truly
	}
}

// asker asks the Pods of a process, at every moment.
type asker struct {
	*simulation
	clock   clock.PassiveClock
	wanted  map[string][]plan.Ask
	answers map[plan.AskKey]plan.Answer
}

func newAsker(s *simulation, clock clock.PassiveClock) *asker {
	return &asker{s, clock, map[string][]plan.Ask{}, map[plan.AskKey]plan.Answer{}}
}

// Want implements registration.Asker.
func (a *asker) Want(namespace string, asks []plan.Ask) {
	for _, before := range a.wanted[namespace] {
		if !slices.ContainsFunc(asks, func(ask plan.Ask) bool { return ask.AskKey == before.AskKey }) {
			delete(a.answers, before.AskKey)
		}
	}
	a.wanted[namespace] = asks
}

// Answers implements registration.Asker.
func (a *asker) Answers(namespace string) map[plan.AskKey]plan.Answer {
	answers := map[plan.AskKey]plan.Answer{}
	for _, ask := range a.wanted[namespace] {
		if answer, asked := a.answers[ask.AskKey]; asked {
			if a.defects.believes != nil {
				a.defects.believes(&answer)
			}
			answers[ask.AskKey] = answer
		}
	}
	return answers
}

func (a *asker) ask() {
	for _, ask := range a.wanted[namespace] {
		a.answers[ask.AskKey] = a.answered(a.work[ask.Pod], a.answers[ask.AskKey])
	}
}

// answered is what a Pod answers now, which has answered before.
func (a *asker) answered(w *work, before plan.Answer) plan.Answer {
	next := plan.Answer{At: a.clock.Now()}
	switch {
	case w == nil, w.says == never:
		next.Problem = "it does not answer"
	case w.says == busily:
		next.UnderWay = new(max(w.underWay, 1))
	default:
		next.UnderWay = new(w.underWay)
		if w.underWay == 0 {
			next.IdleSince = cmp.Or(before.IdleSince, next.At)
		}
	}
	return next
}

// judgeBusy checks that the operator lets no Pod go in which requests are under way, before the timeout.
func (s *simulation) judgeBusy(what string, pod *corev1.Pod, proceeds bool) {
	w := s.work[pod.UID]
	if w == nil || !s.isAsked(pod) {
		return
	}
	// A registry that was given up at its deadline: its callers begin requests at any time.
	givenUp := proceeds && s.clock.Now().Sub(s.lastSeen[pod.UID]) < propagation
	s.waited++
	rest := s.clock.Now().Sub(w.idleSince)
	if givenUp || w.underWay == 0 && rest >= untilFor {
		return
	}
	if proceeds && s.isLate(pod) {
		s.tooLong++
		return
	}
	if w.underWay == 0 {
		s.fail("%s %s after its last request, and others follow", what, rest)
		return
	}
	s.fail("%s while %d requests are under way there", what, w.underWay)
}

// isLate reports whether a busy Pod has been asked for as long as the operator waits.
func (s *simulation) isLate(pod *corev1.Pod) bool {
	slack := time.Duration(0)
	if s.features.clocks {
		slack = 2 * maxSkew
	}
	enough := untilTimeout - slack
	late := s.clock.Now().Sub(s.lastSeen[pod.UID]) >= propagation+enough
	if record := plan.ReadRecord(pod); record != nil {
		late = late || s.clock.Now().Sub(record.Began) >= min(deadline, drainDeadline)+enough
	}
	return late
}

// judgeHookBusy is judgeBusy for a hook that is released.
func (s *simulation) judgeHookBusy(key string, stays bool, pod *corev1.Pod) {
	proceeds := s.features.proceed
	if key == keyDelete {
		proceeds = s.mayEnd(pod)
	}
	if !stays {
		s.judgeBusy(key+" of "+pod.Name+" was released", pod, proceeds)
	}
}

// isAsked reports whether a Registration is there on whose behalf the Pod is asked, in the caches too.
func (s *simulation) isAsked(pod *corev1.Pod) bool {
	names, _ := plan.Names(pod)
	return slices.ContainsFunc([]string{"nginx", edge}, func(name string) bool {
		return s.process.exists(name) && (s.matches(name, pod) || slices.Contains(names, name))
	})
}

// mayEnd reports whether a busy Pod that nobody updates may go at the timeout: onDeadline is Proceed, or nobody
// waits, or the Registration that has it asked does not select it any more: it lets a Pod go that it has
// deselected.
func (s *simulation) mayEnd(pod *corev1.Pod) bool {
	names, _ := plan.Names(pod)
	deselected := slices.ContainsFunc(names, func(name string) bool { return !s.matches(name, pod) })
	return !s.features.blocks || s.features.proceed && s.features.guard || deselected || pod.Annotations[usher.AnnotationDeletionRequest] == ""
}

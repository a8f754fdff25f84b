// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
)

const (
	// actorTerminator deletes Pods of a node that goes at a certain time, each time with what is left of it.
	actorTerminator = "system:serviceaccount:karpenter:karpenter"
	// ownGrace is the grace period of Pods in runs where somebody gives them less, in seconds.
	ownGrace = 120
	// holdShare is the part of a deadline that the guard may take, and minRetry how soon a client may be asked to come
	// again: a Pod may go that much earlier.
	holdShare = 6
	minRetry  = time.Second
)

// hurry has somebody delete a Pod by a certain time.
func (s *simulation) hurry(pod *corev1.Pod) {
	left := time.Duration(pick(s, 6, 12, 30, 60)) * time.Second
	if s.asks(actorTerminator, pod) {
		return
	}
	at := s.clock.Now().Add(left)
	s.log("%s: is to have ended in %s", pod.Name, left)
	s.callers = append(s.callers, &caller{who: actorTerminator, pod: pod, retries: maxRetries, next: s.clock.Now(), gives: at})
}

// grace is the grace period that a caller asks for; nil leaves it to the Pod.
func (s *simulation) grace(c *caller) *int64 {
	if c.who != actorTerminator {
		return nil
	}
	return ptr.To(max(int64(c.gives.Sub(s.clock.Now())/time.Second), 1))
}

// noteDeadline notes until when the guard may hold a Pod that somebody deletes with this grace period.
func (s *simulation) noteDeadline(pod *corev1.Pod, grace *int64) {
	if grace == nil || *grace >= ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30) {
		return
	}
	letGo := s.clock.Now().Add(time.Duration(*grace) * time.Second / holdShare)
	if known, ever := s.letGo[pod.UID]; !ever || letGo.Before(known) {
		s.letGo[pod.UID] = letGo
	}
}

// judgeHold checks that the guard refuses no deletion with a deadline when it may not hold the Pod any more.
func (s *simulation) judgeHold(c *caller, err error) {
	if c.who != actorTerminator || err == nil || s.guardian.webhook != there {
		return
	}
	if over := s.clock.Now().Sub(s.letGo[c.pod.UID]); over > clockSkew {
		s.fail("%s is held for %s longer than its shortest deadline allows: %v", c.pod.Name, over, err)
	}
}

// hurried is why a Pod may go although callers use it: its time for that is nearly over, by the clock of one of the
// guard's replicas. It is empty if the Pod may not.
func (s *simulation) hurried(pod *corev1.Pod) string {
	if letGo, yes := s.letGo[pod.UID]; !yes || s.clock.Now().Add(minRetry+clockSkew).Before(letGo) {
		return ""
	}
	return "its deadline is near"
}

// hasDeadline reports whether somebody gives a Pod less time than its own grace period, which is not over, by the
// clock of any process: then its owner cannot have it back.
func (s *simulation) hasDeadline(request *usher.DeletionRequest) bool {
	return request.Deadline != nil && s.clock.Now().Before(request.Deadline.Add(clockSkew+2*maxSkew))
}

// deleteOptions are those of a caller's deletion.
func (s *simulation) deleteOptions(c *caller) []client.DeleteOption {
	options := []client.DeleteOption{client.Preconditions{UID: &c.pod.UID}}
	if grace := s.grace(c); grace != nil {
		options = append(options, client.GracePeriodSeconds(*grace))
	}
	return options
}

// rewritesRequest makes a guard that writes requests differently.
func rewritesRequest(change func(*usher.DeletionRequest)) func(*premise, string) {
	return ofAnnotations(func(annotations map[string]any) {
		text, _ := annotations[usher.AnnotationDeletionRequest].(string)
		if text == "" {
			return
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{usher.AnnotationDeletionRequest: text}}}
		request, err := usher.DeletionRequestOf(pod)
		if err != nil {
			panic(err) // the guard has written it
		}
		change(request)
		annotations[usher.AnnotationDeletionRequest] = string(encode.JSON(request))
	})
}

// hasDeadline reports whether the guard knows that somebody gives the Pod less time than its own grace period.
func hasDeadline(pod *corev1.Pod) bool {
	return strings.Contains(pod.Annotations[usher.AnnotationDeletionRequest], `"letGo"`)
}

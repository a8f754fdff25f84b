// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/traffic"
)

// playing is the state of a story on the display.
const playing progress.State = "playing"

// playAll plays stories: first the concurrent ones, some at a time, then each of the
// others alone. The outcomes are in the order of the stories.
func (s *session) playAll(ctx context.Context, stories []Story, parallel int, tell progress.Sink) []Outcome {
	outcomes := make([]Outcome, len(stories))
	for _, story := range stories {
		tell.Tell(progress.Event{Task: story.Name, State: progress.Waiting})
	}
	var sharing, alone sync.WaitGroup
	places, shared := make(chan struct{}, parallel), make(chan struct{})
	turn := shared
	for _, i := range entryOrder(stories) {
		places <- struct{}{}
		in, group := entrance{free: sync.OnceFunc(func() { <-places })}, &sharing
		if stories[i].Alone {
			in.turn, in.next, group = turn, make(chan struct{}), &alone
			turn = in.next
		}
		group.Go(func() {
			defer in.leave()
			outcomes[i] = s.play(ctx, stories[i], in, tell)
		})
	}
	sharing.Wait()
	close(shared)
	alone.Wait()
	return outcomes
}

func (s *session) play(ctx context.Context, story Story, in entrance, tell progress.Sink) Outcome {
	began := time.Now()
	scene := &Scene{ctx: ctx, session: s, story: story, in: in, tell: func(step string) {
		tell.Tell(progress.Event{Task: story.Name, State: playing, Detail: step})
	}}
	if cause := context.Cause(ctx); cause != nil {
		return outcomeOf(story, traffic.Report{}, 0, cause)
	}
	failure := scene.perform()
	var report traffic.Report
	if scene.client != nil {
		report = scene.client.Report()
	}
	o := outcomeOf(story, report, time.Since(began)-scene.waited, failure)
	if failure != nil {
		o.Failure += "\n" + scene.describe(ctx)
		in.await()
		if err := s.restore(ctx, story); err != nil {
			o.Failure += "\n" + err.Error()
		}
	}
	s.leaving.Go(func() { s.leave(ctx, story.Name) })
	event := progress.Event{Task: story.Name, State: progress.Done, Detail: o.line()}
	if o.Failure != "" {
		event.State = progress.Failed
		event.Detail = "FAILED: " + firstLine(o.Failure)
	}
	tell.Tell(event)
	return o
}

// describe shows the state when a story failed.
func (s *Scene) describe(ctx context.Context) string {
	now, err := s.session.world.state(context.WithoutCancel(ctx), s.Namespace())
	if err != nil {
		return err.Error()
	}
	lines := []string{}
	if now.Set != nil {
		st := now.Set.Status
		lines = append(lines, fmt.Sprintf("the set: %d Pods, %d available, %d updated of %d expected", st.Replicas, st.AvailableReplicas, st.UpdatedReplicas, st.ExpectedUpdatedReplicas))
		for _, c := range st.Conditions {
			lines = append(lines, fmt.Sprintf("  %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	if now.Registration != nil {
		st := now.Registration.Status
		lines = append(lines, fmt.Sprintf("the Registration: %d Pods, %d registered, %d drain", st.Pods, st.Registered, st.Draining))
		for _, c := range st.Conditions {
			lines = append(lines, fmt.Sprintf("  %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	for _, pod := range now.Pods {
		lines = append(lines, describePod(&pod))
	}
	return strings.Join(lines, "\n")
}

func describePod(pod *corev1.Pod) string {
	text := fmt.Sprintf("%s: %s, ready %t, deleted %t, finalizers %v, labels %v", pod.Name, pod.Status.Phase, PodReady(pod),
		pod.DeletionTimestamp != nil, pod.Finalizers, pod.Labels)
	for _, c := range pod.Status.ContainerStatuses {
		text += fmt.Sprintf("\n  %s %s: ", c.Name, c.Image)
		switch {
		case c.State.Running != nil:
			text += "runs"
		case c.State.Waiting != nil:
			text += "waits, " + c.State.Waiting.Reason
		case c.State.Terminated != nil:
			text += "ended, " + c.State.Terminated.Reason
		}
	}
	return text
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

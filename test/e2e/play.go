// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	// parallel is how many stories play at once, except those that play alone.
	parallel = 6
	// restoreTime bounds a restore.
	restoreTime = time.Minute
)

// playMeasured plays the stories and measures Usher meanwhile and, if all stories are
// played, before.
func (s *session) playMeasured(ctx context.Context, o Options) ([]outcome, error) {
	if err := s.measureImage(); err != nil {
		return nil, err
	}
	if o.Run == nil {
		if err := s.measureIdle(ctx); err != nil {
			return nil, err
		}
	}
	used, err := newUsage()
	if err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	go used.follow(following)
	outcomes := s.playAll(ctx, progress.Show(o.Out))
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	rows, err := used.rows("loaded", "the stories")
	s.footprint = append(s.footprint, rows...)
	return outcomes, err
}

// playAll plays the stories, round by round. A story that is played several times has one outcome.
func (s *session) playAll(ctx context.Context, sink progress.Sink) []outcome {
	outcomes := make([]outcome, len(s.stories))
	for round := range rounds(s.stories) {
		s.playRound(ctx, sink, round, outcomes)
	}
	return together(outcomes)
}

// rounds returns the number of rounds.
func rounds(stories []Story) (n int) {
	for _, story := range stories {
		n = max(n, story.round+1)
	}
	return n
}

// playRound plays the stories of a round: first the concurrent ones, the longest first, and then each of the
// others alone. The outcomes are in the order of the stories.
func (s *session) playRound(ctx context.Context, sink progress.Sink, round int, outcomes []outcome) {
	order := []int{}
	for i := range s.stories {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(s.stories[b].Takes.Duration - s.stories[a].Takes.Duration) })
	var sharing errgroup.Group
	sharing.SetLimit(parallel)
	for _, alone := range []bool{false, true} {
		for _, i := range order {
			if s.stories[i].Alone != alone || s.stories[i].round != round {
				continue
			}
			sharing.Go(func() error {
				if s.stories[i].uses(OwnEtcd) {
					s.ownEtcd.Lock()
					defer s.ownEtcd.Unlock()
				}
				outcomes[i] = s.play(ctx, s.stories[i], sink)
				return nil
			})
			if alone {
				_ = sharing.Wait() // They report no errors.
			}
		}
		_ = sharing.Wait()
	}
}

func (s *session) play(ctx context.Context, story Story, sink progress.Sink) outcome {
	if cause := context.Cause(ctx); cause != nil {
		return outcomeOf(story, traffic.Report{}, 0, cause)
	}
	began := time.Now()
	scene := &Scene{ctx: ctx, session: s, story: story}
	failure := scene.perform()
	report := scene.report
	for _, other := range scene.others {
		report = report.Add(other.report)
	}
	o := outcomeOf(story, report, time.Since(began), failure)
	o.notes = scene.notes
	if failure != nil {
		now, err := s.state(context.WithoutCancel(ctx), story.Name)
		o.failure += fmt.Sprintf("\n%s", now)
		if err := errors.Join(err, s.restore(ctx, story)); err != nil {
			o.failure += "\n" + err.Error()
		}
	}
	for _, one := range scene.all() {
		s.leaving.Go(func() { s.leave(ctx, one) })
	}
	sink.Line("%s: %s, %s", story.Name, o.line(), stage.Seconds(o.took))
	return o
}

// restore restarts the parts that a failed story has stopped, so that the next stories do not fail
// because of it.
func (s *session) restore(ctx context.Context, story Story) error {
	if !story.Alone {
		return nil // It stopped nothing.
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	return errors.Join(s.Cluster.StartAPIServer(ctx), s.node.StartKubelet(ctx), s.scaleUsher(ctx, usherReplicas), s.freeLease(ctx))
}

// leave deletes a namespace while the next stories play: first its workload, because a namespace that
// is deleted with Pods in it is checked again only after half of their grace period. A namespace that
// remains at the end fails the run.
func (s *session) leave(ctx context.Context, scene *Scene) {
	name := scene.story.Name
	if scene.object != nil {
		_ = s.Kube.Delete(ctx, scene.object.DeepCopy())
	}
	_ = stage.Poll(ctx, patience, "the Pods of "+name+" to be gone", func(ctx context.Context) (bool, error) {
		now, err := s.state(ctx, name)
		return now.Set == nil && len(now.Pods) == 0, err
	})
	_ = s.Kube.Delete(context.WithoutCancel(ctx), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// awaitEmpty waits until all namespaces of stories are gone: nothing may be stuck on a
// finalizer.
func (s *session) awaitEmpty(ctx context.Context) error {
	s.leaving.Wait()
	for _, story := range s.services() {
		err := stage.Poll(ctx, patience, "the end of namespace "+story.Name+" after its story", func(ctx context.Context) (bool, error) {
			err := s.Kube.Get(ctx, client.ObjectKey{Name: story.Name}, &corev1.Namespace{})
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

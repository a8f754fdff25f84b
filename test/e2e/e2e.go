// SPDX-License-Identifier: Apache-2.0

// Package e2e plays stories on a real node: Usher is installed as users install it,
// containers are real, requests come from callers that find Pods through a registry,
// and lost requests are counted.
//
// The program runs twice: outside, prepare.go gets everything that needs a network and a compiler;
// inside a sandbox, session.go starts the node, and play.go plays the stories. The stories are in
// stories.yaml, the actions of their steps in script.go and act.go, their checks in facts.go and
// state.go. Each story has a Scene (scene.go); report.go shows its outcome.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/sandbox"
	"github.com/usher-dev/usher/test/stage"
)

// Registry is a kind of registry that callers find Pods through.
type Registry string

// The registries. Each is also the name of the Registry object.
const (
	Etcd Registry = "etcd"
	// OwnEtcd is a separate etcd, for one story at a time, which may stop it.
	OwnEtcd Registry = "own-etcd"
	Consul  Registry = "consul"
	HAProxy Registry = "haproxy"
	// Service is a plain Kubernetes Service. Usher makes the Registry.
	Service Registry = "service"
	// LabelledService is one that Pods leave by a label.
	LabelledService Registry = "labelled-service"
	// KubeProxy is a Service too; its callers use its address.
	KubeProxy Registry = "kube-proxy"
)

// Story is a sequence of events of a workload, usually a CloneSet, while requests flow.
type Story struct {
	// Name is short, unique, and a valid namespace name.
	Name string
	// About describes in one line what happens.
	About string
	// Registries are the registries that callers read, each with callers of its own; default Etcd.
	Registries []Registry
	// Unguarded keeps the guard away from the story's Pods.
	Unguarded bool
	// SecondNode adds a second node for Pods that tolerate its taint.
	SecondNode bool
	// Ends means that the service itself ends: HAProxy then answers for it.
	Ends bool
	// Pauses means that at times no Pod serves, on purpose: callers that know no Pod send nothing then.
	Pauses bool
	// Alone excludes other stories while it plays, because it disturbs shared parts.
	Alone bool
	// Takes is roughly how long it plays, for long stories: the longest start first, so
	// that none runs alone at the end for long.
	Takes metav1.Duration
	// ByName means that it is played only if Options.Run or Report asks for it: it shows at length what other stories
	// spare their callers.
	ByName bool
	// MayLose means that Pods end without a drain, so that lost requests are measured. Otherwise a lost
	// request is a failure.
	MayLose bool
	// Propagation is the drain time of its Registration; default 2 s, negative for
	// none at all.
	Propagation metav1.Duration
	// Play are its steps, one on a line. Requests flow until the last one is done.
	Play  string
	steps []step
	// base is its name in stories.yaml, and round counts from 0: a story that is played several times
	// has another name in each round.
	base  string
	round int
}

// again returns the story for another round.
func (s Story) again(round int) Story {
	s.base, s.round = s.Name, round
	if round > 0 {
		s.Name = fmt.Sprintf("%s-%d", s.Name, round+1)
	}
	return s
}

// another returns the story of one more workload, of a kind, in a namespace of its own.
func (s Story) another(kind string) Story {
	s.Name += "-" + strings.ToLower(kind)
	return s
}

// uses reports whether callers read any of the registries.
func (s Story) uses(kinds ...Registry) bool {
	return slices.ContainsFunc(s.Registries, func(kind Registry) bool { return slices.Contains(kinds, kind) })
}

// registries lists the names of the story's registries.
func (s Story) registries() string {
	return strings.Join(list.Map(s.Registries, func(kind Registry) string { return string(kind) }), ", ")
}

// Options configures a run.
type Options struct {
	// Stories are the available stories, in the order of the report.
	Stories []Story
	// Run selects stories by name; default all but those with ByName.
	Run *regexp.Regexp
	// Rate is the number of requests per second in each story; default 100.
	Rate int
	// Times is how often each story is played, one round after another; default 1.
	Times int
	// Shell opens a shell on the node instead of playing stories.
	Shell bool
	// Report writes the tables of all stories into the documents.
	Report bool
	// Args are the arguments that give these options, for the program inside.
	Args []string
	// Out receives all output.
	Out *os.File
}

func (o Options) check() error {
	switch {
	case o.Report && (o.Run != nil || o.Shell):
		return fmt.Errorf("%w: -report writes the tables of all stories: leave -run and -shell out", stage.ErrUsage)
	case o.Rate < 0 || o.Rate > maxRate:
		return fmt.Errorf("%w: -rate=%d: give a number of requests a second from 1 to %d", stage.ErrUsage, o.Rate, maxRate)
	case o.Times < 0:
		return fmt.Errorf("%w: -times=%d: give 1 or more", stage.ErrUsage, o.Times)
	case o.Report && o.Rate+o.Times != 0:
		return fmt.Errorf("%w: -report writes what one round at the usual rate shows: leave -rate and -times out", stage.ErrUsage)
	case len(o.chosen()) == 0:
		return fmt.Errorf("%w: -run=%s: no story has such a name; -list lists them", stage.ErrUsage, o.Run)
	}
	return nil
}

const defaultPropagation = 2 * time.Second

// chosen returns the stories to play, with their defaults.
func (o Options) chosen() (chosen []Story) {
	for _, story := range o.Stories {
		if !o.plays(story) {
			continue
		}
		if story.Registries == nil {
			story.Registries = []Registry{Etcd}
		}
		if story.Propagation.Duration == 0 {
			story.Propagation.Duration = defaultPropagation
		}
		for round := range max(o.Times, 1) {
			chosen = append(chosen, story.again(round))
		}
	}
	return chosen
}

// plays reports whether the options choose a story.
func (o Options) plays(story Story) bool {
	if o.Run == nil {
		return o.Report || !story.ByName
	}
	return o.Run.MatchString(story.Name)
}

// Run starts the node, plays the stories and removes everything. place is what
// sandbox.Enter returned: the same program runs outside first, and then inside. When it
// returns outside, only the logs of a failed run are left; its error is
// sandbox.ErrFailed if the failure has already been reported.
func Run(ctx context.Context, place *sandbox.Place, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	if place != nil {
		return inside(ctx, place, o)
	}
	used, err := stage.NewUsage()
	if err != nil {
		return err
	}
	return sandbox.Session{
		Prefix: "usher-e2e-", Args: o.Args, Out: o.Out,
		Prepare: func(ctx context.Context, dir string) error {
			return prepare(ctx, o, dir, progress.Show(o.Out))
		},
		Logs: []string{"logs", "node/logs", "node/cluster/logs", "etcd/etcd.log", "own-etcd/etcd.log", "varlog/pods"},
		Done: func(dir string) error {
			load, err := used.Text()
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(o.Out, load)
			if !o.Report {
				return nil
			}
			return writeReports(dir, load)
		},
	}.Run(ctx)
}

// inside runs in the sandbox: it starts the node and plays the stories.
func inside(ctx context.Context, place *sandbox.Place, o Options) error {
	s := &session{place: place, stories: o.chosen(), rate: cmp.Or(o.Rate, defaultRate), etcds: map[Registry]*cluster.Etcd{}}
	began := time.Now()
	return stage.Run{
		Dir: place.Dir, Out: o.Out,
		Setup: []stage.Step{s.startNode, s.startRegistries, s.installUsher, s.addRegistries},
		Play: func(ctx context.Context, _ *stage.Stage) error {
			_, _ = fmt.Fprintf(o.Out, "The node and Usher are up after %s.\n\n", stage.Seconds(time.Since(began)))
			if o.Shell {
				return s.shell(ctx, o)
			}
			return s.playAndReport(ctx, o)
		},
	}.Run(ctx)
}

// playAndReport plays the stories and shows their outcomes.
func (s *session) playAndReport(ctx context.Context, o Options) error {
	outcomes, err := s.playMeasured(ctx, o)
	if err != nil {
		return err
	}
	played, footprint := storyTable(outcomes), stage.Table{
		Columns: []stage.Column{{Title: "What"}, {Title: "Found", Right: true}, {Title: "How"}}, Rows: s.footprint,
	}
	if err := stage.Save(reports{played.Markdown(), footprint.Markdown()}, s.Dir, reportsFile); err != nil {
		return err
	}
	style := stage.StyleOf(o.Out)
	// Failures come last: the end of a log is read first, and kept longest.
	lines := slices.Concat([]string{""}, played.Lines(style), []string{""}, footprint.Lines(style), failures(outcomes, style), []string{""})
	_, _ = fmt.Fprintln(o.Out, strings.Join(lines, "\n"))
	if failed := list.Only(outcomes, func(o outcome) bool { return o.failure != "" }); len(failed) > 0 {
		names := list.Map(failed, func(o outcome) string { return o.Name })
		return fmt.Errorf("%d of %d stories failed: %s", len(failed), len(outcomes), strings.Join(names, ", "))
	}
	return s.awaitEmpty(ctx)
}

// shell lets a person explore.
func (s *session) shell(ctx context.Context, o Options) error {
	_, _ = fmt.Fprintf(o.Out, "A shell on the node; KUBECONFIG is set. Its end takes everything down.\n\n")
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("SHELL"), "/bin/sh"))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Cluster.Kubeconfig())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run a shell: %w", err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
)

// Options configures a run.
type Options struct {
	// Stories are the available stories, in the order of the report.
	Stories []Story
	// Run selects stories by name; default all.
	Run *regexp.Regexp
	// Parallel is how many stories run concurrently, except those that play alone;
	// default 6.
	Parallel int
	// Rate is the number of requests per second in each story; default 100.
	Rate int
	// Shell opens a shell on the node instead of playing stories.
	Shell bool
	// Report writes the table of all stories into docs/reliability.md.
	Report bool
	// Args are the arguments that give these options, for the program inside.
	Args []string
	// Out receives all output; default os.Stdout.
	Out *os.File
	// Getenv reads the environment; default os.Getenv.
	Getenv func(string) string
}

const (
	defaultParallel = 6
	defaultRate     = 100
)

func (o Options) withDefaults() (Options, error) {
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Parallel == 0 {
		o.Parallel = defaultParallel
	}
	if o.Rate == 0 {
		o.Rate = defaultRate
	}
	return o, o.check()
}

func (o Options) check() error {
	switch {
	case o.Parallel < 0:
		return fmt.Errorf("-parallel=%d: give at least 1", o.Parallel)
	case o.Rate < 0:
		return fmt.Errorf("-rate=%d: give at least 1 request per second", o.Rate)
	case o.Report && o.Run != nil:
		return errors.New("-report writes the table of all stories: leave -run out")
	case o.Report && o.Shell:
		return errors.New("-shell plays no stories: leave -report out")
	case len(o.chosen()) == 0:
		return fmt.Errorf("-run=%s: no story has such a name; -list lists them", o.Run)
	}
	return nil
}

// chosen are the stories to play.
func (o Options) chosen() []Story {
	var list []Story
	for _, story := range o.Stories {
		if o.Run == nil || o.Run.MatchString(story.Name) {
			list = append(list, story.withDefaults())
		}
	}
	return list
}

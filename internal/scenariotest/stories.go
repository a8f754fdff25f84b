// SPDX-License-Identifier: Apache-2.0

package scenariotest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Story is the state that the steps of a story act on.
type Story interface {
	// Expand replaces names in a step, Contract does the opposite in the output of a step.
	Expand(text string) string
	Contract(text string) string
	// Printed returns the lines that were printed since the last call.
	Printed() []string
}

// Stories are scenarios that are played step by step, up to the first step that fails. A step begins
// with the longest word that fits. Deeper lines belong to it, and below it stands its output:
//
//	usher why clone/web
//	  -o wide
//	= waits for nothing
//
// "..." in such a line stands for any text, and alone for any lines; {name} stands for the object with
// that name.
type Stories[S Story] struct {
	// Files is a pattern of the files' names.
	Files string
	Words []Word[S]
	Begin func(t *testing.T) S
	// Alone fits the steps that touch what all stories share: a story with such a step has it for itself, and the
	// others run in parallel. With nil, a story runs in parallel only if Begin says so.
	Alone *regexp.Regexp
	// Several allows several steps in a line, as in "populate 3; passes 2; lists". Only the last one may print.
	Several bool
}

// Step is a step of a story, or several in a line.
type Step struct {
	// Text is the step with its deeper lines.
	Text string
	// first and last are the numbers of its lines; want is the expected output.
	first, last int
	want        []line
}

// Play plays the stories, each as a test.
func (all Stories[S]) Play(t *testing.T) {
	t.Helper()
	if twice := Twice(namesOf(all.Words)); len(twice) > 0 {
		t.Fatalf("words with two meanings: %q", twice)
	}
	rewriting := newRewriting(t)
	each(t, all.Files, func(t *testing.T, s Scenario) {
		t.Helper()
		if all.parallel(s) {
			t.Parallel()
		}
		player := &player[S]{T: t, stories: all, scenario: s, story: all.Begin(t), rewriting: rewriting}
		for _, step := range s.Steps() {
			if t.Failed() {
				break
			}
			player.play(step)
		}
	})
}

// parallel reports whether a scenario touches nothing that others share.
func (all Stories[S]) parallel(s Scenario) bool {
	alone := func(step Step) bool { return all.Alone.MatchString(step.Text) }
	return all.Alone != nil && !slices.ContainsFunc(s.Steps(), alone)
}

// Steps returns the steps of a scenario.
func (s Scenario) Steps() (steps []Step) {
	for _, l := range s.lines {
		_, wanted := l.wanted()
		switch last := len(steps) - 1; {
		case wanted && last >= 0:
			steps[last].want = append(steps[last].want, l)
		case strings.HasPrefix(l.text, " ") && last >= 0:
			steps[last].Text += "\n" + l.text
			steps[last].last = l.number
		default:
			steps = append(steps, Step{Text: l.text, first: l.number, last: l.number})
		}
	}
	return steps
}

// Parts returns the steps of a line that may have several.
func (s Step) Parts(several bool) []string {
	if several {
		return strings.Split(s.Text, "; ")
	}
	return []string{s.Text}
}

// Place returns the place of a step in a file.
func (s Step) Place(file string) string { return file + ":" + strconv.Itoa(s.first) }

// player plays one story.
type player[S Story] struct {
	*testing.T
	stories   Stories[S]
	scenario  Scenario
	story     S
	rewriting *rewriting
	// done are the steps before, with their places.
	done []string
}

// play takes the steps of a line, and compares the output of the last one.
func (t *player[S]) play(step Step) {
	t.Helper()
	parts := step.Parts(t.stories.Several)
	for i, part := range parts {
		word, args := t.word(step, part)
		last := i == len(parts)-1
		want := t.expected(step, last)
		printed := t.take(step, part, func() []string { return t.run(word, args, want) })
		if word.Optional && len(want) == 0 {
			printed = nil
		}
		switch {
		case last:
			t.compare(step, part, want, printed)
		case len(printed) > 0:
			t.Fatalf("%s: %q prints, so it has to be the last step of its line", t.scenario.at(step.first), short(part))
		}
		t.done = append(t.done, t.scenario.at(step.first)+": "+short(part))
	}
}

// word returns the word that a step begins with, and the rest of the step.
func (t *player[S]) word(step Step, text string) (word Word[S], args string) {
	t.Helper()
	names := namesOf(t.stories.Words)
	name, rest, ok := Beginning(names, text)
	if !ok {
		t.Fatalf("%s: no word begins %q; the nearest are %q, and \"make words\" lists all\n%s",
			t.scenario.at(step.first), short(text), similar(names, text), t.before())
	}
	return t.stories.Words[slices.Index(names, name)], t.story.Expand(rest)
}

// expected returns the expected output of a step: of several steps in a line, only the last one prints.
func (t *player[S]) expected(step Step, last bool) (want []string) {
	if !last {
		return nil
	}
	for _, result := range step.results() {
		want = append(want, t.story.Expand(result))
	}
	return want
}

// take takes a step, and returns what it prints.
func (t *player[S]) take(step Step, text string, run func() []string) []string {
	t.Helper()
	failed := t.Failed()
	defer func() {
		t.Helper()
		if t.Failed() && !failed {
			t.Logf("%s: %q failed, as said above\n%s", t.scenario.at(step.first), short(text), t.before())
		}
	}()
	return run()
}

const (
	// patience bounds how often a step is taken again.
	patience = 2 * time.Minute
	// pause is the time between two tries.
	pause = 100 * time.Millisecond
	// settled is how long the output of a step has to stay the same before -update takes it as the
	// result.
	settled = 5 * time.Second
)

// run runs a word, if necessary again and again until the output is the expected one.
func (t *player[S]) run(word Word[S], args string, want []string) (printed []string) {
	for began, since := time.Now(), time.Now(); ; <-time.After(pause) {
		word.Run(t.story, args)
		before := printed
		printed = t.story.Printed()
		if !slices.Equal(before, printed) {
			since = time.Now()
		}
		over := time.Since(began) > patience || t.rewriting != nil && time.Since(since) > settled
		if !word.Until || over || prints(align(want, printed)) {
			return printed
		}
	}
}

// compare compares the output of a step with the expected one, or has the latter rewritten.
func (t *player[S]) compare(step Step, text string, want, printed []string) {
	t.Helper()
	aligned := align(want, printed)
	switch {
	case prints(aligned):
	case t.rewriting != nil:
		results := rewritten(aligned, step.results(), printed, t.story.Contract)
		t.rewriting.replace(t.T, t.scenario.file, step.want, step.last, results)
	default:
		at := aligned[slices.IndexFunc(aligned, func(p pair) bool { return !p.fits })]
		t.Errorf("%s: after %q: want %s, got %s\n%s%s", t.scenario.at(step.place(at)), short(text),
			quoted(want, at.wanted), quoted(printed, at.printed), all(printed), t.before())
	}
}

// results returns the expected output of a step as it stands in the file.
func (s Step) results() (out []string) {
	for _, l := range s.want {
		result, _ := l.wanted()
		out = append(out, result)
	}
	return out
}

// short returns the first line of a step, with a mark if it has more.
func short(step string) string {
	first, _, more := strings.Cut(step, "\n")
	if more {
		first += " …"
	}
	return first
}

// place returns the line at which the output of a step is not the expected one.
func (s Step) place(p pair) int {
	if p.wanted < len(s.want) {
		return s.want[p.wanted].number
	}
	return s.last
}

// all shows the output of a step, if that is more than a line.
func all(printed []string) string {
	if len(printed) < 2 {
		return ""
	}
	return "it prints\n" + indent(printed)
}

// before shows the steps before, the last ones if there are many.
func (t *player[S]) before() string {
	if len(t.done) == 0 {
		return fmt.Sprintf("in %q, as the first step", t.scenario.Name)
	}
	const most = 12
	last := t.done[max(0, len(t.done)-most):]
	return fmt.Sprintf("in %q, after these steps (the last %d of %d)\n%s", t.scenario.Name, len(last), len(t.done), indent(last))
}

func indent(lines []string) string { return "    " + strings.Join(lines, "\n    ") + "\n" }

// Names are the names that a story gives to objects: {a} in a step stands for the object that is called
// a.
type Names struct{ pairs []string }

// Call gives a name to an object, in place of any earlier one.
func (n *Names) Call(name, what string) {
	n.pairs = append([]string{"{" + name + "}", what}, n.pairs...)
}

// Expand replaces names.
func (n *Names) Expand(text string) string { return strings.NewReplacer(n.pairs...).Replace(text) }

// Named returns the object with a name, and whether there is one.
func (n *Names) Named(name string) (what string, ok bool) {
	text := "{" + name + "}"
	what = n.Expand(text)
	return what, what != text
}

// shortest is how long a text has to be that Contract replaces: a shorter one means something else in most places.
const shortest = 4

// Contract replaces objects by their names, the newest name first.
func (n *Names) Contract(text string) string {
	for i := 0; i < len(n.pairs); i += 2 {
		if what := n.pairs[i+1]; len(what) >= shortest && n.Expand(n.pairs[i]) == what {
			text = strings.ReplaceAll(text, what, n.pairs[i])
		}
	}
	return text
}

// Printer collects the output of the steps of a story.
type Printer struct{ lines []string }

// Print prints a text of one or more lines.
func (p *Printer) Print(text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		p.lines = append(p.lines, strings.TrimRight(line, " "))
	}
}

// Printf prints a line.
func (p *Printer) Printf(format string, args ...any) { p.Print(fmt.Sprintf(format, args...)) }

// Printed returns the lines since the last call.
func (p *Printer) Printed() []string {
	lines := p.lines
	p.lines = nil
	return lines
}

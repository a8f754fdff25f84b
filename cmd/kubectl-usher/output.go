// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/printable"
	"github.com/usher-dev/usher/internal/view"
)

// Few colours: red is only for trouble.
const (
	plain = ""
	red   = "\x1b[31m"
	dim   = "\x1b[2m"
	bold  = "\x1b[1m"
	reset = "\x1b[0m"
)

// page collects the lines of one answer. Colours are per line, so that columns align.
type page struct {
	out    io.Writer
	colour bool
	// format is the value of --output; empty means for people. path is the template of jsonpath.
	format string
	path   *jsonpath.JSONPath
	// verbose is --verbose, and columns how wide the terminal is; 0 is any width.
	verbose bool
	columns int
	// width and height bound a screen that is drawn anew; 0 for none.
	width, height int
	// lines counts the printed lines.
	lines int
}

func (s *session) page() *page {
	p := &page{out: s.Out, colour: isTerminal(s.Out) && os.Getenv("NO_COLOR") == "", format: s.output, path: s.path, verbose: s.verbose}
	if file, ok := s.Out.(*os.File); ok && isTerminal(file) {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			p.columns = columns
		}
	}
	return p
}

// clock returns the Clock that writes times: with -o wide, as the API writes them.
func (p *page) clock(now time.Time) view.Clock { return view.Clock{Now: now, Absolute: p.wide()} }

// wide reports whether the user asked for more columns.
func (p *page) wide() bool { return p.format == "wide" }

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// room returns how many more lines fit on the screen; the cursor takes one.
func (p *page) room() int { return cmp.Or(p.height, math.MaxInt) - p.lines - 1 }

func (p *page) line(colour, format string, args ...any) {
	text := fmt.Sprintf(format, words(args)...)
	p.lines += 1 + strings.Count(text, "\n")
	if runes := []rune(text); p.width > 0 && len(runes) > p.width {
		text = string(runes[:p.width-1]) + "…"
	}
	if p.colour && colour != plain {
		text = colour + text + reset
	}
	put(p.out, text+"\n")
}

// fact prints a line about a value, unless there is none.
func (p *page) fact(format, value string) {
	if value != "" {
		p.line(plain, format, value)
	}
}

// did prints what was done, or with --dry-run what would be.
func (s *session) did(format string, args ...any) {
	if s.dryRun {
		format += " (dry run)"
	}
	printf(s.Out, format+"\n", args...)
}

// printf prints to the user. The format is the plugin's; texts among the arguments may have been
// written by others.
func printf(out io.Writer, format string, args ...any) { put(out, fmt.Sprintf(format, words(args)...)) }

// put writes to the user; an error means that the user is gone.
func put(out io.Writer, text string) { _, _ = io.WriteString(out, text) }

// words returns the arguments of a format without characters that a terminal obeys: texts come from
// objects that others write, and from errors that repeat them. Each becomes part of one line.
func words(args []any) []any {
	return list.Map(args, func(arg any) any {
		switch value := reflect.ValueOf(arg); value.Kind() {
		case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64:
			if _, named := arg.(fmt.Stringer); !named {
				return arg
			}
		}
		return printable.Line(fmt.Sprint(arg))
	})
}

// row is one line of a table.
type row struct {
	colour string
	cells  []string
}

// table prints rows below a header.
func (p *page) table(header []string, rows []row) {
	var text strings.Builder
	w := printers.GetNewTabWriter(&text)
	put(w, strings.Join(header, "\t")+"\n")
	for _, r := range rows {
		put(w, strings.Join(list.Map(r.cells, printable.Line), "\t")+"\n")
	}
	_ = w.Flush() // into memory
	for i, line := range strings.Split(strings.TrimRight(text.String(), "\n"), "\n") {
		colour := dim
		if i > 0 {
			colour = rows[i-1].colour
		}
		p.line(colour, "%s", strings.TrimRight(line, " "))
	}
}

// fit drops columns from a table that is wider than the terminal, the least useful first. The last column is cut only if
// that is not enough.
func (p *page) fit(header []string, rows []row) ([]string, []row) {
	for _, name := range []string{"AGE", "RESTARTS", "READY", "REVISION", "REGISTERED"} {
		if p.columns == 0 || p.wide() || tableWidth(header, rows) <= p.columns {
			break
		}
		if at := slices.Index(header, name); at >= 0 {
			header = slices.Concat(header[:at], header[at+1:])
			rows = list.Map(rows, func(r row) row { return row{r.colour, slices.Concat(r.cells[:at], r.cells[at+1:])} })
		}
	}
	return header, rows
}

// tableWidth returns how wide table prints rows.
func tableWidth(header []string, rows []row) (width int) {
	const least, gap = 6, 3 // of printers.GetNewTabWriter
	for i, name := range header {
		column := utf8.RuneCountInString(name)
		for _, r := range rows {
			column = max(column, utf8.RuneCountInString(printable.Line(r.cells[i])))
		}
		if i < len(header)-1 {
			column = max(column+gap, least)
		}
		width += column
	}
	return width
}

// section prints rows, if there are any, below an empty line and a header.
func (p *page) section(header []string, rows []row) {
	if len(rows) > 0 {
		p.line(plain, "")
		p.table(header, rows)
	}
}

// outputs gives a command the flag --output.
func (s *session) outputs(command *cobra.Command, formats ...string) *cobra.Command {
	formats = append(slices.Clone(formats), "jsonpath=")
	all := strings.Join(formats, ", ")
	command.Flags().FuncP("output", "o", "print in that `format`: "+all, func(format string) error {
		template, isPath := strings.CutPrefix(format, "jsonpath=")
		if !isPath && !slices.Contains(formats, format) || format == "jsonpath=" {
			return fmt.Errorf("it is none of %s", all)
		}
		if isPath {
			if s.path, format = jsonpath.New("output"), "jsonpath"; s.path.Parse(relaxed(template)) != nil {
				return fmt.Errorf("%s is no JSONPath, such as {.phase}", template)
			}
		}
		s.output = format
		return nil
	})
	completesFlag(command, "output", func(context.Context, []string, string) []string { return formats })
	return command
}

// relaxed completes a JSONPath: as in kubectl, the braces and the first dot may be missing.
func relaxed(template string) string {
	if strings.Contains(template, "{") {
		return template
	}
	return "{." + strings.TrimPrefix(template, ".") + "}"
}

// printPath prints the result of a JSONPath in the JSON of a value.
func printPath(out io.Writer, path *jsonpath.JSONPath, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	var found bytes.Buffer
	if err := path.Execute(&found, plain); err != nil {
		return fmt.Errorf("-o jsonpath: %w; -o json shows what there is", err)
	}
	put(out, printable.Text(found.String())+"\n")
	return nil
}

// answer prints a value for people, or for programs, which may want only names.
func (p *page) answer(value any, forPeople func(*page), names ...string) error {
	switch p.format {
	case "name":
		for _, name := range names {
			p.line(plain, "%s", name)
		}
	case "jsonpath":
		return printPath(p.out, p.path, value)
	case "json":
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err == nil {
			_, err = p.out.Write(text)
		}
		return err
	default:
		forPeople(p)
	}
	return nil
}

const (
	// redrawEvery is the least time between two screens: people do not read faster.
	redrawEvery = 500 * time.Millisecond
	// clockEvery is when a screen is redrawn on which only the time changes.
	clockEvery = 5 * time.Second
	// redrawPause is the pause after a screen, as a multiple of the time that drawing it took, so that
	// 2,000 Pods take no more CPU time than 20.
	redrawPause = 50
	// A screen replaces the one before without flicker: each line clears the rest of the old one, and
	// the last line clears the rest of the screen.
	home, lineEnd, screenEnd = "\x1b[H", "\x1b[K\n", "\x1b[J"
)

// watch shows the status at each change, until a condition holds; nil means until it is interrupted. If
// the output is no terminal, it prints a line for each change.
func (s *session) watch(ctx context.Context, t target, until func(*view.Workload) bool) error {
	// The first screen comes from the API server itself, whose error says what is missing.
	began := time.Now()
	w, err := s.load(ctx, t)
	if err != nil {
		return err
	}
	printed := &changes{}
	if err := s.show(&w, printed, nil); err != nil || until != nil && until(&w) {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &cluster{session: s, changed: make(chan struct{}, 1), readable: []schema.GroupVersionKind{kindPod, t.kind}}
	c.ask, c.begin = s.answers, c.watcher(ends(cancel))
	if err := c.begin(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	go func() { _ = c.listen(ctx) }()
	return c.showEach(ctx, t, w, time.Since(began), printed, until)
}

// showEach shows a workload at each change, as watch does. If the API server does not answer, it says
// so, since the last state may be old. drawn is how long the last screen took.
func (c *cluster) showEach(
	ctx context.Context, t target, w view.Workload, drawn time.Duration, printed *changes, until func(*view.Workload) bool,
) (err error) {
	for {
		if err := pause(ctx, max(redrawEvery, min(redrawPause*drawn, clockEvery)), c.changed); err != nil {
			return silenced(err, c.silence.Load())
		}
		began, silence := time.Now(), c.silence.Load()
		if silence == nil {
			if w, err = c.live.Load().load(ctx, t); err != nil {
				return cmp.Or(context.Cause(ctx), err)
			}
		}
		if err := c.show(&w, printed, silence); err != nil || silence == nil && until != nil && until(&w) {
			return err
		}
		drawn = time.Since(began)
	}
}

// silent is the error of a watch that ends while the API server does not answer.
type silent struct {
	error
	since time.Time
}

func (s *silent) Unwrap() error { return s.error }

func silenced(err error, silence *failure) error {
	if silence == nil {
		return err
	}
	return &silent{err, silence.at}
}

// noAnswer says since when the API server has not answered.
func noAnswer(clock view.Clock, since time.Time) string {
	return "no answer from the API server " + clock.Since(since)
}

// ends handles errors of watches: without the right to watch, it ends them, since a retry is useless.
func ends(end context.CancelCauseFunc) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *toolscache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			end(failed(err, "watch %s", r.TypeDescription()))
			return
		}
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}

// pause waits for the least time, and then for a change or until clockEvery has passed.
func pause(ctx context.Context, least time.Duration, changed <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(least):
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(clockEvery):
	case <-changed:
	}
	return nil
}

// live returns a session that reads the namespace from watches, and sends to changed when an object of
// the kinds changes.
func (s *session) live(
	ctx context.Context, onError toolscache.WatchErrorHandlerWithContext, changed chan<- struct{}, kinds ...schema.GroupVersionKind,
) (*session, error) {
	objects, err := cache.New(s.config, cache.Options{
		Scheme: scheme, Mapper: s.mapper, DefaultNamespaces: map[string]cache.Config{s.namespace: {}},
		DefaultTransform: withoutManagers, DefaultUnsafeDisableDeepCopy: ptr.To(true),
		DefaultWatchErrorHandler: onError,
	})
	if err != nil {
		return nil, failed(err, "watch namespace %s", s.namespace)
	}
	for _, kind := range kinds {
		informer, err := objects.GetInformerForKind(ctx, kind, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(notify(changed))
		}
		if err != nil {
			return nil, failed(err, "watch %s", plural(kind))
		}
	}
	go func() { _ = objects.Start(ctx) }() // it ends only with ctx, and retries by itself
	if !objects.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("watch namespace %s: %w", s.namespace, context.Cause(ctx))
	}
	live := *s
	live.reader = objects
	return &live, nil
}

// withoutManagers drops the managed fields of objects from a watch. It keeps them in the few objects
// whose last change their controller has not seen: there, a view reads from them when the spec was
// changed.
func withoutManagers(object any) (any, error) {
	if one, ok := object.(metav1.Object); ok && view.UnseenOf(one) == nil {
		one.SetManagedFields(nil)
	}
	return object, nil
}

// notify returns an event handler that sends to changed; several events may cause a single send.
func notify(changed chan<- struct{}) toolscache.ResourceEventHandler {
	send := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { send() }, UpdateFunc: func(any, any) { send() }, DeleteFunc: func(any) { send() },
	}
}

// show draws a screen over the one before; if the output is no terminal, it prints the changes.
// Programs get the whole workload. While the API server does not answer, the screen shows the last
// state, at the time of that state.
func (s *session) show(w *view.Workload, printed *changes, silence *failure) error {
	file, _ := s.Out.(*os.File)
	var screen bytes.Buffer
	p := s.page()
	p.out = &screen
	switch people := p.format == "" || p.wide(); {
	case !people && silence != nil:
		printed.printSilence(&page{out: s.ErrOut}, silence, time.Now())
		return nil
	case !people:
		p.out = s.Out
		return p.print(w, time.Now())
	case s.lines || file == nil || !isTerminal(file):
		printed.printSilence(p, silence, time.Now())
		if silence == nil {
			printed.print(p, w, time.Now())
		}
		put(s.Out, screen.String())
		return nil
	}
	if width, height, err := term.GetSize(int(file.Fd())); err == nil {
		p.width, p.height, p.columns = width, height, width
	}
	if err := p.screen(w, silence, time.Now()); err != nil {
		return err
	}
	put(s.Out, home+strings.ReplaceAll(screen.String(), "\n", lineEnd)+screenEnd)
	return nil
}

// screen prints a workload as it is, or as it was when the API server last answered.
func (p *page) screen(w *view.Workload, silence *failure, now time.Time) error {
	if silence != nil {
		text := noAnswer(p.clock(now), silence.at)
		p.line(red, "%s: this is how it was then", strings.ToUpper(text[:1])+text[1:])
		now = silence.at
	}
	return p.print(w, now)
}

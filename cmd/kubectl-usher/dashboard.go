// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	lanes "github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/internal/view"
)

const (
	// keepFor is how long the page remembers.
	keepFor = time.Hour
	// reportEvery bounds how often the page gets changes.
	reportEvery = 250 * time.Millisecond
	// reportPause is the pause after a report, as a multiple of the time that the report took.
	reportPause = 20
)

func dashboardCommand(s *session) *cobra.Command {
	var port int
	var noOpen bool
	command := command("dashboard", cobra.NoArgs, nil, func(ctx context.Context, _ []string) error {
		if err := s.connect(); err != nil {
			return err
		}
		return s.dashboard(ctx, port, !noOpen && isTerminal(s.Out))
	})
	command.Flags().IntVar(&port, "port", 0, "`port` on loopback; 0 is any that is free")
	command.Flags().BoolVar(&noOpen, "no-open", false, "do not open a browser; without a terminal none is opened")
	return command
}

// dashboard is a served page, which shows one namespace at a time.
type dashboard struct {
	*session
	server *lanes.Server
	// all runs the page's server and the reports to it, until ctx ends.
	all *errgroup.Group
	ctx context.Context //nolint:containedctx // the page outlives the request that chooses a namespace

	mu sync.Mutex // guards the fields below
	// shown is the namespace that the page shows, and end stops the reports on it.
	shown string
	end   func()
}

// dashboard serves the page until ctx ends.
func (s *session) dashboard(ctx context.Context, port int, open bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &dashboard{session: s, end: func() {}}
	d.all, ctx = errgroup.WithContext(ctx)
	d.ctx = ctx
	d.server = lanes.NewServer(d.recorder(nil), d.do)
	if err := d.show(ctx, s.namespace); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("listen on loopback: %w; --port chooses another port", err)
	}
	address := d.server.Address(listener)
	printf(s.Out, "%s\nOpen this address in a browser. Ctrl-C ends it.\n", address)
	if open {
		defer s.browse(ctx, address)()
	}
	d.all.Go(func() error { return d.server.Serve(ctx, listener) })
	return d.all.Wait()
}

// show makes the page show a namespace. Without the right to read it, the page continues with the
// previous one.
func (d *dashboard) show(ctx context.Context, namespace string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	cluster, err := d.in(namespace).observe(ctx)
	if err != nil {
		cancel()
		return err
	}
	d.end()
	d.shown = namespace
	d.server.Follow(d.recorder(d.namespaces(ctx)))
	var both sync.WaitGroup
	d.run(ctx, &both, cluster.listen)
	d.run(ctx, &both, func(ctx context.Context) error { return cluster.report(ctx, d.server) })
	d.end = func() {
		cancel()
		both.Wait() // later reports would be of another namespace
	}
	return nil
}

// run runs reports on a namespace. If they end because another one is chosen, that is no error.
func (d *dashboard) run(ctx context.Context, running *sync.WaitGroup, report func(context.Context) error) {
	running.Add(1)
	d.all.Go(func() error {
		defer running.Done()
		if err := report(ctx); d.ctx.Err() != nil || ctx.Err() == nil {
			return err
		}
		return nil
	})
}

// namespaces returns the namespaces that the user can choose from; none if the user may not list them.
func (d *dashboard) namespaces(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	names := d.namesOf(ctx, kindNamespace)
	slices.Sort(names)
	return names
}

// recorder returns a recorder of the namespace.
func (d *dashboard) recorder(namespaces []string) *lanes.Recorder {
	recorder := lanes.NewRecorder(time.Now(), "Usher: namespace "+d.shown, keepFor)
	r := recorder.Recording()
	r.Namespace, r.Namespaces = d.shown, namespaces
	r.Empty = "There is no CloneSet, and no workload whose Pods a Registration selects" + where(d.shown) +
		". kubectl usher status -A lists those of all namespaces, and https://usher.dev/first-deployment.html shows how to make one."
	return recorder
}

// do carries out an action that the reader has chosen or confirmed on the page.
func (d *dashboard) do(ctx context.Context, id, action, to string) error {
	if action == lanes.ActionNamespace {
		return d.show(d.ctx, to) //nolint:contextcheck // the reports that it starts outlive the request
	}
	d.mu.Lock()
	shown := d.in(d.shown)
	d.mu.Unlock()
	return shown.do(ctx, id, action, to)
}

// report sends changes to the page, also those that time alone causes.
func (c *cluster) report(ctx context.Context, server *lanes.Server) error {
	for {
		now := time.Now()
		seen, err := c.workloads(ctx, now)
		if err != nil {
			return err
		}
		server.Observe(now, c.note(now), seen)
		silent := time.Time{}
		if s := c.silence.Load(); s != nil {
			silent = s.at
		}
		server.Silent(silent)
		if err := pause(ctx, max(reportEvery, min(reportPause*time.Since(now), clockEvery)), c.changed); err != nil {
			return err
		}
	}
}

// do carries out an action that the reader has confirmed on the page.
func (s *session) do(ctx context.Context, id, action, to string) error {
	parts := strings.Split(id, "/")
	if len(parts) != 3 || parts[0] != kindCloneSet.Kind || parts[1] != s.namespace {
		return fmt.Errorf("%s is no CloneSet of namespace %s", id, s.namespace)
	}
	set, err := s.cloneSet(ctx, []string{"clone/" + parts[2]})
	if err != nil {
		return err
	}
	switch action {
	case "pause", "resume":
		return s.pause(ctx, set, action == "pause")
	case "undo":
		return s.undo(ctx, set, to)
	}
	return fmt.Errorf("the page knows no action %q", action)
}

// browse opens a browser. The token is in a file that only the user can read, since everybody can read
// a program's arguments. done removes the file.
func (s *session) browse(ctx context.Context, address string) (done func()) {
	dir, err := os.MkdirTemp("", "kubectl-usher-")
	file := filepath.Join(dir, "open.html")
	text := `<meta http-equiv="refresh" content="0; url=` + html.EscapeString(address) + `">`
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	if err == nil {
		err = opener(ctx, file).Start()
	}
	if err != nil {
		printf(s.ErrOut, "No browser is opened: %v\n", err)
	}
	return func() { _ = os.RemoveAll(dir) }
}

func opener(ctx context.Context, file string) *exec.Cmd {
	switch runtime.GOOS {
	case "darwin":
		return exec.CommandContext(ctx, "open", file)
	case "windows":
		return exec.CommandContext(ctx, "rundll32", "url.dll,FileProtocolHandler", file)
	}
	return exec.CommandContext(ctx, "xdg-open", file)
}

// shownKinds are the kinds that the page shows. Without Pods there is nothing to show.
var shownKinds = []schema.GroupVersionKind{
	kindPod, kindCloneSet, kindRevision, kindRegistration, kindDeployment, kindReplicaSet, kindStatefulSet, kindDaemonSet,
}

// cluster has the objects of a namespace, as watches show them.
type cluster struct {
	*session
	// live reads from the watches' cache.
	live atomic.Pointer[session]
	// ask returns an error unless the API server answers; begin starts new watches.
	ask, begin func(context.Context) error
	// silence is since when it does not answer, and why; nil if it does.
	silence atomic.Pointer[failure]
	// readable are the kinds that can be read; missing names the others.
	readable  []schema.GroupVersionKind
	missing   []string
	mayChange bool
	// changed has an element after a change.
	changed chan struct{}
	// failed is when a watch last failed, and why; nil if none did.
	failed atomic.Pointer[failure]
}

type failure struct {
	at  time.Time
	err error
}

// failedFor is how long a watch that failed counts: it is tried again before that.
const failedFor = 45 * time.Second

// note returns the message for the reader: an API server that does not answer, a watch that has failed,
// missing rights.
func (c *cluster) note(now time.Time) string {
	texts := c.missing
	if s := c.silence.Load(); s != nil {
		return strings.Join(append([]string{"The API server does not answer: " + s.err.Error() + "."}, texts...), " ")
	}
	if f := c.failed.Load(); f != nil && now.Sub(f.at) < failedFor {
		texts = append([]string{"What is shown may be old: " + f.err.Error() + "."}, texts...)
	}
	return strings.Join(texts, " ")
}

// fail is called when a watch ends with an error and is retried.
func (c *cluster) fail(_ context.Context, _ *toolscache.Reflector, err error) {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, io.EOF) {
		c.failed.Store(&failure{time.Now(), err})
		notify(c.changed).OnAdd(nil, false)
	}
}

// observe watches the kinds that the caller may watch in the session's namespace, and returns when
// their first lists are complete.
func (s *session) observe(ctx context.Context) (*cluster, error) {
	c := &cluster{session: s, changed: make(chan struct{}, 1)}
	if err := s.rights(ctx, c); err != nil {
		return nil, err
	}
	c.ask, c.begin = s.answers, c.watcher(c.fail)
	return c, c.begin(ctx)
}

// answers returns an error unless the API server answers; a refusal is an answer. The answer of a
// gateway without an API server behind it is none.
func (s *session) answers(ctx context.Context) error {
	err := s.discovery.RESTClient().Get().AbsPath("/version").Timeout(clockEvery).Do(ctx).Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError {
		return nil
	}
	return err
}

// watcher returns a function that starts new watches, and ends the previous ones once the first lists
// of the new ones are complete.
func (c *cluster) watcher(onError toolscache.WatchErrorHandlerWithContext) func(context.Context) error {
	end := func() {}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		giveUp := time.AfterFunc(failedFor, cancel)
		defer giveUp.Stop()
		live, err := c.session.live(ctx, onError, c.changed, c.readable...)
		if err != nil {
			cancel()
			return err
		}
		end()
		end = cancel
		c.live.Store(live)
		return nil
	}
}

// listen asks the API server now and then whether it is there: watches that have lost it report
// nothing, and retry with a growing back-off. When it is back, listen starts new watches.
func (c *cluster) listen(ctx context.Context) error {
	for last := time.Now(); ; {
		err, before := c.ask(ctx), c.silence.Load()
		if err == nil && before != nil {
			err = c.begin(ctx)
		}
		switch {
		case err == nil:
			last = time.Now()
			c.silence.Store(nil)
		case ctx.Err() == nil:
			c.silence.Store(&failure{last, err})
		}
		if (err != nil) != (before != nil) {
			notify(c.changed).OnAdd(nil, false)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(clockEvery):
		}
	}
}

// rights finds out what the caller may read and change.
func (s *session) rights(ctx context.Context, c *cluster) error {
	for _, kind := range shownKinds {
		may, why := false, fmt.Sprintf("This cluster has no %s: install Usher's CustomResourceDefinitions, as https://usher.dev/install.html says.", plural(kind))
		mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err == nil {
			why = fmt.Sprintf("You may not list and watch %s in namespace %s: what they say is missing. Ask for a role with these verbs.", plural(kind), s.namespace)
			may, err = s.may(ctx, mapping.Resource.Group, mapping.Resource.Resource, "list", "watch")
		}
		switch {
		case err != nil && !meta.IsNoMatchError(err):
			return fmt.Errorf("ask for your rights: %w", err)
		case may:
			c.readable = append(c.readable, kind)
		case kind == kindPod:
			return fmt.Errorf("you may not list and watch Pods in namespace %s: ask for a Role with these verbs, or choose another namespace with -n", s.namespace)
		default:
			c.missing = append(c.missing, why)
		}
	}
	var err error
	c.mayChange, err = s.may(ctx, apps.GroupVersion.Group, "clonesets", "patch")
	return err
}

// may reports whether the caller may do all of that in the namespace.
func (s *session) may(ctx context.Context, group, resource string, verbs ...string) (bool, error) {
	for _, verb := range verbs {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: s.namespace, Verb: verb, Group: group, Resource: resource},
		}}
		if err := s.client.Create(ctx, review); err != nil {
			return false, fmt.Errorf("ask whether you may %s %s: %w", verb, resource, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// workloads returns all workloads that the page shows, by kind and name: CloneSets, and others that
// concern Usher, with the actions that the caller may take on them.
func (c *cluster) workloads(ctx context.Context, now time.Time) (shown []lanes.Seen, err error) {
	objects, err := c.live.Load().read(ctx, c.readable...)
	if err != nil {
		return nil, fmt.Errorf("read what was watched: %w", err)
	}
	for _, w := range view.Shown(now, objects) {
		seen := lanes.Seen{Workload: w}
		if c.mayChange {
			seen.Actions = lanes.Actions(&w)
		}
		shown = append(shown, seen)
	}
	return shown, nil
}

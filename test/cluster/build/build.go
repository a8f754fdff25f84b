// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/cluster/progress"
)

// The binaries that Ensure can build.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	// Kubelet is not part of a control plane, so All omits it.
	Kubelet = "kubelet"
)

// CacheEnv names the environment variable that replaces the default cache directory,
// which is "usher" in os.UserCacheDir().
const CacheEnv = "USHER_CACHE"

const (
	lockName = "build.lock"
	logName  = "build.log"
	// tempPrefix starts the names of everything that an interrupted build may leave.
	tempPrefix = ".building-"
)

// All lists the binaries of a control plane in build order: the small one first, so
// that the wait soon shows a result.
func All() []string { return []string{Etcd, APIServer, ControllerManager, Scheduler} }

// packagePath is the Go package of a binary; empty for an unknown one.
func packagePath(binary string) string {
	switch binary {
	case Etcd:
		return "go.etcd.io/etcd/server/v3"
	case APIServer, ControllerManager, Scheduler, Kubelet:
		return "k8s.io/kubernetes/cmd/" + binary
	default:
		return ""
	}
}

// Options configures Ensure. The zero value builds everything into the default cache.
type Options struct {
	// Dir is where the search for test/cluster/controlplane starts; empty means the
	// working directory.
	Dir string
	// Cache is the cache directory; empty means $USHER_CACHE, and without that "usher"
	// in os.UserCacheDir().
	Cache string
	// Only names the wanted binaries; empty means those of All.
	Only []string
	// Tell receives the progress; nil is allowed.
	Tell progress.Sink
}

// Binaries is a directory of built binaries.
type Binaries struct {
	// Dir is the directory.
	Dir string
	// Kubernetes and Etcd are the versions, for instance "v1.36.3" and "v3.6.8".
	Kubernetes, Etcd string
}

// Path is the path of one binary.
func (b *Binaries) Path(name string) string { return filepath.Join(b.Dir, name) }

// Locate returns where the binaries are or would be, and which of the wanted ones are
// missing, in build order. It builds nothing and needs no go command.
func Locate(opts Options) (bins *Binaries, missing []string, err error) {
	p, err := prepare(opts)
	if err != nil {
		return nil, nil, err
	}
	return p.binaries(), p.missing(), nil
}

// Ensure builds what is missing and returns the directory. It needs the go command only
// if something is missing. A failed build is an *Error that says what to do next; an
// interrupted one wraps ctx.Err().
func Ensure(ctx context.Context, opts Options) (*Binaries, error) {
	p, err := prepare(opts)
	if err != nil {
		return nil, err
	}
	if len(p.missing()) == 0 {
		return p.binaries(), nil
	}
	if err := p.buildMissing(ctx); err != nil {
		return nil, err
	}
	return p.binaries(), nil
}

// plan is one call of Ensure.
type plan struct {
	source *Source
	dir    string
	wanted []string
	tell   progress.Sink
}

func prepare(opts Options) (*plan, error) {
	from := opts.Dir
	if from == "" {
		wd, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("find the working directory: %w", err)
		}
		from = wd
	}
	source, err := FindSource(from, os.Getenv)
	if err != nil {
		return nil, err
	}
	root, err := cacheRoot(opts.Cache, os.Getenv)
	if err != nil {
		return nil, err
	}
	wanted := opts.Only
	if len(wanted) == 0 {
		wanted = All()
	}
	for _, name := range wanted {
		if packagePath(name) == "" {
			return nil, fmt.Errorf("cannot build %q: the binaries are %s", name, strings.Join(append(All(), Kubelet), ", "))
		}
	}
	dir := filepath.Join(root, "controlplane", source.Key(runtime.Version()))
	return &plan{source: source, dir: dir, wanted: wanted, tell: opts.Tell}, nil
}

func cacheRoot(fixed string, getenv func(string) string) (string, error) {
	if fixed == "" {
		fixed = getenv(CacheEnv)
	}
	if fixed != "" {
		return filepath.Abs(fixed)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder (set %s to choose one): %w", CacheEnv, err)
	}
	return filepath.Join(user, "usher"), nil
}

func (p *plan) binaries() *Binaries {
	return &Binaries{Dir: p.dir, Kubernetes: p.source.Kubernetes, Etcd: p.source.Etcd}
}

func (p *plan) missing() []string {
	names := []string{}
	for _, name := range p.wanted {
		info, err := os.Stat(filepath.Join(p.dir, name))
		if err != nil || !info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names
}

func (p *plan) buildMissing(ctx context.Context) (err error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("make the cache folder (set %s to choose another): %w", CacheEnv, err)
	}
	lock, err := acquire(ctx, filepath.Join(p.dir, lockName), holder(time.Now()), func(holder string) {
		p.tell.Tell(progress.Event{Detail: "Another build is under way (" + holder + "): waiting for it."})
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	// Check again: the previous holder of the lock may have built some or all of it.
	missing := p.missing()
	if len(missing) == 0 {
		return nil
	}
	p.announce(missing)
	return p.buildAll(ctx, missing)
}

func (p *plan) announce(missing []string) {
	p.tell.Tell(progress.Event{Detail: fmt.Sprintf(
		"Building Kubernetes %s and etcd %s from source. The first time takes about five minutes on two cores.\n"+
			"The binaries go to %s.", p.source.Kubernetes, p.source.Etcd, p.dir)})
	for _, name := range missing {
		p.tell.Tell(progress.Event{Task: name, State: progress.Waiting})
	}
}

func (p *plan) buildAll(ctx context.Context, missing []string) (err error) {
	if err := removeLeftovers(p.dir); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(p.dir, tempPrefix)
	if err != nil {
		return fmt.Errorf("make a folder for the build: %w", err)
	}
	log, err := os.Create(filepath.Join(p.dir, logName))
	if err != nil {
		return fmt.Errorf("make the build's log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close(), os.RemoveAll(temp)) }()
	tool := &goTool{dir: p.source.Dir, modFile: p.source.ModFile, temp: temp, log: log}
	for _, name := range missing {
		if err := p.buildOne(ctx, tool, name); err != nil {
			p.tell.Tell(failedEvent(ctx, name))
			return err
		}
	}
	return nil
}

func failedEvent(ctx context.Context, name string) progress.Event {
	e := progress.Event{Task: name, State: progress.Failed}
	if ctx.Err() != nil {
		e.Detail = "interrupted"
	}
	return e
}

// buildOne builds one binary next to its final path and moves it there when complete,
// so that rename(2) makes it exist atomically.
func (p *plan) buildOne(ctx context.Context, tool *goTool, name string) error {
	say := func(state progress.State, count, total int) {
		p.tell.Tell(progress.Event{Task: name, State: state, Count: count, Total: total})
	}
	say(progress.Checking, 0, 0)
	pkg, flags := packagePath(name), p.source.ldflags(name)
	watch := newWatch(pkg, say)
	stale, err := tool.run(ctx, watch, "list", "-deps", "-ldflags", flags, "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", pkg)
	if err != nil {
		return p.failure(ctx, tool, name, watch, err)
	}
	watch.expect(len(strings.Fields(stale)))
	temp := filepath.Join(tool.temp, name)
	if _, err := tool.run(ctx, watch, "build", "-v", "-ldflags", flags, "-o", temp, pkg); err != nil {
		return p.failure(ctx, tool, name, watch, err)
	}
	if err := os.Rename(temp, filepath.Join(p.dir, name)); err != nil {
		return fmt.Errorf("put %s in its place: %w", name, err)
	}
	say(progress.Done, 0, 0)
	return nil
}

func (p *plan) failure(ctx context.Context, tool *goTool, name string, watch *watch, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the build of %s was interrupted; the next one goes on from there: %w", name, context.Cause(ctx))
	}
	output := watch.complaints()
	cause := classify(strings.Join(output, "\n") + "\n" + err.Error())
	if errors.Is(err, errNoGo) {
		cause = CauseNoGo
	}
	return &Error{
		Binary: name, Cause: cause, Output: output, Err: err,
		Hint: hint(cause, p.dir, func(key string) string { return tool.setting(ctx, key) }),
	}
}

// removeLeftovers deletes what killed builds have left. Only the holder of the lock may
// call it.
func removeLeftovers(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove what an interrupted build left: %w", err)
		}
	}
	return nil
}

// holder is the lock holder's description for other builders.
func holder(now time.Time) string {
	return fmt.Sprintf("process %d, since %s", os.Getpid(), now.Format(time.TimeOnly))
}

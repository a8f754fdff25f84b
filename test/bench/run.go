// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/link"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/servers"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// stepLimit is how long a step may take, and podLimit how much longer for each Pod.
	stepLimit = 10 * time.Minute
	podLimit  = 100 * time.Millisecond
	// kills is how often Usher is killed, spread evenly over a step.
	kills = 2
	// deleteEvery is the pause between the deletions of deleteMeanwhile.
	deleteEvery = 200 * time.Millisecond
	// afterRepair is how much longer than a repair interval to watch an idle Usher: the
	// next sweep removes what a sweep suspects.
	afterRepair = 5 * time.Second
)

// measurement is a measurement on its stage. The fields below options belong to the
// size that is measured now.
type measurement struct {
	*stage.Stage
	options Options
	audit   *auditLog
	began   time.Time
	nodes   *nodes
	// plainVersion is the version of the image that the plain client's Pods run.
	plainVersion int
	// kubeconfig is Usher's, if it is not the usual one; link is the link to the API server in it.
	kubeconfig string
	link       *link.Link

	turn     turn
	server   servers.Server // nil: no registry
	pods     *podWatch
	entries  *entryWatch
	set      *setWatch
	running  bool          // Usher
	past     time.Duration // CPU time of killed Ushers
	smallSet time.Duration // for the step's result
	peak     float64       // MiB
}

func (m *measurement) say(format string, args ...any) {
	_, _ = fmt.Fprintf(m.options.Out, "%6.1fs  %s\n", time.Since(m.began).Seconds(), fmt.Sprintf(format, args...))
}

func (m *measurement) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := stepLimit + time.Duration(m.turn.size)*podLimit
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %s", limit))
}

// size measures one round of one size: first without a controller, then with a newly
// started Usher.
func (m *measurement) size(ctx context.Context, t turn) (results []*result, err error) {
	m.turn, m.past, m.peak, m.plainVersion = t, 0, 0, 1
	watching, stop := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer func() {
		// The watches must end before the registry does.
		stop()
		watches.Wait()
		if m.server != nil {
			err = errors.Join(err, m.server.Close())
		}
	}()
	if err := m.watch(watching, &watches); err != nil {
		return nil, err
	}
	m.say("%s, round %d of %d", m.where(), t.round+1, t.of)
	switch {
	case t.deployment:
		return m.deployments(ctx)
	case m.options.Guard:
		return m.guarded(ctx)
	}
	if results, err = m.alone(ctx); err != nil {
		return nil, err
	}
	if err := m.begin(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", m.where(), err)
	}
	for _, p := range m.options.scenario(t) {
		done, err := m.measure(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", m.where(), p.name, err)
		}
		if !p.hidden {
			results = append(results, done...)
		}
	}
	return results, m.end(ctx)
}

// where names the size that is measured.
func (m *measurement) where() string {
	where := stage.Thousands(m.turn.size) + " Pods"
	if m.server != nil {
		where = m.server.Name() + ", " + where
	}
	return where
}

// watch starts the registry, if there is one, and watches until ctx ends.
func (m *measurement) watch(ctx context.Context, watches *sync.WaitGroup) error {
	m.server, m.entries = nil, newEntryWatch(time.Now)
	saw := m.entries.saw
	if m.turn.registry == "" {
		saw = answerHooks(ctx, m.Kube, m.Fail)
	} else if err := m.startRegistry(ctx, m.turn.registry); err != nil {
		return err
	}
	m.pods, m.set = newPodWatch(time.Now, saw), &setWatch{sets: map[string]apps.CloneSetStatus{}}
	_, err := stage.Watch(ctx, m.Cluster.RESTConfig(), m.Kube, namespace,
		stage.On(&corev1.Pod{}, m.pods.is, m.pods.gone), stage.On(&apps.CloneSet{}, m.set.is, func(*apps.CloneSet) {}))
	if err != nil {
		return err
	}
	watches.Go(func() { m.entries.run(ctx) })
	if m.server != nil {
		watches.Go(func() {
			if err := m.server.Watch(ctx, m.entries.sighted); err != nil && ctx.Err() == nil {
				m.Fail(err)
			}
		})
	}
	return nil
}

func (m *measurement) startRegistry(ctx context.Context, kind string) error {
	m.say("%s starts", kind)
	dir, err := os.MkdirTemp(m.Dir, kind+"-")
	if err != nil {
		return err
	}
	m.server, err = servers.Start(ctx, kind, m.Root, dir)
	return err
}

// objects returns the CloneSet and what the operator needs.
func (m *measurement) objects() ([]client.Object, error) {
	set, err := object("cloneset")
	if err != nil || m.server == nil {
		return []client.Object{set}, err
	}
	registration, err := object("registration")
	registry := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: setName}, Spec: m.server.Spec()}
	registry.Spec.RepairInterval = &metav1.Duration{Duration: m.options.Repair}
	return []client.Object{set, registration, registry}, err
}

// begin starts Usher with an empty CloneSet.
func (m *measurement) begin(ctx context.Context) error {
	ctx, cancel := m.bound(ctx)
	defer cancel()
	objects, err := m.objects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := m.Kube.Create(ctx, object); err != nil {
			return fmt.Errorf("create %s: %w", object.GetName(), err)
		}
	}
	if err := m.startUsher(); err != nil {
		return err
	}
	if err := m.set.await(ctx, []int64{objects[0].GetGeneration()}, step{}); err != nil {
		return err
	}
	_, _, err = m.audit.untilQuiet(ctx)
	return err
}

func (m *measurement) startUsher() error {
	var args []string
	if m.server == nil {
		args = []string{"--controllers", "cloneset"}
	}
	if m.options.Pull > 0 {
		args = append(args, "--pull-image", usherImage)
	}
	if m.kubeconfig != "" {
		args = append(args, "--kubeconfig", m.kubeconfig) // The last one counts.
	}
	m.running = true
	return m.StartUsher(args...)
}

// killUsher kills Usher, as a crash does, and starts it again.
func (m *measurement) killUsher() error {
	spent, err := process.Table{}.CPU(m.UsherPID())
	if err != nil {
		return err
	}
	m.past += spent
	if err := errors.Join(m.notePeak(), m.KillUsher()); err != nil {
		return err
	}
	return m.startUsher()
}

func (m *measurement) notePeak() error {
	peak, err := process.Table{}.PeakRSS(m.UsherPID())
	m.peak = max(m.peak, float64(peak)/(1<<20))
	return err
}

// end deletes everything and stops Usher.
func (m *measurement) end(ctx context.Context) error {
	if m.options.Many > 0 {
		m.running = false
		return m.StopUsher(ctx) // The cluster goes as it is.
	}
	ctx, cancel := m.bound(ctx)
	defer cancel()
	objects, err := m.objects()
	if err != nil {
		return err
	}
	err = stage.Try(ctx, stepLimit, "the deletion of the CloneSets", func(ctx context.Context) error {
		return m.Kube.DeleteAllOf(ctx, &apps.CloneSet{}, client.InNamespace(namespace)) // one request would time out
	})
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := client.IgnoreNotFound(m.Kube.Delete(ctx, object)); err != nil {
			return fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
		// Usher's finalizer holds it while it is used.
		err := stage.Poll(ctx, stepLimit, "the deletion of "+object.GetName(), func(ctx context.Context) (bool, error) {
			err := m.Kube.Get(ctx, client.ObjectKeyFromObject(object), object)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		if err != nil {
			return err
		}
	}
	if m.staying() > 0 {
		if _, err := m.request(ctx, m.removal("")); err != nil {
			return err
		}
	}
	m.running = false
	return m.StopUsher(ctx)
}

// measure measures a step and, around updates, the speed of the plain client: twice before and twice
// after, because a single measurement is so short that the API server may collect no garbage during it,
// and once between two parts of the step.
func (m *measurement) measure(ctx context.Context, p step) ([]*result, error) {
	if !p.bounded || m.server != nil {
		r, err := m.step(ctx, p)
		return []*result{r}, err
	}
	parts := p.parts
	if len(parts) == 0 {
		parts = []step{p}
	}
	order := []func(context.Context) (*result, error){m.ceiling, m.ceiling}
	for _, p := range parts {
		order = append(order, func(ctx context.Context) (*result, error) { return m.step(ctx, p) }, m.ceiling)
	}
	var all []*result
	for i, one := range append(order, m.ceiling) {
		if p.parts != nil {
			m.turn.round, m.turn.of = i, len(order)+1 // for warmUp
		}
		r, err := one(ctx)
		if err != nil {
			return nil, err
		}
		all = merge(all, []*result{r})
	}
	for _, r := range all[1:] {
		r.around = pace{all[0].pods, all[0].wall}
	}
	return all, nil
}

// step makes one change and measures until it is done.
func (m *measurement) step(ctx context.Context, p step) (*result, error) {
	if err := m.warmUp(ctx); err != nil {
		return nil, err
	}
	m.say("%s: %s", m.where(), strings.TrimPrefix(p.set+", "+p.name, ", "))
	m.nodes.begin(cmp.Or(p.restart, containerDelay), p.pull)
	if m.link != nil {
		m.link.Slow(p.distance)
	}
	ctx, cancel := m.bound(ctx)
	defer cancel()
	m.pods.begin()
	m.entries.begin()
	calls, err := m.calls(ctx)
	if err != nil {
		return nil, err
	}
	// Requests of the plain client do not count for the step.
	if err := m.audit.next(func(auditEvent) {}); err != nil {
		return nil, err
	}
	r := m.result(p)
	before, err := m.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	generations, err := m.perform(ctx, p)
	r.wall, r.smallSet = time.Since(began), m.smallSet
	if err == nil {
		err = m.set.await(ctx, generations, p)
	}
	r.done = time.Since(began)
	if err != nil {
		return nil, err
	}
	if r.cpu, err = m.cpuSince(before); err != nil {
		return nil, err
	}
	return r, m.account(ctx, r, calls)
}

// perform makes the change, and returns when the Pods and the registry have reached its
// result.
func (m *measurement) perform(ctx context.Context, p step) (generations []int64, err error) {
	m.smallSet = 0
	if p.do != nil {
		return nil, p.do(ctx, m, p)
	}
	if generations, err = p.apply(ctx, m.Kube); err != nil {
		return nil, err
	}
	if p.during != nil {
		if err := p.during(ctx, m, p); err != nil {
			return nil, err
		}
	}
	all := p.replicas * len(p.names())
	if err := m.pods.await(ctx, all+p.others+m.staying(), map[string]int{image(p.version): all - p.old, image(p.version - 1): p.old}); err != nil {
		return nil, err
	}
	if m.server == nil {
		return generations, nil
	}
	return generations, m.entries.await(ctx, all)
}

// killTwice kills Usher when a third and when two thirds of a step are done.
func killTwice(ctx context.Context, m *measurement, p step) error {
	for i := range kills {
		if err := m.entries.awaitMoves(ctx, max((i+1)*p.pods/(kills+1), 1)); err != nil {
			return err
		}
		if err := m.killUsher(); err != nil {
			return err
		}
	}
	return nil
}

// deleteMeanwhile deletes one Pod in a hundred, one after another, once a third of a step is done. The
// CloneSet replaces them.
func deleteMeanwhile(ctx context.Context, m *measurement, _ step) error {
	if err := m.entries.awaitMoves(ctx, m.turn.size/3); err != nil {
		return err
	}
	for range max(m.turn.size/100, 1) {
		name := m.entries.delete()
		if name == "" {
			return errors.New("there is no Pod in service that could be deleted")
		}
		if err := m.Kube.Delete(ctx, barePod(name)); err != nil {
			return fmt.Errorf("delete Pod %s: %w", name, err)
		}
		if err := stage.Pause(ctx, deleteEvery); err != nil {
			return err
		}
	}
	return m.entries.awaitDeleted(ctx)
}

// updateBeside updates another CloneSet once a third of a step is done.
func updateBeside(other step) func(context.Context, *measurement, step) error {
	return func(ctx context.Context, m *measurement, p step) error {
		if err := m.pods.await(ctx, anyNumber, map[string]int{image(p.version): p.replicas / 3}); err != nil {
			return err
		}
		began := time.Now()
		_, err := m.perform(ctx, other)
		m.smallSet = time.Since(began)
		return err
	}
}

// killIdle kills Usher while there is nothing to do, and waits until it has compared the
// registry with the Pods twice.
func killIdle(ctx context.Context, m *measurement, _ step) error {
	if err := m.killUsher(); err != nil {
		return err
	}
	return stage.Pause(ctx, m.options.Repair+afterRepair)
}

// removeEntry removes an entry by hand, which the watch must notice, and waits until the
// operator has restored it.
func removeEntry(ctx context.Context, m *measurement, p step) error {
	uid := m.entries.first()
	if uid == "" {
		return errors.New("there is no entry that could be taken out")
	}
	if err := m.server.Evict(ctx, string(uid)); err != nil {
		return err
	}
	if err := m.entries.awaitMoves(ctx, 1); err != nil {
		return err
	}
	return m.entries.await(ctx, p.replicas)
}

// account adds the measurements that are complete only afterwards.
func (m *measurement) account(ctx context.Context, r *result, before servers.Calls) error {
	own, theirs, err := m.audit.untilQuiet(ctx)
	if err != nil {
		return err
	}
	r.own, r.theirs = own, sum(theirs.writes)
	now, err := m.calls(ctx)
	if err != nil {
		return err
	}
	r.calls = now.Since(before)
	if r.moves, err = m.entries.end(ctx); err != nil {
		return err
	}
	r.tally, err = m.pods.end(), m.notePeak()
	r.least -= m.staying() + r.others
	r.peak = m.peak
	return err
}

func (m *measurement) calls(ctx context.Context) (servers.Calls, error) {
	if m.server == nil {
		return nil, nil
	}
	return m.server.Calls(ctx)
}

// cpu reads the CPU times of all processes.
func (m *measurement) cpu() (cpu, error) {
	pids := map[int]role{os.Getpid(): harness}
	for name, pid := range m.Cluster.PIDs() {
		switch name {
		case build.Etcd:
			pids[pid] = etcd
		case build.APIServer:
			pids[pid] = apiServer
		default:
			pids[pid] = controllers
		}
	}
	if m.running {
		pids[m.UsherPID()] = usher
	}
	if m.server != nil {
		pids[m.server.PID()] = registry
	}
	now := cpu{usher: m.past}
	var err error
	if now[otherPrograms], err = (process.Table{}).MachineCPU(); err != nil {
		return now, err
	}
	for pid, role := range pids {
		spent, err := process.Table{}.CPU(pid)
		if err != nil {
			return now, err
		}
		now[role] += spent
	}
	for role := range otherPrograms {
		now[otherPrograms] -= now[role]
	}
	return now, nil
}

func (m *measurement) cpuSince(before cpu) (cpu, error) {
	spent, err := m.cpu()
	for role := range spent {
		spent[role] -= before[role]
	}
	// The kernel accounts for processes and the machine separately: a small difference
	// means none.
	spent[otherPrograms] = max(spent[otherPrograms], 0)
	return spent, err
}

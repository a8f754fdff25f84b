// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/test/model"
)

const (
	// ownPort is where applications listen.
	ownPort = 80
	// leases is how long an entry outlives an application that ends without a word.
	leases = 8 * time.Second
)

// application is what the process of a Pod has registered, by registry.
type application struct {
	address string
	// ids are its entries, and unseen has the registries in which it has written one since the operator last listed them.
	// ended is since when its process does not run, zero while it does.
	ids    map[string][]string
	unseen map[string]bool
	ended  time.Time
	// out means that it was asked to leave, and has. A new process knows nothing of that.
	out bool
}

// ofApplications has Registrations and Registries of applications that register themselves.
func ofApplications(spec *usher.RegistrySpec) {
	if spec.Consul == nil && spec.Webhook == nil {
		return
	}
	spec.Consul, spec.Webhook = nil, nil
	spec.Eureka = &usher.EurekaRegistry{
		Address: "http://eureka.invalid", CredentialsSecret: &usher.SecretReference{Namespace: namespace, Name: "login"},
	}
}

// freeAddress is one that no Pod has whose containers may run.
func (s *simulation) freeAddress() string {
	taken := map[string]bool{}
	for _, pod := range s.pods() {
		taken[pod.Status.PodIP] = true
	}
	for n := 1; ; n++ {
		if address := fmt.Sprintf("10.1.0.%d", n); !taken[address] {
			return address
		}
	}
}

// registers reports whether the Pod's process runs, and may register itself. One that is let go does not begin to: nobody
// could take it out before it ends.
func (s *simulation) registers(pod *corev1.Pod) bool {
	request, err := usher.DeletionRequestOf(pod)
	released := pod.Labels[keyDelete] == "false" || plan.StateOf(pod) == apps.StatePreparingUpdate && pod.Labels[keyInPlace] == "false"
	drained := err == nil && request != nil && !controllerutil.ContainsFinalizer(pod, usher.Finalizer)
	return podread.IsTrue(pod, corev1.ContainersReady) && pod.DeletionTimestamp == nil && !released && !drained
}

// register has the Pod's application register itself in a registry: again, for the first time, or by a second entry.
func (s *simulation) register(name string, pod *corev1.Pod, second bool) {
	app := s.applications[pod.UID]
	if app == nil {
		app = &application{address: pod.Status.PodIP, ids: map[string][]string{}, unseen: map[string]bool{}}
		s.applications[pod.UID] = app
	}
	id := fmt.Sprintf("%s@%s", pod.Name, app.address)
	if second {
		id += "@again"
	}
	if !slices.Contains(app.ids[name], id) {
		app.ids[name] = append(app.ids[name], id)
	}
	app.unseen[name], app.out = true, false
	s.log("%s: registers itself as %s in %s", pod.Name, id, name)
	s.stores[name].Register(service, registry.Entry{ID: id, Address: app.address, Port: ownPort})
}

// sees notes that the operator has listed a registry.
func (s *simulation) sees(name string) {
	for _, app := range s.applications {
		delete(app.unseen, name)
	}
}

// deregister has the Pod's application deregister itself. An entry that comes and goes between two listings is none that
// an operator can know of, so it stays until a listing has shown it.
func (s *simulation) deregister(name string, uid types.UID) {
	if app := s.applications[uid]; app != nil && !app.unseen[name] {
		s.log("%s: deregisters itself in %s", uid, name)
		s.stores[name].Drop(service, app.ids[name]...)
		delete(app.ids, name)
	}
}

// act has the Pod's application do something: register itself, late or again or twice, or flap. Or its registry
// forgets what was overridden.
func (s *simulation) act(pod *corev1.Pod) {
	name := pick(s, registries...)
	if !s.registers(pod) {
		return
	}
	switch s.random.IntN(8) {
	case 0:
		s.register(name, pod, true)
	case 1:
		s.deregister(name, pod.UID)
	case 2:
		s.deregister(name, pod.UID)
		s.register(name, pod, false)
	default:
		s.register(name, pod, false)
	}
}

// lives has the applications of all Pods register themselves that have not.
func (s *simulation) lives() {
	for _, pod := range s.pods() {
		for _, name := range registries {
			if app := s.applications[pod.UID]; s.registers(pod) && (app == nil || len(app.ids[name]) == 0 && !app.out) {
				s.register(name, pod, false)
			}
		}
	}
}

// expire ends the entries of applications that have ended: some deregister themselves, others say nothing.
func (s *simulation) expire() {
	live := map[types.UID]bool{}
	for _, pod := range s.pods() {
		// An application that is asked has no override that would let its Pod go: its process ends, and its lease.
		live[pod.UID] = pod.Status.PodIP != "" && (!s.features.asks || pod.DeletionTimestamp == nil)
	}
	for uid, app := range s.applications {
		switch {
		case live[uid]:
		case app.ended.IsZero():
			app.ended = s.clock.Now()
		case s.clock.Now().Sub(app.ended) >= leases:
			delete(s.applications, uid)
			for _, name := range registries {
				s.stores[name].Drop(service, slices.DeleteFunc(app.ids[name], func(id string) bool { return s.has(name, id) })...)
			}
		}
	}
}

// has reports whether an application has an entry: the next Pod of a name may have the same one, with its override.
func (s *simulation) has(name, id string) bool {
	for _, app := range s.applications {
		if slices.Contains(app.ids[name], id) {
			return true
		}
	}
	return false
}

// owned are entries with the Pod whose address they have as their owner, for the rules that all runs have in common. An
// entry that is overridden is as good as gone.
func (s *simulation) owned(entries []registry.Entry) (owned []registry.Entry) {
	for _, e := range entries {
		if e.Override {
			continue
		}
		for _, pod := range s.pods() {
			if pod.Status.PodIP == e.Address && e.Port == ownPort {
				e.Owner = registry.Owner{Cluster: here, Namespace: namespace, Registration: service, Pod: pod.Name, PodUID: string(pod.UID)}
			}
		}
		if e.Owner.Pod != "" || e.ID == s.foreign.ID {
			owned = append(owned, e)
		}
	}
	return owned
}

// judgeOverrides checks that Usher touches the entries of the Pod that has their address, and of no other one.
func (s *simulation) judgeOverrides(name string, changes []registry.Change) {
	there := list.By(s.stores[name].Entries(service), func(e registry.Entry) string { return e.ID })
	for _, c := range changes {
		if !c.Op.Overrides() {
			continue
		}
		pod, e := s.pod(c.Entry.Owner.Pod), there[c.Entry.ID]
		switch {
		case pod == nil, string(pod.UID) != c.Entry.Owner.PodUID:
			s.fail("%s of %s, whose Pod %s is gone", c.Op, c.Entry.ID, c.Entry.Owner.Pod)
		case e.ID != "" && (pod.Status.PodIP != e.Address || e.Port != ownPort):
			s.fail("%s of %s, which is not at the address of %s", c.Op, e.ID, pod.Name)
		}
	}
}

// unguarded reports whether the guard does not know the Pod, as it was never registered with Usher, or not since its
// Registration let it go.
func (s *simulation) unguarded(uid types.UID) bool { return s.features.applications && !s.known[uid] }

// noteKnown notes whom the guard knows. A Registration that is deleted lets its Pods go as they are, but for those that
// drain: whoever asks later asks for a Pod that nobody takes out.
func (s *simulation) noteKnown(before, after *corev1.Pod) {
	r := model.Get[*usher.Registration](s.server.Objects, types.NamespacedName{Namespace: namespace, Name: service})
	ends := r == nil || r.DeletionTimestamp != nil
	drains := before.DeletionTimestamp != nil || after.Annotations[usher.AnnotationDeletionRequest] != "" ||
		plan.StateOf(before) == apps.StatePreparingDelete
	switch {
	case ends && !drains:
		delete(s.known, before.UID)
	case !ends && controllerutil.ContainsFinalizer(after, usher.Finalizer):
		s.known[before.UID] = true
	}
}

// checkApplications checks what is listed when all is settled: each Pod serves, no override outlives its reason.
func (s *simulation) checkApplications() {
	for _, name := range registries {
		serving := map[string]bool{}
		for _, e := range s.stores[name].Entries(service) {
			if e.Override {
				s.fail("the override of %s in %s outlives its reason", e.ID, name)
			}
			serving[e.Address] = serving[e.Address] || e.Weight > 0
		}
		for _, pod := range s.pods() {
			if !serving[pod.Status.PodIP] {
				s.fail("%s does not serve in %s", pod.Name, name)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/integration/scene"
)

// TestStoryExhaustion: tenants take what they can of Usher's time and memory. Meanwhile another
// tenant's Pods come and go in another registry, or in the same one.
func TestStoryExhaustion(t *testing.T) {
	plane := newPlane(t)
	for _, attack := range []struct {
		name  string
		begin func(*victim)
	}{
		{"a registry that does not answer", (*victim).slowRegistry}, {"endless lists", (*victim).endlessLists},
		{"Pods that flap", (*victim).flappingPods}, {"a thousand fat Registrations", (*victim).fatRegistrations},
	} {
		t.Run(attack.name, func(t *testing.T) {
			v := &victim{story: &story{Scene: plane.Begin(t)}, plane: plane}
			v.start("")
			v.registry = v.discovery()
			v.Make(v.Prop("CloneSet"), v.Prop("Registration"))
			v.comes("nobody attacks")
			attack.begin(v)
		})
	}
}

// victim is a tenant with a registry of its own.
type victim struct {
	*story
	plane    *scene.Plane
	registry *usherv1alpha1.Registry
	pods     int
}

// comes brings a Pod into service and out of it.
func (v *victim) comes(meanwhile string) {
	v.Helper()
	v.pods++
	began := time.Now()
	v.serving(fmt.Sprintf("pod%02d 10.0.0.1", v.pods))
	v.lists("10.0.0.1:80")
	v.Logf("while %s, a Pod is in service after %s", meanwhile, time.Since(began).Round(time.Millisecond))
	pod := v.Pod(fmt.Sprintf("demo-pod%02d", v.pods))
	v.Must(v.Delete(v.Context(), pod))
	v.Gone(pod)
	v.lists("")
}

// attacker is a tenant with a ready Pod, in a namespace of its own.
func (v *victim) attacker(registry string) *story {
	v.Helper()
	e := &story{Scene: v.plane.Begin(v.T)}
	e.Call("registry", registry)
	e.Make(e.Prop("Registration", "spec: {hooks: null}"))
	e.flapper("web")
	return e
}

// flapper makes a Pod that is ready.
func (s *story) flapper(name string) {
	s.Helper()
	s.Make(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "nginx"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:latest"}}}})
	s.Must(s.reports(name, "10.0.0.2", true))
}

// webhook is a registry that lists as the test says, and takes whatever is applied. It returns
// how many lists are under way.
func (v *victim) webhook(list func(w http.ResponseWriter, r *http.Request)) (registry string, lists *atomic.Int32) {
	v.Helper()
	lists = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/list") {
			_, _ = w.Write([]byte("{}")) // A caller that is gone has failed by itself.
			return
		}
		lists.Add(1)
		defer lists.Add(-1)
		list(w, r)
	}))
	v.Cleanup(server.Close)
	return v.register("webhook: {url: " + server.URL + "}, timeout: 1m").Name, lists
}

// slowRegistry answers nobody until the victim has been served.
func (v *victim) slowRegistry() {
	const attackers, workers = 40, 32
	answer := make(chan struct{})
	slow, lists := v.webhook(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(`{"entries":[]}`))
	})
	var waiting []*story
	for range attackers {
		waiting = append(waiting, v.attacker(slow))
	}
	v.Until("calls to the registry", func() string {
		return registrytest.Unless(lists.Load() == workers, fmt.Sprintf("are %d", lists.Load()))
	})
	v.comes(fmt.Sprintf("%d namespaces wait for a registry", attackers))
	if n := lists.Load(); n > workers {
		v.Errorf("a registry has %d calls at a time, want %d at most", n, workers)
	}
	close(answer)
	for _, e := range waiting { // none was forgotten
		e.Condition(e.Ref("Registration/nginx"), usherv1alpha1.ConditionReady, "True")
	}
}

// endlessLists fills the memory, as far as it is let.
func (v *victim) endlessLists() {
	limit := total() + 160<<20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(limit)))
	v.stop()
	v.start("") // with so much memory
	done := make(chan struct{})
	var most atomic.Uint64
	var sampler errgroup.Group
	sampler.Go(func() error {
		for {
			select {
			case <-done:
				return nil
			case <-time.After(scene.Poll):
				most.Store(max(most.Load(), total()))
			}
		}
	})
	spaces := []byte(strings.Repeat(" ", 1<<20))
	for range 8 {
		endless, _ := v.webhook(func(w http.ResponseWriter, r *http.Request) {
			for range 60 {
				if _, err := w.Write(spaces); err != nil {
					return
				}
			}
			<-r.Context().Done()
		})
		e := v.attacker(endless)
		e.Condition(e.Ref("Registration/nginx"), usherv1alpha1.ConditionReady, "False", "raise Usher's memory limit")
	}
	v.comes("8 registries answer without end")
	close(done)
	v.Must(sampler.Wait())
	v.Logf("the process takes %d MiB at most, of %d", most.Load()>>20, limit>>20)
	if most.Load() > limit {
		v.Error("that is too much")
	}
}

// total is the memory that the Go runtime holds, in bytes, as its limit counts.
func total() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// flappingPods become ready and unready ten times a second.
func (v *victim) flappingPods() {
	e := v.attacker(v.registry.Name)
	const pods = 10
	for i := range pods {
		e.flapper(fmt.Sprintf("flaps-%d", i))
	}
	done := make(chan struct{})
	var flapping errgroup.Group
	flaps := 0
	flapping.Go(func() error {
		for ready := false; ; ready = !ready {
			select {
			case <-done:
				return nil
			case <-time.After(50 * time.Millisecond):
			}
			for i := range pods {
				if err := e.reports(fmt.Sprintf("flaps-%d", i), "10.0.0.2", ready); err != nil {
					return err
				}
			}
			flaps++
		}
	})
	for range 3 {
		v.comes("Pods flap")
	}
	close(done)
	v.Must(flapping.Wait())
	v.Logf("%d Pods changed %d times each", pods, flaps)
}

// fatRegistrations are as many and as large as the API server takes, in the victim's registry.
func (v *victim) fatRegistrations() {
	e := v.attacker(v.registry.Name)
	before := total()
	var making errgroup.Group
	making.SetLimit(8)
	const many = 1000
	made := make(chan error, 1)
	fat := fatSpec(v.registry.Name)
	go func() {
		for i := range many {
			making.Go(func() error {
				return e.Create(e.Context(), e.Object(fmt.Sprintf("{apiVersion: usher.dev/v1alpha1, kind: Registration, metadata: {name: fat-%d}}", i),
					fat, fmt.Sprintf("spec: {instance: {service: %s-%04d-%s}}", e.Namespace, i, strings.Repeat("s", 230))))
			})
		}
		made <- making.Wait()
	}()
	for range 3 {
		v.comes("somebody writes fat Registrations")
	}
	v.Must(<-made)
	v.comes("there are a thousand of them")
	used := 0
	v.Until("the share of one namespace", func() string {
		v.Read(v.registry)
		used = 0
		for _, u := range v.registry.Status.Users {
			if u.Namespace == e.Namespace {
				used += len(u.Service)
			}
		}
		return registrytest.Unless(used > 64<<10, fmt.Sprintf("has %d bytes", used))
	})
	if used > 128<<10 {
		v.Errorf("the Registry records %d bytes of one namespace", used)
	}
	v.comes("the attacker has its share")
	v.Logf("they take %d MiB", (total()-before)>>20)
}

// fatSpec is nearly the largest spec that a Registration can have.
func fatSpec(registry string) string {
	var metadata, tags, requirements []string
	for i := range 24 {
		metadata = append(metadata, fmt.Sprintf("%s%02d: %s", strings.Repeat("k", 126), i, strings.Repeat("v", 512)))
	}
	for i := range 32 {
		tags = append(tags, fmt.Sprintf("%s%02d", strings.Repeat("t", 253), i))
	}
	for i := range 8 {
		var values []string
		for j := range 16 {
			values = append(values, fmt.Sprintf("%s%02d", strings.Repeat("v", 61), j))
		}
		requirements = append(requirements, fmt.Sprintf("{key: %s%02d, operator: NotIn, values: [%s]}", strings.Repeat("k", 61), i, strings.Join(values, ", ")))
	}
	return fmt.Sprintf("spec: {registries: [%s], selector: {matchLabels: {app: nginx}, matchExpressions: [%s]}, instance: {port: 80, metadata: {%s}, tags: [%s]}}",
		registry, strings.Join(requirements, ", "), strings.Join(metadata, ", "), strings.Join(tags, ", "))
}

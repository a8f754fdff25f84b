// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/integration/scene"
)

// TestStoryExhaustion: tenants take what they can of Usher's time and memory. Meanwhile another
// tenant's Pods come and go in another registry, or in the same one. Usher is a process with the
// rights and the memory of the chart's.
func TestStoryExhaustion(t *testing.T) {
	plane := newPlane(t)
	usher, memory := shipped(t, plane)
	for _, attack := range []struct {
		name  string
		begin func(*victim)
	}{
		{"a registry that does not answer", (*victim).slowRegistry}, {"endless lists", (*victim).endlessLists},
		{"Pods that flap", (*victim).flappingPods}, {"a thousand fat Registrations", (*victim).fatRegistrations},
		{"fat replicas", (*victim).fatReplicas}, {"fat Pods", (*victim).fatPods},
	} {
		t.Run(attack.name, func(t *testing.T) {
			v := &victim{late: map[string][]int{}, story: &story{Scene: plane.Begin(t)}, plane: plane, usher: usher, memory: memory}
			v.run()
			v.registry = v.discovery()
			v.Make(v.Prop("Registration", "spec: {hooks: null}"))
			v.within(start, "Usher starts")
			v.comes("nobody attacks")
			attack.begin(v)
		})
	}
}

// shipped builds Usher, and says how its process starts. memory is the chart's limit, in bytes.
func shipped(t *testing.T, plane *scene.Plane) (usher process.Spec, memory int64) {
	t.Helper()
	root := checktest.Must(filepath.Abs(scene.Root))(t)
	var values struct {
		Resources corev1.ResourceRequirements
	}
	text := checktest.Must(os.ReadFile(filepath.Join(root, "charts", "usher", "values.yaml")))(t)
	checktest.NoError(t, yaml.Unmarshal(text, &values))
	memory = values.Resources.Limits.Memory().Value()
	program := checkout.Program{Name: "build usher", Module: root, Pkg: "./cmd/usher", Out: filepath.Join(t.TempDir(), "usher")}
	checktest.NoError(t, program.Compile(t.Context(), nil))
	const user = "usher"
	checktest.NoError(t, checkout.Install(t.Context(), plane.WithWatch, plane.RESTConfig(), root, user))
	kubeconfig := checktest.Must(plane.UserKubeconfig(user))(t)
	return process.Spec{
		Name: "usher", Path: program.Out, Args: []string{"--kubeconfig", kubeconfig}, Log: filepath.Join(t.TempDir(), "usher.log"),
		Env: []string{fmt.Sprintf("GOMEMLIMIT=%d", memory)},
	}, memory
}

// victim is a tenant with a registry of its own.
type victim struct {
	*story
	plane    *scene.Plane
	usher    process.Spec
	memory   int64
	registry *usherv1alpha1.Registry
	pods     int
	// late are the writes in which late Pods came, by what the attacker did meanwhile.
	late map[string][]int
}

// run starts Usher, until stop or the end of the story. Then it must not have had more memory than
// it may.
func (v *victim) run() {
	v.Helper()
	p := checktest.Must(process.Start(v.usher))(v)
	v.stop = sync.OnceFunc(func() {
		peak, err := process.Table{}.PeakRSS(p.PID())
		if exit := p.ExitError(); exit != nil {
			err = exit
		}
		if v.Logf("Usher had %s at most, of %s", mebibytes(peak), mebibytes(v.memory)); peak > v.memory || err != nil {
			v.Errorf("that is too much, or it has ended: %v", err)
		}
		if err := p.Stop(context.Background(), 10*time.Second); err != nil {
			v.Error(err)
		}
	})
	v.Cleanup(v.stop)
}

func mebibytes(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes>>20<<20, resource.BinarySI)
}

// late and start are how many writes a client makes, one after the other, until a Pod is in service at the latest:
// while Usher runs, and while it starts. The clock is the API server's own pace, for a busy machine is slow in both.
const late, start = 100, 3000

func (v *victim) comes(meanwhile string) {
	v.Helper()
	v.within(late, meanwhile)
}

// mostLate is how many Pods may be late during one attack: what else the machine does may delay one or two. A
// tenant that starves Usher delays more, and after a late Pod another one follows at once.
const mostLate = 2

// within brings a Pod into service, within that many writes, and out of it.
func (v *victim) within(writes int, meanwhile string) {
	v.Helper()
	for {
		took := v.once(meanwhile)
		if took <= writes {
			return
		}
		if v.late[meanwhile] = append(v.late[meanwhile], took); len(v.late[meanwhile]) > mostLate {
			v.Errorf("while %s, a client makes %d writes until a Pod is in service; %d are allowed", meanwhile, v.late[meanwhile], writes)
			return
		}
	}
}

// once brings a Pod into service and out of it, and returns how many writes a client makes until it is in service.
func (v *victim) once(meanwhile string) (writes int) {
	v.Helper()
	v.pods++
	name, began := fmt.Sprintf("pod-%02d", v.pods), time.Now()
	count := v.writes(name)
	v.flapper(name)
	v.lists("10.0.0.2:80")
	writes = count()
	v.Logf("while %s, a Pod is in service after %s and %d writes", meanwhile, time.Since(began).Round(time.Millisecond), writes)
	pod := v.Pod(name)
	v.Must(v.Delete(v.Context(), pod))
	v.Gone(pod)
	v.lists("")
	return writes
}

// writes has a client write a ConfigMap again and again, one write after the other. count ends that, and returns
// how many writes were made.
func (v *victim) writes(name string) (count func() int) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: name}}
	stop, made := make(chan struct{}), make(chan int, 1)
	write := func(n int) error {
		if n == 0 {
			return v.Create(v.Context(), object)
		}
		object.Data = map[string]string{"write": fmt.Sprint(n)}
		return v.Update(v.Context(), object)
	}
	go func() {
		n := 0
		defer func() { made <- n }()
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := write(n); err != nil {
				if v.Context().Err() == nil {
					v.Errorf("write ConfigMap %s: %v", name, err)
				}
				return
			}
		}
	}()
	return func() int {
		close(stop)
		return <-made
	}
}

// attacker is a tenant with a ready Pod, in a namespace of its own.
func (v *victim) attacker(name string) *story {
	v.Helper()
	e := &story{Scene: v.plane.Begin(v.T)}
	e.Call("registry", name)
	e.Make(e.Prop("Registration", "spec: {hooks: null}"))
	e.flapper("web")
	return e
}

// flapper makes a Pod that is ready.
func (s *story) flapper(name string) {
	s.Helper()
	s.Make(s.Prop("Pod", "metadata: {name: "+name+"}"))
	s.Must(s.reports(name, "10.0.0.2", true))
}

// webhook is a registry that lists as the test says, and takes whatever is applied. It returns
// how many lists are under way.
func (v *victim) webhook(list func(w http.ResponseWriter, r *http.Request)) (registry string, lists *atomic.Int32) {
	v.Helper()
	lists = &atomic.Int32{}
	url := registrytest.Serve(v.T, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/list") {
			_, _ = w.Write([]byte("{}")) // A caller that is gone has failed by itself.
			return
		}
		lists.Add(1)
		defer lists.Add(-1)
		list(w, r)
	}))
	return v.register("webhook: {url: " + url + "}, timeout: 1m").Name, lists
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
	for range 3 {
		v.comes(fmt.Sprintf("%d namespaces wait for a registry", attackers))
	}
	if n := lists.Load(); n > workers {
		v.Errorf("a registry has %d calls at a time, want %d at most", n, workers)
	}
	close(answer)
	for _, e := range waiting { // none was forgotten
		e.Condition(e.Ref("Registration/nginx"), usherv1alpha1.ConditionReady, "True")
	}
}

// endlessLists fill the memory, as far as they are let: with bytes, with entries that are small
// only as text, and with as many entries as a registry may list.
func (v *victim) endlessLists() {
	var system corev1.Namespace
	v.Must(v.Get(v.Context(), client.ObjectKey{Name: "kube-system"}, &system))
	one := func(i int) string { // which looks like Usher's own, of nobody
		return fmt.Sprintf(`{"id":"%07d","version":"1","owner":{"cluster":%q,"uid":"x"}},`, i, system.UID)
	}
	var most strings.Builder
	for i := range v.memory / 8 * 7 / 8 / 4 / registry.EntryBytes * 9 / 10 {
		most.WriteString(one(int(i)))
	}
	for _, list := range []struct {
		registries     int
		what, repeated string
		times          int
		end, says      string
	}{
		{4, "bytes without end", strings.Repeat(" ", 1<<20), 60, "", "raise Usher's memory limit"},
		{4, "millions of entries", strings.Repeat("{},", 2<<20), 1, `{}]}`, "raise Usher's memory limit"},
		{12, "as much as they may", most.String(), 1, strings.TrimSuffix(one(9999999), ",") + `]}`, "entries that Usher did not write"},
	} {
		for range list.registries {
			endless, _ := v.webhook(func(w http.ResponseWriter, r *http.Request) {
				_, err := w.Write([]byte(`{"entries":[`))
				for range list.times {
					if err != nil {
						return
					}
					_, err = w.Write([]byte(list.repeated))
				}
				if list.end == "" {
					<-r.Context().Done()
				}
				_, _ = w.Write([]byte(list.end)) // A caller that is gone has failed by itself.
			})
			e := v.attacker(endless)
			e.Condition(e.Ref("Registration/nginx"), usherv1alpha1.ConditionReady, "False", list.says)
		}
		v.comes("registries list " + list.what)
	}
}

// flappingPods become ready and unready ten times a second.
func (v *victim) flappingPods() {
	e := v.attacker(v.registry.Name)
	const pods, times, every = 5, 100, 100 * time.Millisecond
	began := time.Now()
	var flapping errgroup.Group
	for i := range pods {
		name := fmt.Sprintf("flaps-%d", i)
		e.flapper(name)
		flapping.Go(func() error {
			beat := time.NewTicker(every)
			defer beat.Stop()
			for n := range times {
				<-beat.C
				if err := e.reports(name, "10.0.0.2", n%2 == 1); err != nil {
					return err
				}
			}
			return nil
		})
	}
	v.meanwhile("Pods flap", flapping.Wait)
	v.Logf("%d Pods changed %d times each within %s", pods, times, time.Since(began).Round(time.Millisecond))
	e.Condition(e.Ref("Pod/flaps-0"), string(usherv1alpha1.ConditionRegistered), "True")
}

// meanwhile brings Pods into service until something has been done.
func (v *victim) meanwhile(what string, do func() error) {
	v.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	for {
		v.comes(what)
		select {
		case err := <-done:
			v.Must(err)
			return
		default:
		}
	}
}

// fatRegistrations are as many and as large as the API server takes, in the victim's registry.
func (v *victim) fatRegistrations() {
	e := v.attacker(v.registry.Name)
	var making errgroup.Group
	making.SetLimit(8)
	const many = 1000
	fat := e.Object("{apiVersion: usher.dev/v1alpha1, kind: Registration}", fatSpec(v.registry.Name)) // read once: it takes long
	v.meanwhile("somebody writes fat Registrations", func() error {
		for i := range many {
			one := fat.DeepCopy()
			one.SetName(fmt.Sprintf("fat-%d", i))
			service := fmt.Sprintf("%s-%04d-%s", e.Namespace, i, strings.Repeat("s", 230))
			making.Go(func() error {
				return cmp.Or(unstructured.SetNestedField(one.Object, service, "spec", "instance", "service"), e.Create(e.Context(), one))
			})
		}
		return making.Wait()
	})
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
	v.stop()
	v.run()
	v.within(start, "Usher starts again")
}

// fatPods are as large as the API server takes, and never start. Half of them have a controller.
func (v *victim) fatPods() {
	e := v.attacker(v.registry.Name)
	const many = 200
	var env []corev1.EnvVar
	for i := range 40 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("LONG_%02d", i), Value: strings.Repeat("v", 30<<10)})
	}
	v.meanwhile("somebody creates fat Pods", func() error {
		for i := range many {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: fmt.Sprintf("fat-%d", i)}}
			if i%2 == 1 {
				pod.OwnerReferences = []metav1.OwnerReference{{
					APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "fat", UID: "5a7e6f7c-0000-0000-0000-000000000000", Controller: new(true),
				}}
			}
			pod.Spec.Containers = []corev1.Container{{Name: "fat", Image: "fat", Env: env}}
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
			if err := e.Create(e.Context(), pod); err != nil {
				return err
			}
		}
		return nil
	})
	v.comes(fmt.Sprintf("there are %d fat Pods", many))
	v.stop()
	v.run()
	v.within(start, "Usher starts again")
}

// fatReplicas are those of a CloneSet whose template has nearly as many annotations as a Pod may have.
func (v *victim) fatReplicas() {
	e := v.attacker(v.registry.Name)
	const replicas = 100
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "fat"}, Annotations: map[string]string{"example.com/notes": strings.Repeat("n", 200<<10)},
	}}
	template.Spec.Containers = []corev1.Container{{Name: "fat", Image: "fat:1"}}
	set := &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "fat"}}
	set.Spec.Replicas, set.Spec.Template = new(int32(replicas)), appsv1alpha1.NewPodTemplate(template)
	set.Spec.Selector.MatchLabels = map[string]appsv1alpha1.LabelValue{"app": "fat"}
	v.meanwhile("a CloneSet creates fat replicas", func() error {
		if err := e.Create(e.Context(), set); err != nil {
			return err
		}
		e.Until("fat replicas", func() string {
			e.Read(set)
			return registrytest.Unless(set.Status.Replicas == replicas, fmt.Sprintf("are %d", set.Status.Replicas))
		})
		return nil
	})
	v.comes(fmt.Sprintf("there are %d fat replicas", replicas))
	v.stop()
	v.run()
	v.within(start, "Usher starts again")
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

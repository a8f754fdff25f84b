// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/neg"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/servers/run"
)

// story is in one of its namespaces, and the witness saw no Pod end too early in any of them.
type story struct {
	*scene.Scene
	namespaces map[string]*scene.Scene
	// program is the kubectl plugin, which has the rights of a kubeconfig.
	program, kubeconfig string
	fewest, rounds      func() int
	// foreseen are the waves of a plan, noted the identities of Pods.
	foreseen []string
	noted    []types.UID
}

// TestStories plays the stories in testdata/stories, or in testdata/evictionrequests (evictionsEnv), each in a
// namespace of its own, called a.
func TestStories(t *testing.T) {
	files := "testdata/stories/*.txt"
	if evictionRequests {
		files = "testdata/evictionrequests/*.txt"
	}
	scenariotest.Stories[*story]{Files: files, Words: words, Alone: shared, Begin: func(t *testing.T) *story {
		t.Helper()
		a := begin(t)
		return &story{Scene: a, namespaces: map[string]*scene.Scene{"a": a}, kubeconfig: plane.Kubeconfig()}
	}}.Play(t)
}

// shared fits the steps about what all namespaces have: nodes, the registry's outages, the cloud's clock, and the
// commands that look at the whole cluster.
var shared = regexp.MustCompile(`node-\d|^the registry is|clock|^(until )?usher (doctor|drain node|status -A)`)

func begin(t *testing.T) *scene.Scene {
	t.Helper()
	s := plane.Begin(t)
	const podGate = `spec: {readinessGates: [{conditionType: usher.dev/registered}]}`
	for name, gate := range map[string]string{"Pod gate": podGate, "gate": "spec: {template: {" + podGate + "}}"} {
		if policies {
			gate = "{}"
		}
		s.Call(name, gate)
	}
	s.Call("responders", `spec: {template: {spec: {evictionResponders: [{name: usher.dev/drain, priority: 20000}]}}}`)
	s.Call("AWS", cloud.aws.URL())
	s.Call("Google Cloud", cloud.gcp.URL())
	s.Call("key of Google Cloud", strconv.Quote(neg.Key(cloud.gcp.URL())))
	t.Cleanup(func() {
		if used := callers.endedInUse(s.Namespace); len(used) > 0 {
			t.Errorf("ended while the load balancer had them:\n%s", strings.Join(used, "\n"))
		}
		if early := callers.tooEarly(s.Namespace); len(early) > 0 {
			t.Errorf("deleted while callers could use them (the API server has gone on without the guard %d times):\n%s",
				unanswered(t), strings.Join(early, "\n"))
		}
	})
	return s
}

// unanswered is how often the API server has gone on without the guard's answer, as after a timeout: then
// the machine was too slow, and the guard did nothing wrong.
func unanswered(t *testing.T) (n int) {
	t.Helper()
	api := run.HTTP{Address: plane.Server(), Client: checktest.Must(rest.HTTPClientFor(plane.RESTConfig()))(t)}
	families := checktest.Must(api.Metrics(context.Background(), "/metrics"))(t)
	for _, metric := range families["apiserver_admission_webhook_fail_open_count"].GetMetric() {
		n += int(metric.GetCounter().GetValue())
	}
	return n
}

// words are what a step can begin with.
var words = scene.Words(func(s *story) *scene.Scene { return s.Scene }, slices.Concat(askedWords, underWay, evictionWords, []scenariotest.Word[*story]{
	// What people and controllers do.
	{Name: "delete Pods --all", Does: "deletes the Pods of the namespace as a collection",
		Run: func(s *story, _ string) {
			s.Must(s.DeleteAllOf(s.Context(), &corev1.Pod{}, client.InNamespace(s.Namespace)))
		}},
	{Name: "delete --ignore-not-found", Args: "KIND/NAME", Does: "deletes an object, if it exists",
		Run: func(s *story, ref string) { s.Must(client.IgnoreNotFound(s.Delete(s.Context(), s.Ref(ref)))) }},
	{Name: "namespace", Args: "NAME",
		Does: "goes to another namespace of the story, which is made when a story first goes there",
		Run:  (*story).enter},
	{Name: "delete --force", Args: "KIND/NAME", Does: "deletes an object with a grace period of 0",
		Run: func(s *story, ref string) { s.Must(s.Delete(s.Context(), s.Ref(ref), client.GracePeriodSeconds(0))) }},
	{Name: "delete --grace-period", Args: "SECONDS KIND/NAME",
		Does: "deletes an object with a grace period, and repeats what is refused as clients of client-go do",
		Run: func(s *story, rest string) {
			seconds, ref, _ := strings.Cut(rest, " ")
			s.Must(s.Delete(s.Context(), s.Ref(ref), client.GracePeriodSeconds(scenariotest.Number(seconds))))
		}},
	{Name: "evict all", Args: "[NODE]",
		Does: "evicts all Pods, or those on a node, as kubectl drain does: it repeats what is refused " +
			"until they are gone",
		Run: (*story).evictAll},
	{Name: "eviction refused", Args: "POD TEXT",
		Does: "evicts a Pod once, which has to be refused with the text",
		Run:  func(s *story, rest string) { s.Must(s.refused(rest)) }},
	{Name: "eviction refused in the end", Args: "POD TEXT",
		Does: "evicts a Pod until that is refused with the text",
		Run:  (*story).refusedInTheEnd},
	{Name: "granted", Args: "POD",
		Does: "has a PodDisruptionBudget count a Pod as evicted, as the API server does before an eviction that fails",
		Run:  (*story).granted},
	{Name: "deletion refused", Args: "POD TEXT",
		Does: "deletes a Pod once, which has to be refused with the text",
		Run:  func(s *story, rest string) { s.deletionRefused(plane.RESTConfig(), rest, nil) }},
	{Name: "deletion refused --grace-period", Args: "SECONDS POD TEXT",
		Does: "deletes a Pod once with a grace period, which has to be refused with the text",
		Run: func(s *story, rest string) {
			seconds, rest, _ := strings.Cut(rest, " ")
			s.deletionRefused(somebody(), rest, new(int64(scenariotest.Number(seconds))))
		}},
	{Name: "taint", Args: "NODE", Does: "taints a node until the end of the story, which evicts its Pods",
		Run: (*story).taint},
	{Name: "age", Args: "POD",
		Does: "makes the request for the Pod's deletion two minutes older, and the end of its drain",
		Run:  (*story).age},
	{Name: "cordon", Args: "NODE", Does: "cordons a node until the end of the story",
		Run: func(s *story, node string) { s.cordon(node, true) }},
	{Name: "node has", Args: "NODE taint KEY | condition TYPE STATUS TEXT",
		Does: "has a node have a taint, or a condition with this reason, until the end of the story", Run: (*story).nodeHas},
	{Name: "node stays", Args: "NODE", Does: "takes the taints of a node off", Run: func(s *story, node string) {
		s.Change(s.Ref("Node/"+node), `spec: {taints: %s}`, "null")
	}},
	{Name: "uncordon", Args: "NODE", Does: "uncordons a node",
		Run: func(s *story, node string) { s.cordon(node, false) }},
	{Name: "readiness gates", Args: "enabled | disabled",
		Does: "labels the namespace for the readiness gate, and waits until new Pods get it, or no longer",
		Run:  (*story).gates},
	{Name: "the registry is down", Does: "breaks the registry until the end of the story",
		Run: func(s *story, _ string) {
			callers.registry.Break(memory.Down)
			s.Cleanup(func() { callers.registry.Break(memory.None) })
		}},
	{Name: "applications register themselves", Does: "has the application of each Pod register itself as soon as it is Ready, from now on",
		Run: func(s *story, _ string) { callers.applicationsRun(s.Namespace, s.Pods(), false) }},
	{Name: "the registry forgets", Does: "has the registry lose what applications have registered, who then register themselves anew",
		Run: func(s *story, _ string) { callers.applicationsRun(s.Namespace, s.Pods(), true) }},
	{Name: "overridden", Args: "N", Does: "waits until N entries of applications are overridden",
		Run: func(s *story, want string) {
			s.Until(want+" overrides", func() string {
				out := list.Only(callers.registry.Entries(s.Namespace), func(e registry.Entry) bool { return e.Override })
				return registrytest.Unless(fmt.Sprint(len(out)) == want, fmt.Sprintf("there are %d", len(out)))
			})
		}},
	{Name: "the registry is up", Does: "mends the registry",
		Run: func(*story, string) { callers.registry.Break(memory.None) }},

	// Pods.
	{Name: "the first Pod is", Args: "NAME", Does: "gives a name to the first Pod",
		Run: func(s *story, name string) { s.Call(name, s.Pods()[0].Name) }},
	{Name: "the last Pod is", Args: "NAME", Does: "gives a name to the last Pod",
		Run: func(s *story, name string) { pods := s.Pods(); s.Call(name, pods[len(pods)-1].Name) }},
	{Name: "the drained Pod is", Args: "NAME",
		Does: "waits for a Pod that is to be deleted and is in no registry, and gives it a name",
		Run:  (*story).findDrained},
	{Name: "note Pods", Does: "notes the Pods in Services",
		Run: func(s *story, _ string) { s.noted = callers.inServices(s.Namespace) }},
	{Name: "same Pods", Does: "fails unless the Pods in Services are those that were noted",
		Run: func(s *story, _ string) { s.Same("the Pods in Services", callers.inServices(s.Namespace), s.noted) }},
	{Name: "no condition but", Args: "TYPE", Does: "fails if another condition of the CloneSet is True",
		Run: (*story).onlyCondition},

	// What callers have.
	{Name: "in service", Args: "N", Does: "waits until there are N Pods, all in the registry",
		Run: func(s *story, n string) { s.listed(n, s.registered) }},
	{Name: "served", Args: "N",
		Does: "waits until there are N Pods, all with the readiness gate and in the Service",
		Run:  (*story).served},
	{Name: "entries", Args: "N", Does: "waits until the registry has N entries",
		Run: func(s *story, n string) {
			s.Until(n+" entries", func() string {
				have := len(s.registered())
				return registrytest.Unless(fmt.Sprint(have) == n, fmt.Sprintf("there are %d", have))
			})
		}},
	{Name: "no Pods", Does: "waits until there are no Pods", Run: func(s *story, _ string) {
		s.Until("no Pods", func() string {
			pods := len(s.Pods())
			return registrytest.Unless(pods == 0, fmt.Sprintf("there are %d", pods))
		})
	}},
	{Name: "in Services", Args: "N", Does: "waits until Services have N Pods, whatever Pods there are",
		Run: (*story).inServices},
	{Name: "have left", Args: "N | POD",
		Does: "fails unless N Pods have left the registry at least once, or this one alone",
		Run:  (*story).haveLeft},
	{Name: "count entries", Does: "begins to count entries in the registry",
		Run: func(s *story, _ string) { s.fewest = callers.count(s.Namespace) }},
	{Name: "fewest entries", Args: "N", Does: "fails unless there were N entries when there were fewest",
		Run: func(s *story, n string) { s.Same("the fewest entries", s.fewest(), n) }},
	{Name: "at least", Args: "N entries", Does: "fails if there were fewer entries at any time",
		Run: (*story).atLeast},
	{Name: "count rounds", Does: "begins to count how often new Pods are created and then others leave",
		Run: func(s *story, _ string) { s.rounds = s.countRounds() }},
	{Name: "rounds", Args: "N", Does: "fails unless there were N such rounds",
		Run: func(s *story, n string) { s.Same("rounds", s.rounds(), n) }},
	{Name: "Pods on", Args: "NODE [PREFIX]: N",
		Does: "waits until N Pods are on the node, whose names begin with PREFIX",
		Run:  (*story).podsOn},
	{Name: "not witnessed", Does: "lets Pods be deleted while the registry lists them: this story forces it",
		Run: func(s *story, _ string) { callers.forget(s.Namespace) }},

	// Load balancers of clouds.
	{Name: "targets", Args: "N",
		Does: "waits until the load balancer has N targets, all healthy, and they are the Pods that there are",
		Run:  (*story).targets},
	{Name: "ended in use", Args: "N",
		Does: "fails unless N Pods have ended, or were updated in place, while the load balancer had them as targets; " +
			"without this word a story fails if there is one",
		Run: (*story).endedInUse},
	{Name: "the load balancer's clock", Args: "stops | runs",
		Does: "has targets stay in their states until the end of the story, or go on",
		Run:  (*story).clock},
	{Name: "the cloud's gates", Args: "STATUS STATUS",
		Does: "waits until the readiness gate of the cloud's controller has had these statuses in each Pod, in this order",
		Run:  (*story).cloudGates},

	// The kubectl plugin.
	{Name: "as", Args: "USER", Does: "runs the plugin with the rights of a user from here on",
		Run: func(s *story, user string) { s.kubeconfig = checktest.Must(plane.UserKubeconfig(user))(s) }},
	{Name: "usher", Args: "ARGS",
		Does: "runs the kubectl plugin in the story's namespace; what it prints stands below, and its " +
			"exit code",
		Run: func(s *story, args string) { s.usher(args) }},
	{Name: "until usher", Args: "ARGS", Does: "runs the plugin until it prints what stands below",
		Until: true, Run: func(s *story, args string) { s.usher(args) }},
	{Name: "usher completes", Args: "TYPED",
		Does: "runs the completion for somebody who has typed this; what it offers stands below",
		Run:  func(s *story, typed string) { s.usher("__complete " + typed) }},
	{Name: "file", Args: "PATCH",
		Does: "writes the CloneSet with a merge patch to a file, which is called file",
		Run:  (*story).file},
	{Name: "foresee", Args: "ARGS",
		Does: "plans a change of the CloneSet with the plugin, and notes what it foresees",
		Run:  (*story).foresee},
	{Name: "as foreseen", Does: "fails unless the last two updates are those foreseen",
		Run: func(s *story, _ string) { s.asForeseen() }},
	{Name: "dashboard",
		Does: "pauses the CloneSet, and resumes it and undoes a change in the page of kubectl usher " +
			"dashboard",
		Run: func(s *story, _ string) { s.dashboard() }},
}))

// enter goes to another namespace, which is made when it is first entered.
func (s *story) enter(name string) {
	if s.namespaces[name] == nil {
		s.namespaces[name] = begin(s.T)
	}
	s.Scene = s.namespaces[name]
}

// registered are the Pods that the registry lists. What applications have registered has the Pod with its address, if
// callers get it.
func (s *story) registered() (uids []types.UID) {
	pods := s.Pods()
	for _, e := range callers.registry.Entries(s.Namespace) {
		pod := list.Find(pods, func(pod *corev1.Pod) bool { return pod.Status.PodIP == e.Address })
		switch {
		case e.Owner != registry.Owner{}:
			uids = append(uids, types.UID(e.Owner.PodUID))
		case e.Weight > 0 && pod != nil:
			uids = append(uids, pod.UID)
		}
	}
	return uids
}

// listed waits until there are just so many Pods, and they are those listed.
func (s *story) listed(count string, listed func() []types.UID) {
	s.Helper()
	n := scenariotest.Number(count)
	s.Until(count+" Pods in service", func() string {
		listed, pods := listed(), s.Pods()
		for _, pod := range pods {
			if !slices.Contains(listed, pod.UID) || pod.DeletionTimestamp != nil {
				return pod.Name + " is not in service"
			}
		}
		return registrytest.Unless(len(pods) == n && len(listed) == n, fmt.Sprintf("there are %d Pods, %d listed", len(pods), len(listed)))
	})
}

// served waits until there are just so many Pods, all with the gate, and the Service lists them.
func (s *story) served(count string) {
	s.listed(count, func() []types.UID { return callers.inServices(s.Namespace) })
	for _, pod := range s.Pods() {
		s.Has(&pod, "spec: {readinessGates: [{conditionType: usher.dev/registered}]}")
	}
}

// inServices waits until Services have that many Pods, whatever Pods there are.
func (s *story) inServices(count string) {
	s.Until(count+" Pods in Services", func() string {
		n := len(callers.inServices(s.Namespace))
		return registrytest.Unless(fmt.Sprint(n) == count, fmt.Sprintf("there are %d", n))
	})
}

// gates asks the API server for the readiness gate on new Pods, or no longer, until it does that. One
// that cannot leaves it to the Pods.
func (s *story) gates(how string) {
	s.Change(s.Ref("Namespace/"+s.Namespace), `metadata: {labels: {usher.dev/readiness-gate: %s}}`, how)
	patch := map[string]string{"enabled": s.Expand("{Pod gate}"), "disabled": "{}"}[how]
	s.Until("the policy to know of the namespace and the Registration", func() string {
		probe := s.Prop("Pod", "metadata: {name: probe}", patch)
		s.Must(s.Create(s.Context(), probe, client.DryRunAll))
		_, gated := probe.Object["spec"].(map[string]any)["readinessGates"]
		return registrytest.Unless(gated == (how == "enabled"), fmt.Sprintf("a Pod has a gate: %t", gated))
	})
}

// haveLeft checks how many Pods have left the registry at least once, or which one.
func (s *story) haveLeft(want string) {
	left := callers.leavers(s.Namespace)
	if !slices.Equal(left, []string{want}) {
		s.Same(fmt.Sprintf("Pods that have left the registry, %v", left), len(left), want)
	}
}

// findDrained waits for a Pod that is to be deleted, and is in no registry any more.
func (s *story) findDrained(name string) {
	s.Until("a Pod to be drained", func() string {
		found := list.Find(s.Pods(), func(pod *corev1.Pod) bool {
			return pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StatePreparingDelete) && pod.Labels["web.usher.dev/drained"] != "true"
		})
		if found != nil {
			s.Call(name, found.Name)
		}
		return registrytest.Unless(found != nil, "none is")
	})
}

// onlyCondition checks that the set has no other condition that is True.
func (s *story) onlyCondition(kind string) {
	for _, c := range s.Conditions(s.Ref("CloneSet/web")) {
		if c.Type != kind && c.Status == metav1.ConditionTrue {
			s.Errorf("a wait is reported as %s: %s", c.Type, c.Message)
		}
	}
}

// atLeast is "4 entries": callers never had fewer.
func (s *story) atLeast(rest string) {
	want := scenariotest.Number(strings.TrimSuffix(rest, " entries"))
	if n := s.fewest(); n < want {
		s.Errorf("only %d Pods were in service, want %d", n, want)
	}
}

// refused is "POD TEXT": an eviction, asked for once as by a client that does not come back, is
// refused with the text.
func (s *story) refused(rest string) error {
	name, text, _ := strings.Cut(rest, " ")
	once := checktest.Must(kubernetes.NewForConfig(plane.RESTConfig()))(s)
	err := once.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name(name).SubResource("eviction").
		MaxRetries(0).Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}}).Do(s.Context()).Error()
	if apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), text) {
		return nil
	}
	return fmt.Errorf("evict %s: %w, want a refusal with %q", name, err, text)
}

// deletionRefused is "POD TEXT": a deletion that is asked for once is refused with the text. A nil grace period is the
// Pod's own.
func (s *story) deletionRefused(config *rest.Config, about string, grace *int64) {
	name, text, _ := strings.Cut(about, " ")
	once := checktest.Must(kubernetes.NewForConfig(config))(s)
	err := once.CoreV1().RESTClient().Delete().Namespace(s.Namespace).Resource("pods").Name(name).MaxRetries(0).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: grace}).Do(s.Context()).Error()
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), text) {
		s.Fatalf("delete %s: %v, want a refusal with %q", name, err, text)
	}
}

// taint taints a node, which evicts its Pods, until the end of the test.
func (s *story) taint(name string) {
	const patch = `spec: {taints: %s}`
	s.Change(s.Ref("Node/"+name), patch, `[{key: example.com/broken, effect: NoExecute}]`)
	s.Cleanup(func() {
		checktest.NoError(s, s.Patch(context.Background(), s.Ref("Node/"+name), s.MergePatch(patch, "null")))
	})
}

// nodeHas has a node say that it goes: "NODE taint KEY" or "NODE condition TYPE STATUS REASON".
func (s *story) nodeHas(rest string) {
	words := strings.Fields(rest)
	node := s.Ref("Node/" + words[0])
	if words[1] == "taint" {
		const patch = `spec: {taints: %s}`
		s.Change(node, patch, "[{key: "+words[2]+", effect: NoSchedule}]")
		s.Cleanup(func() { checktest.NoError(s, s.Patch(context.Background(), node, s.MergePatch(patch, "null"))) })
		return
	}
	const patch = `{"status": {"conditions": [%s]}}`
	put := func(ctx context.Context, condition string) error {
		return s.SubResource("status").Patch(ctx, node.DeepCopyObject().(client.Object),
			client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, patch, condition)))
	}
	s.Must(put(s.Context(), fmt.Sprintf(`{"type": %q, "status": %q, "reason": %q}`, words[2], words[3], words[4])))
	s.Cleanup(func() {
		checktest.NoError(s, put(context.Background(), fmt.Sprintf(`{"type": %q, "$patch": "delete"}`, words[2])))
	})
}

func (s *story) refusedInTheEnd(rest string) {
	s.Until("the refusal", func() string {
		err := s.refused(rest)
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
}

// age makes a request two minutes older, and the end of the drain.
func (s *story) age(name string) {
	pod := s.Pod(name)
	request := checktest.Must(usherv1alpha1.DeletionRequestOf(pod))(s)
	request.At = metav1.NewMicroTime(request.At.Add(-2 * time.Minute))
	if request.Drained != nil {
		request.Drained = new(metav1.NewMicroTime(request.Drained.Add(-2 * time.Minute)))
	}
	text := checktest.Must(json.Marshal(request))(s)
	s.Change(pod, `metadata: {annotations: {%s: %q}}`, usherv1alpha1.AnnotationDeletionRequest, text)
}

// evictAll evicts all Pods, or those on a node, side by side until they are gone. Like kubectl drain, it comes back five
// seconds after a refusal.
func (s *story) granted(pod string) {
	// The budget counts the Pod for two minutes from then: for longer than a story waits.
	at := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	status := fmt.Sprintf(`{"status": {"disruptionsAllowed": 0, "disruptedPods": {%q: %q}}}`, pod, at)
	budget := s.Ref("PodDisruptionBudget/web")
	s.Must(s.SubResource("status").Patch(s.Context(), budget, client.RawPatch(types.MergePatchType, []byte(status))))
}

func (s *story) evictAll(node string) {
	var group errgroup.Group
	for _, pod := range s.Pods() {
		if node != "" && pod.Spec.NodeName != node {
			continue
		}
		group.Go(func() error {
			return wait.PollUntilContextTimeout(s.Context(), 5*time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
				err := s.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{})
				if apierrors.IsTooManyRequests(err) {
					return false, nil
				}
				return true, client.IgnoreNotFound(err)
			})
		})
	}
	s.Must(group.Wait())
}

// cordon cordons a node until the end of the test, or uncordons it.
func (s *story) cordon(name string, yes bool) {
	const patch = `spec: {unschedulable: %t}`
	s.Change(s.Ref("Node/"+name), patch, yes)
	s.Cleanup(func() {
		checktest.NoError(s, s.Patch(context.Background(), s.Ref("Node/"+name), s.MergePatch(patch, false)))
	})
}

// podsOn is "NODE PREFIX: N": it waits until so many Pods are on a node, whose names begin like that.
func (s *story) podsOn(rest string) {
	where, want, _ := strings.Cut(rest, ": ")
	node, prefix, _ := strings.Cut(where, " ")
	s.Until(want+" Pods on "+where, func() string {
		there := list.Only(s.Pods(), func(p corev1.Pod) bool { return p.Spec.NodeName == node && strings.HasPrefix(p.Name, prefix) })
		return registrytest.Unless(fmt.Sprint(len(there)) == want, fmt.Sprintf("there are %d", len(there)))
	})
}

// countRounds counts how often Pods are created and then others leave, until the returned function is called. That
// waits until the watch has shown the end of each Pod that is gone: on a busy machine it lags.
func (s *story) countRounds() (stop func() int) {
	events := checktest.Must(s.Watch(s.Context(), &corev1.PodList{}, client.InNamespace(s.Namespace)))(s)
	var seen roundsSeen
	var counting sync.WaitGroup
	counting.Go(func() {
		for event := range events.ResultChan() {
			seen.add(event)
		}
	})
	return func() int {
		s.Until("the watch to catch up", func() string { return seen.lacks(s.Pods()) })
		events.Stop()
		counting.Wait()
		return seen.rounds
	}
}

// roundsSeen is what a watch of Pods has shown.
type roundsSeen struct {
	mu sync.Mutex
	// alive are Pods whose end it has not shown, and leaving those that have begun to leave.
	alive, leaving map[string]bool
	created        bool
	rounds         int
}

func (r *roundsSeen) add(event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.alive == nil {
		r.alive, r.leaving, r.created = map[string]bool{}, map[string]bool{}, true
	}
	state := appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState])
	switch {
	case event.Type == watch.Added:
		r.alive[pod.Name], r.created = true, true
	case event.Type == watch.Deleted:
		delete(r.alive, pod.Name)
	case state == appsv1alpha1.StatePreparingDelete && !r.leaving[pod.Name]:
		r.leaving[pod.Name] = true
		if r.created {
			r.rounds++
		}
		r.created = false
	}
}

// lacks names a Pod whose begin or end the watch has not shown yet; empty if there is none.
func (r *roundsSeen) lacks(pods []corev1.Pod) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := maps.Clone(r.alive)
	for _, pod := range pods {
		if !r.alive[pod.Name] {
			return "it has not shown " + pod.Name
		}
		delete(gone, pod.Name)
	}
	for name := range gone {
		return "it has not shown the end of " + name
	}
	return ""
}

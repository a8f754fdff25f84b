// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/demo/manifests"
	"github.com/usher-dev/usher/test/stage"
)

//go:embed stories.yaml
var storiesYAML []byte

// Stories returns the stories of stories.yaml, in the order of the report.
func Stories() (list []Story, err error) {
	if err := yaml.UnmarshalStrict(storiesYAML, &list); err != nil {
		return nil, fmt.Errorf("stories.yaml: %w", err)
	}
	for i := range list {
		if list[i].steps, err = parse(list[i].Play, playLine(list[i].Name)); err != nil {
			return nil, fmt.Errorf("stories.yaml: %s: %w", list[i].Name, err)
		}
	}
	return list, nil
}

// playLine returns the number of the line in stories.yaml at which a story's steps begin.
func playLine(story string) int {
	inStory := false
	for i, line := range strings.Split(string(storiesYAML), "\n") {
		switch {
		case strings.HasPrefix(line, "- name:"):
			inStory = strings.TrimSpace(strings.TrimPrefix(line, "- name:")) == story
		case inStory && strings.TrimSpace(line) == "play: |":
			return i + 2
		}
	}
	return 0
}

// step is a line of a story: a verb, its arguments, and the document below it.
type step struct {
	verb            verb
	about, document string
	// line is the number of the line in stories.yaml.
	line int
}

func (s step) String() string {
	return fmt.Sprintf("test/e2e/stories.yaml:%d: %s", s.line, strings.TrimSpace(s.verb.Name+" "+s.about))
}

// verb is a verb that a step can begin with. docs/stories.md lists the verbs.
type verb struct {
	Name, Args, Does string
	Run              func(s *Scene, about, document string)
}

// parse reads the steps of a story, which begin at a line of stories.yaml. Lines with # are comments.
func parse(play string, at int) (steps []step, err error) {
	for line := range strings.Lines(play) {
		at++
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, " ") && len(steps) > 0:
			steps[len(steps)-1].document += line
		default:
			next, err := parseStep(strings.TrimSpace(line))
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", at-1, err)
			}
			next.line = at - 1
			steps = append(steps, next)
		}
	}
	return steps, nil
}

func parseStep(line string) (step, error) {
	verb, about, ok := verbOf(line)
	if !ok {
		return step{}, fmt.Errorf("no verb begins %q; make words lists them", line)
	}
	var err error
	switch _, facts, _ := strings.Cut(about, " "); verb.Name {
	case "want", "await":
		_, err = look(about)
	case "hold":
		_, err = look(facts)
	}
	return step{verb: verb, about: about}, err
}

// verbOf returns the longest verb with which a line begins, and the rest of the line.
func verbOf(line string) (longest verb, about string, ok bool) {
	for _, v := range verbs {
		rest, begins := strings.CutPrefix(line+" ", v.Name+" ")
		if begins && len(v.Name) > len(longest.Name) {
			longest, about, ok = v, strings.TrimSpace(rest), true
		}
	}
	return longest, about, ok
}

// play plays the steps of the story.
func (s *Scene) play() {
	for _, step := range s.story.steps {
		s.step = step.String()
		step.verb.Run(s, os.Expand(step.about, s.podName), step.document)
	}
}

// podName returns the name of the Pod with a number.
func (s *Scene) podName(number string) string {
	i, err := strconv.Atoi(number)
	s.check(err)
	if i >= len(s.before.Pods) {
		s.fatalf("there were %d Pods", len(s.before.Pods))
	}
	return s.before.Pods[i].Name
}

// verbs are the verbs of stories.
var verbs = []verb{
	{Name: "registration", Does: "changes the Registration by the document, when the story opens",
		Run: func(s *Scene, _, document string) { s.over = document }},
	{Name: "open", Args: "[FILE.yaml | KIND]",
		Does: "opens the story with the usual CloneSet, with one that its author published, or with a " +
			"workload of a kind; the document changes it",
		Run: (*Scene).openStory},
	{Name: "another", Args: "KIND",
		Does: "opens one more workload of a kind, in a namespace of its own, with callers of its own; steps about the " +
			"number of Pods and facts that are wanted or awaited are about all of them",
		Run: (*Scene).openAnother},
	{Name: "remember", Does: "remembers Pods and claims, with which later steps compare; $0 is the first Pod",
		Run: func(s *Scene, _, _ string) {
			s.each((*Scene).remember)
		}},
	{Name: "note", Does: "notes the present state, with which later facts compare",
		Run: func(s *Scene, _, _ string) { s.noted = s.state() }},
	{Name: "pause", Args: "SPAN", Does: "lets time pass",
		Run: func(s *Scene, about, _ string) { s.check(stage.Pause(s.ctx, s.duration(about))) }},

	{Name: "want", Args: "FACT and FACT", Does: "fails unless the facts are true",
		Run: func(s *Scene, about, _ string) { s.each(func(s *Scene) { s.want(about) }) }},
	{Name: "await", Args: "FACT and FACT", Does: "waits until the facts are true",
		Run: func(s *Scene, about, _ string) { s.each(func(s *Scene) { s.await(about, s.look(about)) }) }},
	{Name: "hold", Args: "SPAN FACT and FACT", Does: "fails if the facts are not true for so long",
		Run: func(s *Scene, about, _ string) {
			during, facts, _ := strings.Cut(about, " ")
			s.hold(facts, s.duration(during), s.look(facts))
		}},
	{Name: "settle", Does: "waits until the workload is as its spec says, and its Pods are registered",
		Run: func(s *Scene, _, _ string) { s.settle() }},

	{Name: "patch", Does: "merges the document into the workload",
		Run: func(s *Scene, _, document string) { s.change(document) }},
	{Name: "image", Args: "IMAGE", Does: "changes the image",
		Run: func(s *Scene, about, _ string) { s.image(about) }},
	{Name: "update", Args: "IMAGE",
		Does: "changes the image, and waits until all Pods run it and everything has settled",
		Run: func(s *Scene, about, _ string) {
			s.image(about)
			s.settle()
			s.want("all run " + about)
		}},
	{Name: "time", Args: "IMAGE",
		Does: "changes the image, waits likewise, and measures how long a Pod is out of service at most",
		Run:  func(s *Scene, about, _ string) { s.timeUpdate(about) }},
	{Name: "scale", Args: "N", Does: "scales the workload through its subresource",
		Run: func(s *Scene, about, _ string) {
			s.each(func(scene *Scene) { scene.scale(s.number(about)) })
		}},
	{Name: "warm a new Pod",
		Does: "waits for a new Pod that waits for the story alone, keeps it waiting, and lets it proceed",
		Run:  func(s *Scene, _, _ string) { s.warm() }},

	{Name: "stream", Args: "N of SPAN over SPAN",
		Does: "begins N answers that take a SPAN each, with a token every 100 ms, evenly over the other SPAN; each goes to a Pod " +
			"that callers know",
		Run: func(s *Scene, about, _ string) { s.stream(about) }},
	{Name: "await streams", Does: "waits until all of them have ended, and reports how many were lost",
		Run: func(s *Scene, _, _ string) { s.awaitStreams() }},
	{Name: "volumes", Args: "N", Does: "creates N volumes on the node",
		Run: func(s *Scene, about, _ string) { s.localVolumes(s.number(about)) }},
	{Name: "budget", Args: "SPEC", Does: "creates a PodDisruptionBudget, and waits until it counts",
		Run: func(s *Scene, about, _ string) { s.budget(about) }},

	{Name: "kubectl", Args: "ARGS", Does: "runs kubectl in the story's namespace",
		Run: func(s *Scene, about, _ string) { s.kubectl(strings.Fields(about)...) }},
	{Name: "follow", Args: "DOCUMENT STEP", Does: "runs the commands of a step of a document",
		Run: func(s *Scene, about, _ string) {
			document, step, _ := strings.Cut(about, " ")
			s.check(s.session.follow(s.ctx, document, step))
		}},
	{Name: "end by kubectl", Args: "ARGS",
		Does: "runs kubectl, which ends the service that requests are sent to",
		Run: func(s *Scene, about, _ string) {
			s.endService(func() { s.kubectl(strings.Fields(about)...) })
		}},
	{Name: "delete", Args: "POD", Does: "deletes a Pod",
		Run: func(s *Scene, about, _ string) { s.check(s.session.Kube.Delete(s.ctx, s.pod(about))) }},
	{Name: "delete in time", Args: "POD TEXT",
		Does: "deletes a Pod, which has to be accepted soon after its drain; the text goes into the report",
		Run:  (*Scene).deleteInTime},
	{Name: "delete within", Args: "SPAN POD TEXT",
		Does: "deletes a Pod, which has to be accepted within so long; the text goes into the report",
		Run:  (*Scene).deleteWithin},
	{Name: "force", Args: "POD", Does: "deletes a Pod with a grace period of 0",
		Run: func(s *Scene, about, _ string) {
			s.check(s.session.Kube.Delete(s.ctx, s.pod(about), client.GracePeriodSeconds(0)))
		}},
	{Name: "evict", Args: "POD", Does: "evicts a Pod",
		Run: func(s *Scene, about, _ string) { s.check(s.evict(about)) }},
	{Name: "evict as soon as allowed", Args: "POD", Does: "evicts a Pod as soon as its budget allows it",
		Run: func(s *Scene, about, _ string) { s.evictWhenAllowed(about) }},
	{Name: "refused eviction of", Args: "POD", Does: "evicts a Pod, which its budget has to refuse",
		Run: func(s *Scene, about, _ string) {
			if err := s.evict(about); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
				s.fatalf("want the budget to refuse, not %v", err)
			}
		}},

	{Name: "kill Usher", Does: "kills all replicas; the kubelet starts them again",
		Run: func(s *Scene, _, _ string) { s.signalUsher(syscall.SIGKILL) }},
	{Name: "freeze Usher", Does: "stops the processes of all replicas without ending them",
		Run: func(s *Scene, _, _ string) { s.signalUsher(syscall.SIGSTOP) }},
	{Name: "thaw Usher", Does: "lets them go on",
		Run: func(s *Scene, _, _ string) { s.signalUsher(syscall.SIGCONT) }},
	{Name: "stop Usher", Does: "scales Usher to 0", Run: func(s *Scene, _, _ string) { s.stopUsher() }},
	{Name: "start Usher", Does: "scales Usher up again, and waits until it leads",
		Run: func(s *Scene, _, _ string) { s.startUsher() }},
	{Name: "restart Usher", Does: "restarts Usher's Deployment, as an upgrade does",
		Run: func(s *Scene, _, _ string) {
			s.asked = time.Now()
			s.kubectl("rollout", "restart", "deployment", usherDeployment, "--namespace="+usherNamespace)
		}},
	{Name: "await Usher", Does: "waits until all replicas are ready and one leads",
		Run: func(s *Scene, _, _ string) { s.awaitUsher() }},
	{Name: "depose Usher",
		Does: "gives the lease to an inactive holder, and waits until the leader has noticed",
		Run:  func(s *Scene, _, _ string) { s.deposeUsher() }},
	{Name: "elect Usher", Does: "gives the lease back, and waits until all replicas are ready and one leads",
		Run: func(s *Scene, _, _ string) {
			s.asked = time.Now()
			s.check(s.session.freeLease(s.ctx))
			s.awaitUsher()
		}},

	{Name: "observe",
		Does: "follows from now on what the registries have of the second node's Pods, and when their containers end",
		Run:  func(s *Scene, _, _ string) { s.observe() }},
	{Name: "report", Args: "TEXT", Does: "reports what was observed, with the text, and how many requests were lost meanwhile",
		Run: func(s *Scene, about, _ string) { s.reportDeparture(about) }},
	{Name: "kill the second node", Args: "SPAN",
		Does: "ends all of the second node's processes at once, so long after the last \"observe\"",
		Run:  func(s *Scene, about, _ string) { s.killNode(s.duration(about)) }},
	{Name: "start the second node", Does: "starts it again, as a machine of the same name",
		Run: func(s *Scene, _, _ string) { s.check(s.session.node.StartSecond(s.ctx)) }},
	{Name: "announce a shutdown", Does: "has the stand-in of systemd-logind tell the second node's kubelet that its machine goes down",
		Run: func(s *Scene, _, _ string) { s.check(s.session.node.AnnounceShutdown(true)) }},
	{Name: "withdraw the shutdown", Does: "has it tell the kubelet that the machine stays up after all",
		Run: func(s *Scene, _, _ string) { s.check(s.session.node.AnnounceShutdown(false)) }},
	{Name: "restart the second kubelet", Does: "restarts the second node's kubelet; its containers run on",
		Run: func(s *Scene, _, _ string) { s.check(s.session.node.RestartSecondKubelet(s.ctx)) }},

	{Name: "stop the kubelet", Does: "stops the kubelet",
		Run: func(s *Scene, _, _ string) { s.check(s.session.node.StopKubelet(s.ctx)) }},
	{Name: "start the kubelet", Does: "starts the kubelet again",
		Run: func(s *Scene, _, _ string) { s.check(s.session.node.StartKubelet(s.ctx)) }},
	{Name: "kill the API server", Does: "kills the API server",
		Run: func(s *Scene, _, _ string) { s.check(s.session.Cluster.KillAPIServer()) }},
	{Name: "start the API server", Does: "starts the API server again",
		Run: func(s *Scene, _, _ string) { s.check(s.session.Cluster.StartAPIServer(s.ctx)) }},
	{Name: "kill etcd", Does: "kills the story's etcd",
		Run: func(s *Scene, _, _ string) { s.check(s.session.etcds[OwnEtcd].Kill()) }},
	{Name: "start etcd", Does: "starts the story's etcd again",
		Run: func(s *Scene, _, _ string) { s.check(s.session.etcds[OwnEtcd].Restart(s.ctx)) }},
}

// openAnother opens one more workload of the story.
func (s *Scene) openAnother(kind, document string) {
	other := &Scene{ctx: s.ctx, session: s.session, story: s.story.another(kind), main: s, step: s.step}
	s.others = append(s.others, other)
	other.openStory(kind, document)
}

// each does the same in the scenes of all workloads of the story.
func (s *Scene) each(do func(*Scene)) {
	for _, scene := range s.all() {
		scene.step = s.step
		do(scene)
	}
}

// want ends the story if something is not a fact.
func (s *Scene) want(facts string) {
	if wrong := s.look(facts)(s.state()); wrong != "" {
		s.fatalf("not %s: %s", facts, wrong)
	}
}

func (s *Scene) number(text string) int {
	n, err := strconv.Atoi(text)
	s.check(err)
	return n
}

func (s *Scene) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	s.check(err)
	return d
}

// openStory opens the story with the usual CloneSet, with a workload of one of Kubernetes'
// own kinds, or with a CloneSet and a Registration as their author published them.
func (s *Scene) openStory(what, document string) {
	switch {
	case what == "":
		s.open(stage.CloneSet{}, []string{cloneSet, document}, registration, hooks, s.over)
	case strings.HasSuffix(what, ".yaml"):
		set, err := manifests.Read(what)
		s.check(err)
		registration, err := manifests.Read(strings.TrimSuffix(what, ".yaml") + "-registration.yaml")
		s.check(err)
		s.open(stage.CloneSet{}, []string{set, published}, registration)
	default:
		s.open(schemas[what], []string{workload, "kind: " + what, document}, registration, s.over)
	}
	s.remember()
}

// remember records the Pods and their claims, for steps that compare or name Pods.
func (s *Scene) remember() { s.before, s.claimed = s.state(), s.claims() }

// published changes the CloneSets that others published: their image is pulled from an image
// registry, and without a readiness probe, a Pod would be ready as soon as its container has
// started, even if it does not listen yet. The probe and the requests are those of all stories:
// containers that request nothing wait for all others on a busy machine.
const published = `spec: {template: {spec: {containers: [{name: main, image: "` + images.PulledWeb + `:v1",
	readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1, timeoutSeconds: 10},
	resources: {requests: {cpu: 10m, memory: 16Mi}}}]}}}`

// timeUpdate updates the image, and measures how long a Pod is out of service at most.
func (s *Scene) timeUpdate(image string) {
	since, longest := map[string]time.Time{}, time.Duration(0)
	s.image(image)
	s.await("everything to settle", func(now State) string {
		for i := range now.Pods {
			pod := &now.Pods[i]
			switch left, out := since[pod.Name]; {
			case stage.Ready(pod) && out:
				longest = max(longest, time.Since(left))
				delete(since, pod.Name)
			case !stage.Ready(pod) && !out:
				since[pod.Name] = time.Now()
			}
		}
		return now.Unsettled(s.generation)
	})
	s.out = append(s.out, longest)
	s.notes = append(s.notes, fmt.Sprintf("%s: out of service for %s at most", image, stage.Seconds(longest)))
	s.want("all run " + image)
}

// laterLimit is how long after the end of its drain a Pod's deletion may be accepted: clients retry
// after whole seconds. The other second is for a busy machine.
const laterLimit = 2 * time.Second

// deleteInTime deletes a Pod, and measures how long after the end of its drain the deletion is
// accepted.
func (s *Scene) deleteInTime(about, _ string) {
	pod, where, _ := strings.Cut(about, " ")
	drain, later := s.timeDelete(pod)
	s.found("`kubectl delete pod` of a Pod "+where, stage.Seconds(later),
		fmt.Sprintf("from the end of its drain, which took %s with `propagation: 2s`, until the deletion is accepted", stage.Seconds(drain)))
	if later >= laterLimit {
		s.fatalf("want the deletion accepted within %s of the drain, not %s", laterLimit, later)
	}
}

// deleteWithin deletes a Pod while Usher does not run.
func (s *Scene) deleteWithin(about, _ string) {
	words := strings.SplitN(about, " ", 3)
	limit, began := s.duration(words[0]), time.Now()
	s.kubectl("delete", "pod", words[1], "--wait=false")
	took := time.Since(began)
	s.found("`kubectl delete pod` "+words[2], stage.Seconds(took), "until the deletion is accepted")
	if took >= limit {
		s.fatalf("want the deletion accepted within %s, not %s", limit, took)
	}
}

// The labels of the hook preNormal of a story: Usher answers one, the story the other.
const labelRegistered, labelWarm = "example.com/registered", "example.com/warm"

// coldTime is how long the story keeps each new Pod waiting.
const coldTime = 2 * time.Second

// warm awaits a new Pod that waits only for the story's label, keeps it waiting, and then lets it
// proceed. Meanwhile, callers know as many Pods as before.
func (s *Scene) warm() {
	var cold *corev1.Pod
	waiting := s.await("a new Pod that waits for the story alone", func(now State) (wrong string) {
		if n := len(s.callers.clients[0].Known()); n < len(s.before.Pods) {
			s.fatalf("callers know %d Pods, want at least %d", n, len(s.before.Pods))
		}
		cold, wrong = s.coldPod(now)
		return wrong
	})
	s.hold("a new Pod that waits", coldTime, func(now State) string { return changed(waiting, now) })
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, labelWarm)
	s.check(s.session.Kube.Patch(s.ctx, s.pod(cold.Name), mergePatch(patch)))
	s.await(cold.Name+" to be Normal", func(now State) string {
		pod := now.Pod(cold.Name)
		return stage.Unless(pod != nil && lifecycle(pod) == appsv1alpha1.StateNormal, "it is not")
	})
}

// coldPod returns the one Pod in addition to the previous ones, all Normal, that callers already find
// and that lacks the story's label; otherwise it says what is wrong.
func (s *Scene) coldPod(now State) (cold *corev1.Pod, wrong string) {
	normal := 0
	for i := range now.Pods {
		pod := &now.Pods[i]
		if state := lifecycle(pod); state == appsv1alpha1.StateNormal {
			normal++
		} else if state == appsv1alpha1.StatePreparingNormal && pod.Labels[labelWarm] == "" {
			cold = pod
		}
	}
	switch {
	case cold == nil:
		return nil, "there is none"
	case len(now.Pods) != len(s.before.Pods)+1 || normal != len(s.before.Pods):
		return nil, fmt.Sprintf("%d Pods, %d of them Normal", len(now.Pods), normal)
	case !stage.Ready(cold) || cold.Labels[labelRegistered] != "true" || !slices.Contains(s.callers.clients[0].Known(), cold.Status.PodIP+":8080"):
		return nil, "it is not registered yet"
	}
	return cold, ""
}

// changed reports Pods that were created, deleted or changed their lifecycle state.
func changed(before, now State) string {
	if names(before) != names(now) {
		return fmt.Sprintf("want the Pods %s, have %s", names(before), names(now))
	}
	for _, pod := range now.Pods {
		if was, is := lifecycle(before.Pod(pod.Name)), lifecycle(&pod); is != was {
			return fmt.Sprintf("%s was %s and is %s", pod.Name, was, is)
		}
	}
	return ""
}

func lifecycle(pod *corev1.Pod) appsv1alpha1.LifecycleState {
	return appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState])
}

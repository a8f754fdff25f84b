// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/fragment"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// fact is what a story can want, await or hold. It is true or false at a moment, and changes nothing.
type fact struct {
	// Name is how a story says it. Placeholders stand for what the story puts there.
	Name, Does string
	// Wrong returns what is wrong while it is not true; is are the texts in place of the placeholders.
	Wrong func(s *Scene, now State, is []string) string
}

// placeholders stand, in the names of facts, for a number, for a text without spaces, or for the rest of the fact.
var placeholders = regexp.MustCompile(`\b(N|NODE|POD|CONTAINER|OTHER|VERSION|IMAGE|SPAN|TEXT|YAML)\b|\(s\)`)

// pattern fits the fact as stories say it, and has a group for each placeholder.
func (f fact) pattern() *regexp.Regexp {
	return regexp.MustCompile("^" + placeholders.ReplaceAllStringFunc(f.Name, func(placeholder string) string {
		switch placeholder {
		case "N":
			return `(\d+)`
		case "TEXT":
			return `(.*)`
		case "YAML":
			return `(\w+: .*)`
		case "(s)":
			return "s?"
		}
		return `(\S+)`
	}) + "$")
}

// facts are the facts that a story can want, await or hold. What one object says of itself is a fragment of YAML.
var facts = []fact{
	{Name: "every Pod YAML", Does: "all Pods have these fields",
		Wrong: each(func(_ *Scene, pod *corev1.Pod, is []string) (string, bool) {
			wrong := lacks(pod, is[0])
			return wrong, wrong == ""
		})},
	{Name: "a Pod YAML", Does: "a Pod at least has these fields", Wrong: func(_ *Scene, now State, is []string) string {
		return limited("least", "1", count(now, func(pod corev1.Pod) bool { return lacks(&pod, is[0]) == "" }))
	}},
	{Name: "Pod/POD YAML", Does: "the Pod has these fields", Wrong: func(_ *Scene, now State, is []string) string {
		return lacks(now.Pod(is[0]), is[1])
	}},
	{Name: "CloneSet YAML", Does: "the set has these fields", Wrong: func(_ *Scene, now State, is []string) string {
		return lacks(now.Set, is[0])
	}},
	{Name: "Registration YAML", Does: "the Registration has these fields",
		Wrong: func(_ *Scene, now State, is []string) string {
			return lacks(now.Registration, is[0])
		}},

	{Name: "all run IMAGE", Does: "all Pods run the version of the image",
		Wrong: each(func(_ *Scene, pod *corev1.Pod, is []string) (string, bool) {
			version := stage.Version(pod)
			return "it runs " + version, version == is[0][strings.LastIndexByte(is[0], ':')+1:]
		})},
	{Name: "v2 in TEXT alone",
		Does:  "in all Pods these containers run v2 after one restart, and the others v1 without one",
		Wrong: each(aloneV2)},
	{Name: "CONTAINER started at least SPAN after OTHER",
		Does: "one container began that much later than the other, in all Pods",
		Wrong: func(s *Scene, now State, is []string) string {
			for _, pod := range now.Pods {
				if gap := startOf(&pod, is[0]).Sub(startOf(&pod, is[2])); gap < s.duration(is[1]) {
					return fmt.Sprintf("in %s it started after %s", pod.Name, gap)
				}
			}
			return ""
		}},
	{Name: "answers of VERSION", Does: "all Pods answer as those of that version do",
		Wrong: each(func(s *Scene, pod *corev1.Pod, is []string) (string, bool) {
			var answer struct{ Version string }
			_, err := run.HTTP{Client: http.DefaultClient}.Do(s.ctx, http.MethodGet, "http://"+pod.Status.PodIP+":8080/", nil, &answer)
			return fmt.Sprintf("it answers %+v, %v", answer, err), err == nil && answer.Version == is[0]
		})},
	{Name: "the same names", Does: "the Pods have the names that were remembered",
		Wrong: func(s *Scene, now State, _ []string) string {
			return stage.Unless(names(now) == names(s.before), "%s were %s", names(now), names(s.before))
		}},
	{Name: "the same Pods", Does: "the Pods are those that were remembered, with the same addresses", Wrong: same},
	{Name: "the same Pods, restarted N time(s)", Does: "the same, and each has been restarted so often since",
		Wrong: func(s *Scene, now State, is []string) string {
			if wrong := same(s, now, nil); wrong != "" {
				return wrong
			}
			for _, pod := range now.Pods {
				if more := stage.Restarts(&pod) - stage.Restarts(s.before.Pod(pod.Name)); strconv.Itoa(more) != is[0] {
					return fmt.Sprintf("%s was restarted %d times", pod.Name, more)
				}
			}
			return ""
		}},
	{Name: "only new Pods", Does: "no Pod that was remembered is there",
		Wrong: func(s *Scene, now State, _ []string) string {
			return replaced(s, now, func(corev1.Pod) bool { return true })
		}},
	{Name: "others for the Pods of NODE alone",
		Does: "of the Pods that were remembered, those of the node are gone, and no others",
		Wrong: func(s *Scene, now State, is []string) string {
			return replaced(s, now, func(pod corev1.Pod) bool { return pod.Spec.NodeName == is[0] })
		}},
	{Name: "N Pods on NODE", Does: "so many Pods are on the node",
		Wrong: func(_ *Scene, now State, is []string) string {
			n := count(now, func(pod corev1.Pod) bool { return pod.Spec.NodeName == is[1] })
			return stage.Unless(strconv.Itoa(n) == is[0], "there are %d", n)
		}},
	{Name: "no Pod that runs on NODE", Does: "all Pods of the node have ended",
		Wrong: func(_ *Scene, now State, is []string) string {
			return limited("most", "0", count(now, func(pod corev1.Pod) bool {
				return pod.Spec.NodeName == is[0] && pod.Status.Phase == corev1.PodRunning
			}))
		}},
	{Name: "no registry with a Pod of the second node", Does: "no registry lists one of the Pods that are observed",
		Wrong: func(s *Scene, _ State, _ []string) string { return s.observed().present() }},
	{Name: "registries that were ahead",
		Does:  "no registry listed one of the Pods that are observed when the first of them got SIGTERM, or was killed",
		Wrong: func(s *Scene, _ State, _ []string) string { return s.observed().late() }},
	{Name: "registries that were late", Does: "a registry listed one then",
		Wrong: func(s *Scene, _ State, _ []string) string {
			return stage.Unless(s.observed().late() != "", "none did")
		}},
	{Name: "Pods on NODE", Does: "a Pod at least is on the node",
		Wrong: func(_ *Scene, now State, is []string) string {
			return limited("least", "1", count(now, func(pod corev1.Pod) bool { return pod.Spec.NodeName == is[0] }))
		}},
	{Name: "POD gone", Does: "the Pod does not exist",
		Wrong: func(_ *Scene, now State, is []string) string {
			return stage.Unless(now.Pod(is[0]) == nil, "it is there")
		}},
	{Name: "POD replaced", Does: "the Pod does not exist, and there are as many as were remembered",
		Wrong: func(s *Scene, now State, is []string) string {
			return stage.Unless(now.Pod(is[0]) == nil && len(now.Pods) == len(s.before.Pods), "there are %s", names(now))
		}},
	{Name: "another Pod named POD", Does: "a Pod has the name of one that was remembered, and another UID",
		Wrong: func(s *Scene, now State, is []string) string {
			pod := now.Pod(is[0])
			return stage.Unless(pod != nil && pod.UID != s.before.Pod(is[0]).UID, "it is not there")
		}},
	{Name: "N of the same claims", Does: "there are N claims, all of them remembered",
		Wrong: func(s *Scene, _ State, is []string) string {
			claims := s.claims()
			strange := slices.ContainsFunc(claims, func(claim string) bool { return !slices.Contains(s.claimed, claim) })
			return stage.Unless(!strange && strconv.Itoa(len(claims)) == is[0], "%v of %v are left", claims, s.claimed)
		}},
	{Name: "N Pods that serve VERSION", Does: "so many Pods are ready and run that version",
		Wrong: func(_ *Scene, now State, is []string) string {
			n := serving(now, is[1])
			return stage.Unless(strconv.Itoa(n) == is[0], "%d do", n)
		}},
	{Name: "midway to VERSION", Does: "some Pods serve that version, and not all",
		Wrong: func(_ *Scene, now State, is []string) string {
			done := serving(now, is[0])
			return stage.Unless(done != 0 && done != len(now.Pods), "%d of %d Pods serve it", done, len(now.Pods))
		}},
	{Name: "at most N more than noted that serve VERSION",
		Does: "no more Pods than that have come to serve the version since the last note",
		Wrong: func(s *Scene, now State, is []string) string {
			return limited("most", is[0], serving(now, is[1])-serving(s.noted, is[1]))
		}},
	{Name: "at most N restarted since noted", Does: "no more restarts than that since the last note",
		Wrong: func(s *Scene, now State, is []string) string {
			return limited("most", is[0], restarts(now.Pods)-restarts(s.noted.Pods))
		}},
	{Name: "at most N restarted of those noted at VERSION",
		Does: "no more than that of the Pods that ran the version at the last note have been restarted",
		Wrong: func(s *Scene, now State, is []string) string {
			return limited("most", is[0], count(s.noted, func(pod corev1.Pod) bool {
				return pod.Spec.Containers[0].Image == images.Web+":"+is[1] && stage.Restarts(now.Pod(pod.Name)) > 0
			}))
		}},
	{Name: "N Pods that pull", Does: "there are so many Pods that pull images",
		Wrong: func(_ *Scene, now State, is []string) string {
			return stage.Unless(strconv.Itoa(now.Pulling) == is[0], "there are %d", now.Pulling)
		}},
	{Name: "at most N not ready", Does: "no more Pods than that are not ready",
		Wrong: func(_ *Scene, now State, is []string) string {
			return limited("most", is[0], count(now, func(pod corev1.Pod) bool { return !stage.Ready(&pod) }))
		}},
	{Name: "nobody who has seen the last change", Does: "no leader has observed the set since it was changed last",
		Wrong: func(s *Scene, now State, _ []string) string {
			seen := now.Set.Status.ObservedGeneration
			return stage.Unless(seen < s.generation, "somebody leads, and has seen generation %d", seen)
		}},
	{Name: "a Pod that is scaled in later", Does: "a Pod at least has a deletion cost above 0",
		Wrong: func(_ *Scene, now State, _ []string) string {
			costs := func(pod corev1.Pod) bool { return pod.Annotations[corev1.PodDeletionCost] > "0" }
			return stage.Unless(count(now, costs) > 0, "none has a deletion cost")
		}},
	{Name: "N streams lost", Does: "so many streams were cut", Wrong: lostStreams},
	{Name: "some streams lost", Does: "a stream at least was cut", Wrong: func(s *Scene, _ State, _ []string) string {
		n, _ := s.streams.lost()
		return stage.Unless(n > 0, "none was lost")
	}},
	{Name: "callers that always knew a Pod", Does: "no request found the registry empty",
		Wrong: func(s *Scene, _ State, _ []string) string {
			n := s.callers.clients[0].Report().Reasons[traffic.NoInstance]
			return stage.Unless(n == 0, "%d requests met none", n)
		}},
	{Name: "at most N registered", Does: "the Registration counts no more Pods than that as registered",
		Wrong: registered("most")},
	{Name: "at least N registered", Does: "the Registration counts so many Pods as registered, or more",
		Wrong: registered("least")},
	{Name: "out of service at most SPAN longer than before",
		Does:  "the last two measurements differ by no more than that",
		Wrong: longer("most")},
	{Name: "out of service at least SPAN longer than before",
		Does:  "the last two measurements differ by that, or by more",
		Wrong: longer("least")},
}

// look returns a function that says which of some facts, joined by "and", is not true.
func look(text string) (func(*Scene, State) string, error) {
	var all []func(*Scene, State) string
	for one := range strings.SplitSeq(text, " and ") {
		fact, is, known := factOf(one)
		if !known {
			return nil, fmt.Errorf("%q is no fact that can be looked at; make words lists them", one)
		}
		all = append(all, func(s *Scene, now State) string { return fact.Wrong(s, now, is) })
	}
	return func(s *Scene, now State) string {
		for _, wrong := range all {
			if text := wrong(s, now); text != "" {
				return text
			}
		}
		return ""
	}, nil
}

// factOf returns the fact that a text is about, and what stands in place of its placeholders.
func factOf(text string) (found fact, is []string, ok bool) {
	for _, f := range facts {
		if is := f.pattern().FindStringSubmatch(text); is != nil {
			return f, is[1:], true
		}
	}
	return fact{}, nil, false
}

func (s *Scene) look(text string) func(State) string {
	wrong, err := look(text)
	s.check(err)
	return func(now State) string { return wrong(s, now) }
}

// each returns a fact about every Pod.
func each(holds func(*Scene, *corev1.Pod, []string) (have string, ok bool)) func(*Scene, State, []string) string {
	return func(s *Scene, now State, is []string) string {
		for _, pod := range now.Pods {
			if have, ok := holds(s, &pod, is); !ok {
				return pod.Name + ": " + have
			}
		}
		return ""
	}
}

// aloneV2 means that these containers run v2 after one restart, and that all others run v1
// without a restart.
func aloneV2(_ *Scene, pod *corev1.Pod, is []string) (string, bool) {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		restarts, image := int32(0), images.Web+":v1"
		if slices.Contains(strings.Split(is[0], ", "), c.Name) {
			restarts, image = 1, images.Web+":v2"
		}
		if c.State.Running == nil || c.RestartCount != restarts || c.Image != image {
			return fmt.Sprintf("%s runs %s after %d restarts, want %s after %d", c.Name, c.Image, c.RestartCount, image, restarts), false
		}
	}
	return "", true
}

// startOf returns when the present instance of a container started; zero if it does not run.
func startOf(pod *corev1.Pod, container string) time.Time {
	c := list.Find(pod.Status.ContainerStatuses, func(c *corev1.ContainerStatus) bool { return c.Name == container })
	if c == nil || c.State.Running == nil {
		return time.Time{}
	}
	return c.State.Running.StartedAt.Time
}

// same means that the Pods are the same as before, with the same addresses.
func same(s *Scene, now State, _ []string) string {
	if names(now) != names(s.before) {
		return fmt.Sprintf("%s were %s", names(now), names(s.before))
	}
	for _, pod := range now.Pods {
		if old := s.before.Pod(pod.Name); pod.UID != old.UID || pod.Status.PodIP != old.Status.PodIP {
			return pod.Name + " has another UID or address"
		}
	}
	return ""
}

// replaced means that of the previous Pods, these are gone and all others remain.
func replaced(s *Scene, now State, these func(corev1.Pod) bool) string {
	for _, pod := range s.before.Pods {
		there := now.Pod(pod.Name)
		if gone := there == nil || there.UID != pod.UID; gone != these(pod) {
			return fmt.Sprintf("Pod %s of node %s: gone is %t, want %t", pod.Name, pod.Spec.NodeName, gone, !gone)
		}
	}
	return ""
}

// lacks describes an object that does not have the fields of a fragment of YAML; empty if it has them.
func lacks[T any](object *T, document string) string {
	if object == nil {
		return "it is not there"
	}
	wrong, err := fragment.Lacks(object, document)
	if err != nil {
		return err.Error()
	}
	return wrong
}

// registered compares how many Pods the Registration counts as registered.
func registered(how string) func(*Scene, State, []string) string {
	return func(_ *Scene, now State, is []string) string {
		return limited(how, is[0], int(now.Registration.Status.Registered))
	}
}

// longer compares the last two measurements of how long a Pod is out of service.
func longer(how string) func(*Scene, State, []string) string {
	return func(s *Scene, _ State, is []string) string {
		last := len(s.out) - 1
		longer, limit := s.out[last]-s.out[last-1], s.duration(is[0])
		return stage.Unless((how == "most") == (longer <= limit), "%s, and %s before", s.out[last], s.out[last-1])
	}
}

// limited means that a number is at "most" the limit, or at "least".
func limited(how, limit string, n int) string {
	bound, err := strconv.Atoi(limit)
	return stage.Unless(err == nil && (n == bound || (n < bound) == (how == "most")), "there are %d", n)
}

func count(now State, is func(corev1.Pod) bool) int { return len(list.Only(now.Pods, is)) }

// serving counts the Pods that are ready and run a version.
func serving(now State, version string) int {
	return count(now, func(pod corev1.Pod) bool { return stage.Ready(&pod) && stage.Version(&pod) == version })
}

func restarts(pods []corev1.Pod) (n int) {
	for _, pod := range pods {
		n += stage.Restarts(&pod)
	}
	return n
}

// names lists the Pods' names.
func names(now State) string {
	return fmt.Sprint(list.Map(now.Pods, func(pod corev1.Pod) string { return pod.Name }))
}

// claims lists the claims that are not being deleted, with UID and volume.
func (s *Scene) claims() (found []string) {
	claims := &corev1.PersistentVolumeClaimList{}
	s.check(s.session.Kube.List(s.ctx, claims, client.InNamespace(s.story.Name)))
	for _, c := range claims.Items {
		if c.DeletionTimestamp == nil {
			found = append(found, fmt.Sprintf("%s (%s) on %s", c.Name, c.UID, c.Spec.VolumeName))
		}
	}
	return found
}

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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// fact returns what is wrong while it is not true. is are the groups of its pattern.
type fact func(s *Scene, now State, is []string) string

// facts are the facts that a story can want, await or hold, by patterns of their words.
var facts = map[string]fact{
	`all run (\S+)`: each(func(_ *Scene, pod *corev1.Pod, is []string) (string, bool) {
		version := stage.Version(pod)
		return "it runs " + version, version == is[0][strings.LastIndexByte(is[0], ':')+1:]
	}),
	`label (\S+)=(\S+), annotation (\S+)=(\S+)`: each(func(_ *Scene, pod *corev1.Pod, is []string) (string, bool) {
		return "it has others", pod.Labels[is[0]] == is[1] && pod.Annotations[is[2]] == is[3]
	}),
	`(\S+) requested, (\S+) allowed`: each(func(_ *Scene, pod *corev1.Pod, is []string) (string, bool) {
		given := pod.Status.ContainerStatuses[0].Resources
		return fmt.Sprintf("it is given %+v", given),
			given != nil && given.Requests.Cpu().String() == is[0] && given.Limits.Memory().String() == is[1]
	}),
	`v2 in (.*) alone`: each(aloneV2),

	`(\w+) started at least (\S+) after (\w+)`: func(s *Scene, now State, is []string) string {
		for _, pod := range now.Pods {
			if gap := startOf(&pod, is[0]).Sub(startOf(&pod, is[2])); gap < s.duration(is[1]) {
				return fmt.Sprintf("in %s it started after %s", pod.Name, gap)
			}
		}
		return ""
	},
	`answers of (\w+)`: each(func(s *Scene, pod *corev1.Pod, is []string) (string, bool) {
		var answer struct{ Version string }
		_, err := run.HTTP{Client: http.DefaultClient}.Do(s.ctx, http.MethodGet, "http://"+pod.Status.PodIP+":8080/", nil, &answer)
		return fmt.Sprintf("it answers %+v, %v", answer, err), err == nil && answer.Version == is[0]
	}),
	`the same names`: func(s *Scene, now State, _ []string) string {
		return stage.Unless(names(now) == names(s.before), "%s were %s", names(now), names(s.before))
	},
	`the same Pods`: same,
	`the same Pods, restarted (\d+) times?`: func(s *Scene, now State, is []string) string {
		if wrong := same(s, now, nil); wrong != "" {
			return wrong
		}
		for _, pod := range now.Pods {
			if more := stage.Restarts(&pod) - stage.Restarts(s.before.Pod(pod.Name)); strconv.Itoa(more) != is[0] {
				return fmt.Sprintf("%s was restarted %d times", pod.Name, more)
			}
		}
		return ""
	},
	`only new Pods`: func(s *Scene, now State, _ []string) string {
		return replaced(s, now, func(corev1.Pod) bool { return true })
	},
	`others for the Pods of (\S+) alone`: func(s *Scene, now State, is []string) string {
		return replaced(s, now, func(pod corev1.Pod) bool { return pod.Spec.NodeName == is[0] })
	},
	`(\d+) Pods on (\S+)`: func(_ *Scene, now State, is []string) string {
		n := count(now, func(pod corev1.Pod) bool { return pod.Spec.NodeName == is[1] })
		return stage.Unless(strconv.Itoa(n) == is[0], "there are %d", n)
	},
	`Pods on (\S+)`: func(_ *Scene, now State, is []string) string {
		return limited("least", "1", count(now, func(pod corev1.Pod) bool { return pod.Spec.NodeName == is[0] }))
	},
	`(\S+) gone`: func(_ *Scene, now State, is []string) string {
		return stage.Unless(now.Pod(is[0]) == nil, "it is there")
	},
	`(\S+) replaced`: func(s *Scene, now State, is []string) string {
		return stage.Unless(now.Pod(is[0]) == nil && len(now.Pods) == len(s.before.Pods), "there are %s", names(now))
	},
	`another Pod named (\S+)`: func(s *Scene, now State, is []string) string {
		pod := now.Pod(is[0])
		return stage.Unless(pod != nil && pod.UID != s.before.Pod(is[0]).UID, "it is not there")
	},
	`(\d+) of the same claims`: func(s *Scene, _ State, is []string) string {
		claims := s.claims()
		strange := slices.ContainsFunc(claims, func(claim string) bool { return !slices.Contains(s.claimed, claim) })
		return stage.Unless(!strange && strconv.Itoa(len(claims)) == is[0], "%v of %v are left", claims, s.claimed)
	},

	`(\d+) Pods that serve (\S+)`: func(_ *Scene, now State, is []string) string {
		n := serving(now, is[1])
		return stage.Unless(strconv.Itoa(n) == is[0], "%d do", n)
	},
	`midway to (\S+)`: func(_ *Scene, now State, is []string) string {
		done := serving(now, is[0])
		return stage.Unless(done != 0 && done != len(now.Pods), "%d of %d Pods serve it", done, len(now.Pods))
	},
	`at most (\d+) more than noted that serve (\S+)`: func(s *Scene, now State, is []string) string {
		return limited("most", is[0], serving(now, is[1])-serving(s.noted, is[1]))
	},
	`at most (\d+) restarted since noted`: func(s *Scene, now State, is []string) string {
		return limited("most", is[0], restarts(now.Pods)-restarts(s.noted.Pods))
	},
	`at most (\d+) restarted of those noted at (\S+)`: func(s *Scene, now State, is []string) string {
		return limited("most", is[0], count(s.noted, func(pod corev1.Pod) bool {
			return pod.Spec.Containers[0].Image == images.Web+":"+is[1] && stage.Restarts(now.Pod(pod.Name)) > 0
		}))
	},
	`out of service (at most|at least) (\S+) longer than before`: func(s *Scene, _ State, is []string) string {
		last := len(s.out) - 1
		longer, limit := s.out[last]-s.out[last-1], s.duration(is[1])
		return stage.Unless((is[0] == "at most") == (longer <= limit), "%s, and %s before", s.out[last], s.out[last-1])
	},
	`(\d+) Pods that pull`: func(_ *Scene, now State, is []string) string {
		return stage.Unless(strconv.Itoa(now.Pulling) == is[0], "there are %d", now.Pulling)
	},

	`at most (\d+) not ready`: func(_ *Scene, now State, is []string) string {
		return limited("most", is[0], count(now, func(pod corev1.Pod) bool { return !stage.Ready(&pod) }))
	},
	`at (most|least) (\d+) registered`: func(_ *Scene, now State, is []string) string {
		return limited(is[0], is[1], int(now.Registration.Status.Registered))
	},

	`a Pod that waits: (.*)`: func(_ *Scene, now State, is []string) string {
		return stage.Unless(count(now, func(pod corev1.Pod) bool { return slices.Contains(strings.Split(is[0], ", "), waitingFor(&pod)) }) != 0, "none waits for any of these")
	},
	`(\w+)=(\w+)(?:, (\w+): (.*))?`: func(_ *Scene, now State, is []string) string {
		c := now.Condition(appsv1alpha1.CloneSetConditionType(is[0]))
		return stage.Unless(string(c.Status) == is[1] && strings.Contains(c.Reason, is[2]) && strings.Contains(c.Message, is[3]), "it is %+v", c)
	},
	`a Registration that is not Ready`: func(_ *Scene, now State, _ []string) string {
		c := meta.FindStatusCondition(now.Registration.Status.Conditions, usherv1alpha1.ConditionReady)
		return stage.Unless(c != nil && c.Status == metav1.ConditionFalse, "its condition Ready is %+v", c)
	},
	`(\S+) not asked to go`: func(_ *Scene, now State, is []string) string {
		return now.Pod(is[0]).Annotations[usherv1alpha1.AnnotationDeletionRequest]
	},
	`nobody who has seen the last change`: func(s *Scene, now State, _ []string) string {
		seen := now.Set.Status.ObservedGeneration
		return stage.Unless(seen < s.generation, "somebody leads, and has seen generation %d", seen)
	},
	`(\d+|some) streams lost`:                      lostStreams,
	`no registry with a Pod of the second node`:    func(s *Scene, _ State, _ []string) string { return s.observed().present() },
	`the registries ahead of (?:SIGTERM|the kill)`: func(s *Scene, _ State, _ []string) string { return s.observed().late() },
	`containers that end in service`: func(s *Scene, _ State, _ []string) string {
		return stage.Unless(s.observed().late() != "", "the registries were ahead of all of them")
	},
	`no Pod that runs on the second node`: func(_ *Scene, now State, _ []string) string {
		return limited("most", "0", count(now, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName == realnode.SecondNode && pod.Status.Phase == corev1.PodRunning
		}))
	},
	`a Pod that is scaled in later`: func(_ *Scene, now State, _ []string) string {
		costs := func(pod corev1.Pod) bool { return pod.Annotations[corev1.PodDeletionCost] > "0" }
		return stage.Unless(count(now, costs) > 0, "none has a deletion cost")
	},
	`callers that always knew a Pod`: func(s *Scene, _ State, _ []string) string {
		n := s.callers.clients[0].Report().Reasons[traffic.NoInstance]
		return stage.Unless(n == 0, "%d requests met none", n)
	},
}

// look returns a function that says which of some facts, joined by "and", is not true.
func look(text string) (func(*Scene, State) string, error) {
	var all []func(*Scene, State) string
	for one := range strings.SplitSeq(text, " and ") {
		known := false
		for pattern, wrong := range facts {
			if is := regexp.MustCompile("^" + pattern + "$").FindStringSubmatch(one); is != nil {
				known = true
				all = append(all, func(s *Scene, now State) string { return wrong(s, now, is[1:]) })
			}
		}
		if !known {
			return nil, fmt.Errorf("%q is no fact that can be looked at", one)
		}
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

func (s *Scene) look(text string) func(State) string {
	wrong, err := look(text)
	s.check(err)
	return func(now State) string { return wrong(s, now) }
}

// each returns a fact about every Pod.
func each(holds func(*Scene, *corev1.Pod, []string) (have string, ok bool)) fact {
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

// waitingFor returns why a Pod's container main waits; empty if it does not.
func waitingFor(pod *corev1.Pod) string {
	c := list.Find(pod.Status.ContainerStatuses, func(c *corev1.ContainerStatus) bool { return c.Name == "main" })
	if c == nil || c.State.Waiting == nil {
		return ""
	}
	return c.State.Waiting.Reason
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

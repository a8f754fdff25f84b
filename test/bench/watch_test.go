// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/servers"
)

// clocked is both watches with a fake clock.
type clocked struct {
	*testing.T
	clock   *clocktesting.FakePassiveClock
	pods    *podWatch
	entries *entryWatch
}

// aboutPods are the words about a Pod.
var aboutPods = map[string]func(pod *corev1.Pod, value string){
	"unready": func(pod *corev1.Pod, _ string) { pod.Status.Conditions[0].Status = corev1.ConditionFalse },
	"ending":  func(pod *corev1.Pod, _ string) { pod.DeletionTimestamp = &metav1.Time{} },
	"asks":    func(pod *corev1.Pod, image string) { pod.Spec.Containers[0].Image = image },
	"runs":    func(pod *corev1.Pod, image string) { pod.Status.ContainerStatuses[0].Image = image },
	"state":   func(pod *corev1.Pod, state string) { pod.Labels[apps.LabelLifecycleState] = state },
}

// pod reads a Pod from "NAME", or "NAME: WORDS".
func (c *clocked) pod(about string) *corev1.Pod {
	name, words, _ := strings.Cut(about, ":")
	pod := &corev1.Pod{}
	checktest.NoError(c, yaml.UnmarshalStrict(fmt.Appendf(nil, `{metadata: {name: %[1]s, uid: %[1]s, labels: {%[2]s: Normal}},
		spec: {containers: [{name: main, image: v1}]},
		status: {conditions: [{type: Ready, status: "True"}], containerStatuses: [{name: main, image: v1}]}}`,
		name, apps.LabelLifecycleState), pod))
	checktest.NoError(c, scenariotest.Say(aboutPods, pod, strings.TrimSpace(words)))
	return pod
}

// happens are events that the watches see, and questions that they answer.
var happens = map[string]func(c *clocked, about string) (answer string){
	"Pod":     func(c *clocked, about string) string { c.pods.is(c.pod(about)); return "" },
	"gone":    func(c *clocked, name string) string { c.pods.gone(c.pod(name)); return "" },
	"joins":   func(c *clocked, _ string) string { c.sighted("a", true, "0s"); return "" },
	"leaves":  func(c *clocked, ago string) string { c.sighted("a", false, ago); return "" },
	"unknown": func(c *clocked, _ string) string { c.sighted("b", false, "0s"); return "" },
	"after":   (*clocked).after,
	"begin":   func(c *clocked, _ string) string { c.pods.begin(); return "" },
	"end": func(c *clocked, _ string) string {
		t := c.pods.end()
		return fmt.Sprintf("out of service %v, startup %v, least ready %d, now %d", t.out, t.startup, t.least, c.pods.ready)
	},
	"settled": (*clocked).settled,
	"judged":  (*clocked).judged,
}

func (c *clocked) after(text string) string {
	c.clock.SetTime(c.clock.Now().Add(scenariotest.Duration(text)))
	return ""
}

// sighted passes a change of the registry to the watch; ago is its age at most.
func (c *clocked) sighted(uid string, in bool, ago string) {
	c.entries.sighted(servers.Sighting{UID: uid, In: in, Since: c.clock.Now().Add(-scenariotest.Duration(ago))})
}

// settled awaits "NUMBER IMAGE".
func (c *clocked) settled(about string) string {
	number, image, _ := strings.Cut(about, " ")
	ctx, cancel := context.WithCancel(c.Context())
	cancel()
	pods := scenariotest.Number(number)
	return fmt.Sprint(c.pods.await(ctx, pods, map[string]int{image: pods}) == nil)
}

// judged returns the Pods whose entries were removed wrongly, once that is certain.
func (c *clocked) judged(string) string {
	c.after(tolerance.String())
	c.entries.judge()
	return fmt.Sprint(checktest.Must(c.entries.end(c.Context()))(c).wrong)
}

// TestWatches plays the scenarios in testdata.
func TestWatches(t *testing.T) {
	scenariotest.Run(t, "testdata/*.txt", func(t *testing.T, lines []string) (answers []string) {
		clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
		entries := newEntryWatch(clock.Now)
		c := &clocked{T: t, clock: clock, entries: entries, pods: newPodWatch(clock.Now, entries.saw)}
		for _, line := range lines {
			verb, about, _ := strings.Cut(line, " ")
			if answer := happens[verb](c, about); answer != "" {
				answers = append(answers, answer)
			}
		}
		return answers
	})
}

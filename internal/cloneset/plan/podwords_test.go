// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// pod returns a Pod of revision rN that has served for an hour, with what the words say about it.
func pod(name string, n int, about ...string) *corev1.Pod {
	r, image := rev(n, ""), fmt.Sprintf("app:%d", n)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: ago(2 * time.Hour),
			Labels: map[string]string{
				"app": "web", apps.LabelRevision: r.Name, apps.LabelTemplateHash: revision.Short(r.Name),
				apps.LabelLifecycleState: string(apps.StateNormal), apps.LabelInstanceID: name,
			},
			Annotations: map[string]string{apps.AnnotationLifecycleTimestamp: now.Add(-time.Hour).Format(time.RFC3339)},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: image}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: apps.ConditionInPlaceUpdateReady}, {ConditionType: apps.ConditionPodReady}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, ObservedGeneration: 1, ContainerStatuses: []corev1.ContainerStatus{running("main", image, "c1")},
		},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady} {
		turn(p, kind, corev1.ConditionTrue, "", time.Hour)
	}
	return said(podWords, p, about...)
}

// owner returns a serving Pod of instance id that mounts a claim.
func owner(id string, about ...string) *corev1.Pod {
	return pod("web-"+id, 1, append([]string{"instance " + id, "mounts data " + id}, about...)...)
}

func running(name, image, id string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, Image: image, ImageID: "id-" + image, ContainerID: id, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}
}

// turn sets a condition that has had its status for some time.
func turn(p *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, message string, since time.Duration) {
	lose(p, kind)
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Message: message, LastTransitionTime: ago(since)})
}

func lose(p *corev1.Pod, kind corev1.PodConditionType) {
	p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
}

// out takes the Pod out of its endpoints for an update to rN; since is for how long.
func out(p *corev1.Pod, n int, since time.Duration) {
	turn(p, apps.ConditionInPlaceUpdateReady, corev1.ConditionFalse, rev(n, "").Name, since)
}

// begin begins an update to rN, with its record.
func begin(p *corev1.Pod, n int, change *inplace.Change) {
	name := rev(n, "").Name
	p.Annotations[apps.AnnotationInPlaceUpdateState] = inplace.Begin(p, change, name, now.Add(-time.Minute)).State.String()
	p.Labels[apps.LabelRevision], p.Labels[apps.LabelTemplateHash] = name, revision.Short(name)
	p.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	out(p, n, time.Minute)
}

// restart restarts the container as the kubelet does for an update.
func restart(p *corev1.Pod) {
	p.Status.ObservedGeneration = p.Generation
	for i := range p.Spec.Containers {
		spec, c := &p.Spec.Containers[i], &p.Status.ContainerStatuses[i]
		c.Resources = spec.Resources.DeepCopy()
		if i == 0 || c.Image != spec.Image {
			c.Image, c.ImageID, c.ContainerID, c.Ready = spec.Image, "id-"+spec.Image, c.ContainerID+"+", true
		}
	}
}

func cpuOf(amount string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
}

// request makes the container ask for cpu, and the kubelet report it.
func request(p *corev1.Pod, cpu string) {
	p.Spec.Containers[0].Resources = cpuOf(cpu)
	if len(p.Status.ContainerStatuses) > 0 {
		p.Status.ContainerStatuses[0].Resources = new(cpuOf(cpu))
	}
}

// unready makes the containers fail their probes since then.
func unready(p *corev1.Pod, since time.Duration) {
	turn(p, corev1.PodReady, corev1.ConditionFalse, "", since)
	turn(p, corev1.ContainersReady, corev1.ConditionFalse, "", since)
}

// withBase adds the second container of a template with base 1.
func withBase(p *corev1.Pod) {
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
		Name: "base", Image: "base:1", Env: []corev1.EnvVar{{Name: apps.EnvContainerPriority, Value: "10"}},
	})
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, running("base", "base:1", "b1"))
}

// aMoment is not long enough for a wait to be reported.
const aMoment = 9 * time.Second

// pend removes the node and the containers.
func pend(p *corev1.Pod) {
	unready(p, aMoment)
	p.CreationTimestamp = ago(aMoment)
	p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses = "", corev1.PodPending, nil
}

// unstarted returns the status of container main in a Pod that has not been ready for ten minutes. If
// the container was started before, it exited with a code: "c0 1".
func unstarted(p *corev1.Pod, before string) *corev1.ContainerStatus {
	unready(p, 10*time.Minute)
	c := &p.Status.ContainerStatuses[0]
	c.Ready, c.State = false, corev1.ContainerState{}
	if id, code, ended := strings.Cut(before, " "); ended {
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(scenariotest.Number(code)), ContainerID: id}
	}
	return c
}

// yamlInto sets the fields of something.
func yamlInto(something any, fields string) {
	if err := yaml.UnmarshalStrict([]byte(fields), something); err != nil {
		panic(err) // The words are misspelt.
	}
}

// podWords describe a Pod.
var podWords = map[string]func(p *corev1.Pod, value string){
	"is":        func(p *corev1.Pod, fields string) { yamlInto(p, fields) },
	"container": func(p *corev1.Pod, fields string) { yamlInto(&p.Status.ContainerStatuses[0], fields) },
	"state":     func(p *corev1.Pod, value string) { p.Labels[apps.LabelLifecycleState] = value },
	"stateless": func(p *corev1.Pod, _ string) { p.Labels[apps.LabelLifecycleState] = "" },
	"label": func(p *corev1.Pod, value string) {
		key, value, _ := strings.Cut(value, "=")
		p.Labels[key] = value
	},
	"instance":  func(p *corev1.Pod, id string) { p.Labels[apps.LabelInstanceID] = id },
	"specified": func(p *corev1.Pod, _ string) { p.Labels[apps.LabelSpecifiedDelete] = "true" },
	"finalizer": func(p *corev1.Pod, name string) { p.Finalizers = append(p.Finalizers, name) },
	"holds":     func(p *corev1.Pod, name string) { p.Finalizers = append(p.Finalizers, "example.com/"+name) },
	// registered adds the finalizers of all three gates.
	"registered":  func(p *corev1.Pod, _ string) { p.Finalizers = append(p.Finalizers, keyNormal, keyUpdate, keyDelete) },
	"cost":        func(p *corev1.Pod, value string) { p.Annotations[corev1.PodDeletionCost] = value },
	"record":      func(p *corev1.Pod, value string) { p.Annotations[apps.AnnotationInPlaceUpdateState] = value },
	"graceRecord": func(p *corev1.Pod, value string) { p.Annotations[apps.AnnotationInPlaceUpdateGrace] = value },
	"entered": func(p *corev1.Pod, since string) {
		p.Annotations[apps.AnnotationLifecycleTimestamp] = now.Add(-scenariotest.Duration(since)).Format(time.RFC3339)
	},
	"created":     func(p *corev1.Pod, since string) { p.CreationTimestamp = ago(scenariotest.Duration(since)) },
	"terminating": func(p *corev1.Pod, _ string) { p.DeletionTimestamp = new(ago(0)) },
	// gone was deleted, and so much of its grace period remains.
	"gone":   func(p *corev1.Pod, grace string) { p.DeletionTimestamp = new(ago(-scenariotest.Duration(grace))) },
	"phase":  func(p *corev1.Pod, phase string) { p.Status.Phase = corev1.PodPhase(phase) },
	"failed": func(p *corev1.Pod, _ string) { p.Status.Phase = corev1.PodFailed },
	"on":     func(p *corev1.Pod, node string) { p.Spec.NodeName = node },
	"image":  func(p *corev1.Pod, image string) { p.Spec.Containers[0].Image = image },
	"tolerates": func(p *corev1.Pod, value string) {
		key, effect, _ := strings.Cut(value, " ")
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)})
	},
	"mounts": func(p *corev1.Pod, value string) {
		template, id, _ := strings.Cut(value, " ")
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: template, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ClaimName(template, "web", id)},
		}})
	},

	// Words about conditions: mark is the condition of hooks that mark Pods as not ready, with its
	// message.
	"unready": func(p *corev1.Pod, _ string) { unready(p, aMoment) },
	"ready": func(p *corev1.Pod, since string) {
		turn(p, corev1.PodReady, corev1.ConditionTrue, "", scenariotest.Duration(since))
	},
	"conditionless": func(p *corev1.Pod, _ string) { p.Status.Conditions = p.Status.Conditions[:1] },
	"condition": func(p *corev1.Pod, kind string) {
		turn(p, corev1.PodConditionType(kind), corev1.ConditionTrue, "", time.Hour)
	},
	"mark": func(p *corev1.Pod, message string) {
		turn(p, apps.ConditionPodReady, corev1.ConditionFalse, message, time.Hour)
	},
	"marked": func(p *corev1.Pod, _ string) {
		turn(p, apps.ConditionPodReady, corev1.ConditionFalse, `[{"userAgent":"Lifecycle","key":"preUpdateHook"}]`, time.Hour)
	},
	"inService": func(p *corev1.Pod, message string) {
		turn(p, apps.ConditionInPlaceUpdateReady, corev1.ConditionTrue, message, time.Hour)
	},
	"notInService": func(p *corev1.Pod, _ string) {
		turn(p, apps.ConditionInPlaceUpdateReady, corev1.ConditionFalse, "", time.Hour)
	},
	"out": func(p *corev1.Pod, value string) {
		revision, since, _ := strings.Cut(value, " ")
		out(p, number(revision), scenariotest.Duration(since))
	},
	"withoutCondition": func(p *corev1.Pod, _ string) { lose(p, apps.ConditionInPlaceUpdateReady) },
	"withoutGate":      func(p *corev1.Pod, _ string) { p.Spec.ReadinessGates = p.Spec.ReadinessGates[1:] },
	"noGates": func(p *corev1.Pod, _ string) {
		p.Spec.ReadinessGates, p.Status.Conditions = nil, p.Status.Conditions[:1]
	},
	// kubelet sets a condition to True, with a reason, for the present spec.
	"kubelet": func(p *corev1.Pod, value string) {
		kind, reason, _ := strings.Cut(value, " ")
		p.Status.ObservedGeneration = p.Generation
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(kind), Status: corev1.ConditionTrue, Reason: reason, Message: "not enough cpu",
		})
	},

	// Words about its life: pending has neither a node nor a container, fresh is as created.
	"pending": func(p *corev1.Pod, _ string) { pend(p) },
	"fresh": func(p *corev1.Pod, _ string) {
		pend(p)
		p.Labels[apps.LabelLifecycleState], p.Status.Conditions = string(apps.StatePreparingNormal), nil
	},
	"restarts": func(p *corev1.Pod, n string) {
		p.Status.ContainerStatuses[0].RestartCount = int32(scenariotest.Number(n))
	},
	// waits is a waiting container, by the kubelet's reason; ended has just exited, as in "c0 1",
	// and runsAgain runs again after that, and is not ready yet.
	"waits": func(p *corev1.Pod, reason string) {
		unstarted(p, "").State.Waiting = &corev1.ContainerStateWaiting{Reason: reason}
	},
	"ended": func(p *corev1.Pod, value string) {
		c := unstarted(p, value)
		c.State.Terminated = c.LastTerminationState.Terminated
	},
	"runsAgain": func(p *corev1.Pod, value string) { unstarted(p, value).State.Running = &corev1.ContainerStateRunning{} },

	// rejected is a Pod that the kubelet did not admit; attempt is how many failed before.
	"rejected": func(p *corev1.Pod, reason string) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: "Pod was rejected: it says."}
		p.Labels[apps.LabelLifecycleState] = string(apps.StatePreparingNormal)
	},
	"attempt": func(p *corev1.Pod, before string) { p.Annotations[apps.AnnotationFailuresBefore] = before },
	// lived is a Pod that failed after some time.
	"lived": func(p *corev1.Pod, value string) {
		p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted"
		turn(p, corev1.PodInitialized, corev1.ConditionTrue, "", time.Hour)
		unready(p, time.Hour-scenariotest.Duration(value))
	},
	// Words about pull Pods: pullWaits is the container's state, as in "ErrImagePull not found"; over
	// is why the Pod failed.
	"pullWaits": func(p *corev1.Pod, value string) {
		reason, message, _ := strings.Cut(value, " ")
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	},
	"noSandbox": func(p *corev1.Pod, _ string) {
		turn(p, corev1.PodReadyToStartContainers, corev1.ConditionFalse, "", time.Minute)
	},
	"sandbox": func(p *corev1.Pod, _ string) {
		turn(p, corev1.PodReadyToStartContainers, corev1.ConditionTrue, "", time.Minute)
	},
	"over": func(p *corev1.Pod, reason string) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, "it says"
	},
	"pullPolicy": func(p *corev1.Pod, policy string) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullPolicy(policy) },

	// Words about updates: updating is in an update in place to rN, and the kubelet has done nothing
	// yet.
	"updating": func(p *corev1.Pod, revision string) {
		image := "app:" + strings.TrimPrefix(revision, "r")
		begin(p, number(revision), &inplace.Change{Images: map[string]string{"main": image}})
		p.Spec.Containers[0].Image = image
		p.Generation++
	},
	"restarted": func(p *corev1.Pod, _ string) { restart(p) },
	// seen is a Pod whose kubelet has observed its present spec, newContainer a Pod whose container it
	// has recreated.
	"seen": func(p *corev1.Pod, _ string) { p.Status.ObservedGeneration = p.Generation },
	"newContainer": func(p *corev1.Pod, _ string) {
		p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].Image = "c2", p.Spec.Containers[0].Image
	},
	// began is in an update to r1 that the kubelet has not carried out.
	"began": func(p *corev1.Pod, since string) {
		change := &inplace.Change{Images: map[string]string{"main": "app:1"}}
		p.Annotations[apps.AnnotationInPlaceUpdateState] = inplace.Begin(p, change, rev(1, "").Name, now.Add(-scenariotest.Duration(since))).State.String()
		p.Generation++
	},
	// ofOpenKruise is a Pod whose controller was OpenKruise until now, in the grace period before r2.
	"ofOpenKruise": func(p *corev1.Pod, _ string) {
		p.Labels[apps.LabelRevision], p.Labels[apps.LabelTemplateHash], p.Labels[apps.LabelLifecycleState] = "web-r2", "r2", string(apps.StateUpdating)
		out(p, 0, time.Second)
		p.Annotations[apps.AnnotationInPlaceUpdateState] = `{"revision":"web-r2","updateTimestamp":"2026-01-02T03:04:00Z","lastContainerStatuses":null,"updateImages":true}`
		p.Annotations[apps.AnnotationInPlaceUpdateGrace] = `{"revision":"web-r2","containerImages":{"main":"app:2"},"graceSeconds":30}`
	},
	"cpu": request,
	// resizing is in an update to cpu 200m: its record is written, and its spec if a word says so.
	"resizing": func(p *corev1.Pod, value string) {
		begin(p, 2, &inplace.Change{Resources: map[string]corev1.ResourceRequirements{"main": cpuOf("200m")}})
		if value == "written" {
			p.Spec.Containers[0].Resources = cpuOf("200m")
			p.Generation++
		}
	},
	"resized": func(p *corev1.Pod, _ string) {
		p.Status.ObservedGeneration = p.Generation
		request(p, "200m")
	},
	// base has the second container of a template with base 1. inBatch is in an update to r2: base is
	// updated, and main waits.
	"base": func(p *corev1.Pod, _ string) { withBase(p) },
	// launching has containers like base, of which main has to wait until base is ready at its first start.
	"launching": func(p *corev1.Pod, value string) {
		withBase(p)
		unready(p, aMoment)
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: apps.EnvLaunch, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + apps.AnnotationLaunch + "0']"},
		}}}
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "missing value for " + apps.EnvLaunch},
		}}
		p.Status.ContainerStatuses[1].Ready = value == "ready"
	},
	"inBatch": func(p *corev1.Pod, _ string) {
		begin(p, 2, &inplace.Change{Images: map[string]string{"main": "app:2", "base": "base:2"}})
		p.Spec.Containers[1].Image = "base:2"
		p.Generation++
	},
	"baseRuns": func(p *corev1.Pod, value string) {
		restart(p)
		p.Status.ContainerStatuses[1].Ready = value == "ready"
	},
}

// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// canary is in the Secret of both registries, which repeat it in every error.
const canary = "s3cr3t-canary"

// features are what a run's Registration and Registries ask for.
type features struct {
	policy usherv1alpha1.InPlaceUpdatePolicy
	// weights come from an annotation.
	weights bool
	// rate bounds the changes a second of discovery, 0 for none.
	rate int32
	// second adds a Registration for some of the Pods.
	second bool
	// proceed lets updates in place go on at a deadline.
	proceed bool
}

// drawn are the features of a seed.
func drawn(seed uint64) features {
	random := rand.New(rand.NewPCG(seed, 2))
	return features{
		policy: []usherv1alpha1.InPlaceUpdatePolicy{usherv1alpha1.InPlaceUpdateDeregister,
			usherv1alpha1.InPlaceUpdateFailOver, usherv1alpha1.InPlaceUpdateStay}[seed%3],
		weights: random.IntN(3) > 0,
		rate:    int32(max(random.IntN(8)-3, 0)),
		second:  random.IntN(2) > 0,
		proceed: random.IntN(3) == 0,
	}
}

func (f features) apply(r *usherv1alpha1.Registration) {
	r.Spec.OnInPlaceUpdate = f.policy
	if f.weights {
		r.Spec.Instance.WeightFrom = fromAnnotation()
	}
	if f.proceed {
		r.Spec.Deadlines.InPlaceUpdate = &usherv1alpha1.HookDeadline{
			After: metav1.Duration{Duration: simDeadline}, OnDeadline: usherv1alpha1.DeadlineProceed}
	}
}

func login() *usherv1alpha1.SecretReference {
	return &usherv1alpha1.SecretReference{Namespace: namespace, Name: "login"}
}

// registries are of kinds that can hold entries back, which is discovery, and
// cannot. Both have credentials.
func (f features) registries(names []string) []client.Object {
	objects := []client.Object{&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login"},
		Data:       map[string][]byte{"token": []byte(canary), "hmac": []byte(canary)},
	}}
	for _, name := range names {
		r := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if name == "discovery" {
			r.Spec.Consul = &usherv1alpha1.ConsulRegistry{CredentialsSecret: login()}
		} else {
			r.Spec.Webhook = &usherv1alpha1.WebhookRegistry{CredentialsSecret: login()}
		}
		if f.rate > 0 && name == "discovery" {
			r.Spec.RateLimit = &usherv1alpha1.RateLimit{ChangesPerSecond: f.rate}
		}
		objects = append(objects, r)
	}
	return objects
}

// echo repeats the credentials, as a careless server may.
func echo(err error) error {
	if err == nil || errors.Is(err, errCrashed) {
		return err
	}
	byID, rest := registry.ChangeErrors(err)
	var errs []error
	for id, one := range byID {
		errs = append(errs, &registry.ChangeError{ID: id, Err: fmt.Errorf("%w, you sent %s", one, canary)})
	}
	if rest != nil {
		errs = append(errs, fmt.Errorf("%w, you sent %s", rest, canary))
	}
	return errors.Join(errs...)
}

// hush fails if something that others can read tells the secret.
func (s *simulation) hush(where, text string) {
	s.Helper()
	if strings.Contains(text, canary) {
		s.fail("%s tells the secret: %s", where, text)
	}
}

// simRecorder takes events.
type simRecorder struct{ s *simulation }

// Eventf implements events.EventRecorder.
func (r *simRecorder) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.s.hush("event "+reason, fmt.Sprintf(note, args...))
}

// silence lets a Pod's node fall silent, or speak again, and now and then all of
// them.
func (s *simulation) silence(pod *corev1.Pod) {
	s.Helper()
	if s.random.IntN(3) > 0 {
		s.silenceOne(pod)
		return
	}
	for _, pod := range s.pods() {
		s.silenceOne(&pod)
	}
}

func (s *simulation) silenceOne(pod *corev1.Pod) {
	s.Helper()
	isReady, _ := plan.Ready(pod)
	_, was := plan.Silent(pod)
	if pod.DeletionTimestamp != nil || !isReady && !was {
		return
	}
	s.change(pod, fmt.Sprintf("its node is silent: %t", !was), func(pod *corev1.Pod) {
		status := corev1.ConditionFalse
		if was {
			status = corev1.ConditionTrue
		}
		setCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: status,
			LastTransitionTime: metav1.NewTime(s.clock.Now().Truncate(time.Second))})
	})
}

// reweigh changes what weights are taken from.
func (s *simulation) reweigh(pod *corev1.Pod) {
	s.Helper()
	s.weigh(pod, []string{"5", "70", "heavy", ""}[s.random.IntN(4)])
}

// weightOf is what registries are to list for a Pod.
func (s *simulation) weightOf(name string) int32 {
	pod := s.lookup(name)
	if pod == nil || !s.features.weights {
		return 10
	}
	if weight, err := strconv.Atoi(pod.Annotations["example.com/weight"]); err == nil {
		return int32(weight)
	}
	return 10
}

// judgeSilence looks at the removal of Pods whose nodes are silent, as the caches
// show them.
func (p *process) judgeSilence(name, registration string, changes []registry.Change) {
	p.Helper()
	if !slices.ContainsFunc(p.cached.registrations.Items, func(r usherv1alpha1.Registration) bool { return r.Name == registration }) {
		return // What leaves does so because its Registration is no more.
	}
	lost, total := p.silentPods(registration)
	removed := 0
	for _, c := range changes {
		overdue, isSilent := lost[c.Entry.Owner.PodUID]
		if c.Op != registry.Remove || !isSilent {
			continue
		}
		if removed++; !overdue {
			p.fail("%s loses %s, whose node has only just fallen silent", name, c.Entry.Owner.Pod)
		}
	}
	if removed > max(min(total*plan.DefaultNodePercent/100, total-1), 0) {
		p.fail("%s loses %d of %d Pods because their nodes are silent", name, removed, total)
	}
}

// silentPods says of each of a Registration's Pods whose node the caches show as silent whether its
// grace is over, unless it leaves for another reason that they do not show yet, and
// counts all that could be listed.
func (p *process) silentPods(registration string) (lost map[string]bool, total int) {
	lost = map[string]bool{}
	for i := range p.cached.pods {
		pod := &p.cached.pods[i]
		isReady, _ := plan.Ready(pod)
		since, isSilent := plan.Silent(pod)
		if !listable(pod) || !p.matches(registration, pod) || !isReady && !isSilent {
			continue
		}
		total++
		live := p.lookup(pod.Name)
		if isSilent && live != nil && live.UID == pod.UID && listable(live) && p.matches(registration, live) {
			lost[string(pod.UID)] = p.clock.Now().Sub(since) >= plan.DefaultNodeGrace
		}
	}
	return lost, total
}

// listable says whether a Pod's state is one in which it is listed.
func listable(pod *corev1.Pod) bool {
	switch plan.StateOf(pod) {
	case appsv1alpha1.StatePreparingNormal, appsv1alpha1.StateNormal, appsv1alpha1.StateUpdated:
		return pod.DeletionTimestamp == nil
	}
	return false
}

// defects are ways to break the operator.
type defects struct {
	// expected says that a rule is to be broken.
	expected bool
	// believes changes the objects that the caches show.
	believes func(*usherv1alpha1.Registration, []usherv1alpha1.Registry)
	// misreads changes the Pods that the caches show.
	misreads func(*corev1.Pod)
	// loses says that what vanished Registrations left is not found in Registries.
	loses bool
	// forgets says that a process knows nothing of what earlier ones saw.
	forgets bool
	// writes changes what a patch of an object's metadata holds.
	writes func(metadata map[string]any)
}

func (d defects) mislead(list client.ObjectList) {
	if registries, ok := list.(*usherv1alpha1.RegistryList); ok && d.loses {
		for i := range registries.Items {
			registries.Items[i].Status.Users = nil
		}
	}
	if pods, ok := list.(*corev1.PodList); ok && d.misreads != nil {
		for i := range pods.Items {
			d.misreads(&pods.Items[i])
		}
	}
	if d.believes == nil {
		return
	}
	switch list := list.(type) {
	case *usherv1alpha1.RegistrationList:
		for i := range list.Items {
			d.believes(&list.Items[i], nil)
		}
	case *usherv1alpha1.RegistryList:
		d.believes(&usherv1alpha1.Registration{}, list.Items)
	}
}

func (d defects) garble(patch client.Patch, data []byte) client.Patch {
	var body map[string]map[string]any
	if d.writes == nil || json.Unmarshal(data, &body) != nil || body["metadata"] == nil {
		return patch
	}
	d.writes(body["metadata"])
	changed, err := json.Marshal(body)
	if err != nil {
		return patch
	}
	return client.RawPatch(patch.Type(), changed)
}

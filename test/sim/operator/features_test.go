// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const (
	keyCreated   = "example.com/newly-create"
	keyPreNormal = "example.com/traffic-online"
	keyInPlace   = "example.com/unready-blocker-inplace"
	keyDelete    = "example.com/unready-blocker-delete"

	namespace = "demo"
	service   = "nginx"
	// here is the cluster: the UID of the first object.
	here = "uid-0001"
	// edge is a second Registration, and its service; it selects Pods by their
	// label track, whatever else they are.
	edge = "edge"
	// propagation is that of the Registrations.
	propagation = 5 * time.Second
	// requestTimeout is when requests to delete a Pod are taken back.
	requestTimeout = time.Minute
	// deadline is when updates in place proceed, in some runs.
	deadline = 15 * time.Second
	// drainDeadline is when Pods that are deleted proceed, unless a run blocks them.
	drainDeadline = 30 * time.Second
	// maxSkew is how far the clock of a process may be from the true time, in some runs.
	maxSkew = 5 * time.Second
	// canary is in the Secret of both registries, which repeat it in every error.
	canary = "s3cr3t-canary"
	// weightAnnotation is where weights come from.
	weightAnnotation = "example.com/weight"
)

// features are what a run's Registration and Registries ask for.
type features struct {
	policy usher.InPlaceUpdatePolicy
	// weights come from an annotation.
	weights bool
	// rate limits how many changes discovery takes in a second; 0 is no limit.
	rate int32
	// second adds a Registration for some of the Pods, with the same hooks.
	second bool
	// service puts Pods into a Service as well, by a readiness gate, or if it is labelled by a label.
	service, labelled bool
	// follower has the controller of a load balancer follow the labelled Service; Usher waits for the load balancer.
	follower bool
	// misspells means that the Service now and then asks for another label than its Pods have.
	misspells bool
	// proceed lets updates in place proceed at a deadline, and with the guard deletions at the
	// same one; blocks holds deletions that would proceed by default.
	proceed, blocks bool
	// guard stands before the API server; without it, nobody waits who deletes a Pod.
	guard bool
	// finishes means that Usher deletes Pods that have drained, if the reason still holds. Then
	// requesters may ask once.
	finishes bool
	// budget is the least number of Pods in service that a PodDisruptionBudget asks for; 0 is
	// no budget.
	budget int32
	// tenants are other namespaces that claim services.
	tenants bool
	// clocks of processes differ.
	clocks bool
	// applications register themselves, late, twice, again and not at all.
	applications bool
	// asks has them asked to leave and to come back, instead of overriding what they have registered.
	asks bool
	// until has Pods asked until nothing is under way there.
	until bool
	// idleFirst has the idle scaled in first.
	idleFirst bool
	// hurries has somebody delete Pods with a shorter grace period than their own.
	hurries bool
	// notices has a node of some Pods say that it goes, twice and late, and stay after all.
	notices bool
	// requests has Kubernetes' own evictions of Pods that name Usher as a responder.
	requests bool
	// lists has caches list from API servers that lag.
	lists bool
	// stands has everybody but Usher stand still for a while before the end.
	stands bool
}

// drawFeatures draws the features of a seed.
func drawFeatures(seed uint64) features {
	random := rand.New(rand.NewPCG(seed, 2))
	f := features{
		policy:  []usher.InPlaceUpdatePolicy{usher.InPlaceUpdateDeregister, usher.InPlaceUpdateFailOver, usher.InPlaceUpdateStay}[seed%3],
		weights: random.IntN(3) > 0,
		rate:    int32(max(random.IntN(8)-3, 0)),
		second:  random.IntN(2) > 0,
		proceed: random.IntN(3) == 0,
		service: random.IntN(2) == 0,
		guard:   random.IntN(4) > 0,
	}
	f.guarded(seed, random)
	f.tenants = random.IntN(2) == 0
	f.blocks = random.IntN(3) == 0
	f.stands = seed%5 == 0
	f.hurries = f.guard && seed%10 == 7
	f.until = seed%5 == 1 || seed%5 == 3
	f.idleFirst = f.until && f.guard && seed%10 == 3
	f.misspells = f.service && seed%3 > 0
	f.labelled = f.service && seed%7 < 3
	f.follower = f.labelled && seed%2 == 0
	f.notices = seed%10 == 4
	f.lists = seed%4 == 2
	if f.applications = seed%6 == 1; f.applications {
		f.second, f.weights, f.tenants = false, false, false
		f.asks = seed%12 == 1
	}
	f.requests = requestsIn(seed) && !f.applications
	if f.clocks = random.IntN(2) == 0; f.clocks {
		f.proceed, f.blocks = false, true // a deadline may come early, and would excuse what a clock does
	}
	return f
}

// guarded draws what runs with the guard have.
func (f *features) guarded(seed uint64, random *rand.Rand) {
	if f.guard {
		f.budget = random.Int32N(4)
		f.finishes = seed%4 > 0
	}
}

// requestsIn reports whether a seed has evictions of Kubernetes' own, with and without long requests.
func requestsIn(seed uint64) bool { return seed%10 == 8 || seed%10 == 6 }

// selector is that of the Service, for Pods of an app.
func (f features) selector(app string) map[string]string {
	selector := map[string]string{"app": app}
	if f.labelled {
		selector[usher.LabelInService] = "true"
	}
	return selector
}

// skew draws how far the clock of a process is ahead of the true time.
func (f features) skew(random *rand.Rand) time.Duration {
	return f.ahead() * time.Duration(2*random.IntN(2)-1) // either end: what is between shows less
}

// ahead is how far the clock of a process may be ahead.
func (f features) ahead() time.Duration {
	if !f.clocks {
		return 0
	}
	return maxSkew
}

// proceeds reports whether Pods that have left for so long may be deleted although a registry
// lists them.
func (f features) proceeds(after time.Duration) bool {
	if f.proceed && f.guard {
		return after >= deadline
	}
	return !f.blocks && after >= drainDeadline
}

// register makes a Registration do what the features ask for.
func (f features) register(spec *usher.RegistrationSpec) {
	spec.OnInPlaceUpdate = f.policy
	if f.service && spec.Instance.Service == service {
		spec.Registries = append(spec.Registries, inServices)
	}
	if f.follower && spec.Instance.Service == service {
		spec.Registries = append(spec.Registries, inBalancer)
	}
	f.byApplications(spec)
	spec.Drain.Until = f.untilIdle()
	if f.idleFirst {
		spec.ScaleInOrder = usher.ScaleInIdleFirst
	}
	if f.blocks {
		spec.Drain.OnDeadline = usher.DeadlineBlock
	}
	if f.weights {
		spec.Instance.WeightFrom = &usher.PodSource{FieldRef: usher.FieldRef{FieldPath: "metadata.annotations['" + weightAnnotation + "']"}}
	}
	if f.proceed {
		spec.Deadlines.InPlaceUpdate = &usher.HookDeadline{After: metav1.Duration{Duration: deadline}, OnDeadline: usher.DeadlineProceed}
		if f.guard {
			spec.Deadlines.PreDelete = &usher.HookDeadline{After: metav1.Duration{Duration: deadline}}
		}
	}
	if f.guard {
		spec.Drain.RequestTimeout = &metav1.Duration{Duration: requestTimeout}
	}
}

// byApplications has the Pods' applications register themselves, and asked to leave, if the features ask for it.
func (f features) byApplications(spec *usher.RegistrationSpec) {
	if f.applications {
		spec.Instance.RegisteredBy, spec.Instance.Weight = usher.RegisteredByApplication, 1
	}
	if f.asks {
		spec.Drain.Application = &usher.AskedApplication{
			Port: intstr.FromInt32(8081), Leave: &usher.ApplicationRequest{Path: "/out"}, Return: &usher.ApplicationRequest{Path: "/in"},
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package bench

import "time"

// Report is the result of a measurement.
type Report struct {
	// Taken is when it began.
	Taken time.Time `json:"taken"`
	// Machine is the machine it ran on.
	Machine Machine `json:"machine"`
	// Sizes are the results by number of Pods, in the order of Options.Sizes.
	Sizes []Size `json:"sizes"`
	// Verdicts judge them.
	Verdicts []Verdict `json:"verdicts"`
}

// Machine describes what a measurement ran on.
type Machine struct {
	// CPUs is the number of processors, which everything shares.
	CPUs int `json:"cpus"`
	// Kubernetes and Go are versions.
	Kubernetes string `json:"kubernetes"`
	Go         string `json:"go"`
	// Nodes is the number of simulated nodes.
	Nodes int `json:"nodes"`
}

// Size is the result for one number of Pods.
type Size struct {
	// Pods is that number.
	Pods int `json:"pods"`
	// Rounds is how often it was measured. The fields below cover all rounds: times and
	// costs are means, counts are sums.
	Rounds int `json:"rounds"`
	// Ceilings are what the API server can do without a controller.
	Ceilings []Ceiling `json:"ceilings"`
	// Phases are what Usher did.
	Phases []Phase `json:"phases"`
}

// Ceiling is how fast the API server answers one kind of request for each Pod, sent by
// a plain client with many workers.
type Ceiling struct {
	// Name is the kind of request, for instance "patch status".
	Name string `json:"name"`
	// Seconds is the time from the first request to the last answer.
	Seconds float64 `json:"seconds"`
	// SettledSeconds is the time until the nodes too have done their part, and a watch
	// shows it.
	SettledSeconds float64 `json:"settledSeconds"`
	// PerSecond is the number of answers per second, over Seconds.
	PerSecond float64 `json:"perSecond"`
	// Latency is the time from a request to its answer.
	Latency *Distribution `json:"latency"`
	// CPU is the CPU time it cost.
	CPU CPU `json:"cpu"`
}

// Phase is one change of a CloneSet, from the change to the last Pod.
type Phase struct {
	// Name is the name of the change, for instance "in place".
	Name string `json:"name"`
	// Kind is what it does to Pods: "in place", "recreate", "scale".
	Kind Kind `json:"kind"`
	// Seconds is the time from the change until all Pods have reached its result.
	Seconds float64 `json:"seconds"`
	// StatusSeconds is the time until the CloneSet's status reports that too.
	StatusSeconds float64 `json:"statusSeconds"`
	// PodsPerSecond is the number of Pods over Seconds.
	PodsPerSecond float64 `json:"podsPerSecond"`
	// Usher are its requests, until it has written nothing for a second.
	Usher *Requests `json:"usher"`
	// WritesPerPod is the number of its writes over the number of Pods.
	WritesPerPod float64 `json:"writesPerPod"`
	// OtherWrites is the number of writes by everybody else meanwhile: mostly the
	// nodes, and the answers to hooks.
	OtherWrites int `json:"otherWrites"`
	// HookAnswers is the number of hooks that the harness has answered.
	HookAnswers int `json:"hookAnswers,omitempty"`
	// OutOfService is how long Pods that had been ready were not ready until they were
	// again: the same Pod, as a watch saw it.
	OutOfService *Distribution `json:"outOfService,omitempty"`
	// Startup is the time from the first sight of a new Pod until it was ready.
	Startup *Distribution `json:"startup,omitempty"`
	// LeastReady is the lowest number of Pods that were ready at one time.
	LeastReady int `json:"leastReady"`
	// CPU is the CPU time it cost.
	CPU CPU `json:"cpu"`
	// PeakMiB is Usher's peak memory since its start, which precedes the first phase of
	// a size.
	PeakMiB float64 `json:"peakMiB"`
}

// Kind is what a phase does to Pods.
type Kind string

// The kinds of phases.
const (
	KindInPlace  Kind = "in place"
	KindRecreate Kind = "recreate"
	KindScale    Kind = "scale"
)

// updates reports whether maxUnavailable bounds the phase.
func (k Kind) updates() bool { return k == KindInPlace || k == KindRecreate }

// CPU is CPU time in seconds.
type CPU struct {
	// Usher is the time of Usher.
	Usher float64 `json:"usher"`
	// APIServer and Etcd are the times of the API server and its store.
	APIServer float64 `json:"apiServer"`
	Etcd      float64 `json:"etcd"`
	// Others is the time of the scheduler and the controller manager.
	Others float64 `json:"others"`
	// Harness is the time of the measuring program, which is also the nodes' agent.
	Harness float64 `json:"harness"`
	// Registry is the time of the registry, if there is one.
	Registry float64 `json:"registry,omitempty"`
	// Elsewhere is the time of other programs on the machine.
	Elsewhere float64 `json:"elsewhere"`
}

// Names used by verdicts.
const (
	ceilingCreate   = "create"
	ceilingMetadata = "patch metadata"
	ceilingStatus   = "patch status"
	ceilingImage    = "patch image"
	ceilingDelete   = "delete"
	ceilingByHand   = "in place by hand"

	phaseScaleOut    = "scale out"
	phaseInPlace     = "in place"
	phaseInPlaceHook = "in place, hook"
	phaseScaleInHook = "scale in, hook"
	phaseScaleIn     = "scale in"
)

// moved is how many Pods each phase has moved in all rounds.
func (s *Size) moved() int { return s.Pods * max(s.Rounds, 1) }

func (s *Size) ceiling(name string) *Ceiling {
	for i := range s.Ceilings {
		if s.Ceilings[i].Name == name {
			return &s.Ceilings[i]
		}
	}
	return nil
}

func (s *Size) phase(name string) *Phase {
	for i := range s.Phases {
		if s.Phases[i].Name == name {
			return &s.Phases[i]
		}
	}
	return nil
}

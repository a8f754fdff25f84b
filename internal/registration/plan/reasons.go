// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// Gate is where a Pod waits.
type Gate string

// The gates of a Pod's life, in their order.
const (
	// GatePreNormal holds a new Pod until it is registered.
	GatePreNormal Gate = "preNormal"
	// GateCreated tells that the Pod was registered for the first time.
	GateCreated Gate = "created"
	// GateInPlaceUpdate holds a Pod until it is drained for its update.
	GateInPlaceUpdate Gate = "inPlaceUpdate"
	// GateUpdated holds an updated Pod until it is registered again.
	GateUpdated Gate = "updated"
	// GatePreDelete holds a Pod until it is drained for its deletion.
	GatePreDelete Gate = "preDelete"
	// GateRequested holds a Pod that someone wants to delete until it is drained.
	GateRequested Gate = "deletionRequested"
	// GateJoining is a Pod that no hook holds on its way into a registry.
	GateJoining Gate = "joining"
	// GateLeaving is a Pod that no hook holds on its way out of a registry.
	GateLeaving Gate = "leaving"
	// GateDeletion holds a terminating Pod's finalizer until it is deregistered.
	GateDeletion Gate = "deletion"
)

// leaves reports whether a Pod at the gate waits to leave a registry.
func (g Gate) leaves() bool {
	return slices.Contains([]Gate{GateInPlaceUpdate, GatePreDelete, GateRequested, GateLeaving, GateDeletion}, g)
}

// Reason is why a Pod waits, in status and events.
type Reason string

// Reasons for waiting.
const (
	// ReasonPodNotReady: the Pod's containers or readiness gates are not ready.
	ReasonPodNotReady Reason = "PodNotReady"
	// ReasonPortNotFound: no container or native sidecar of the Pod has a port of that name.
	ReasonPortNotFound Reason = "PortNotFound"
	// ReasonAddressNotFound: the Pod has no address of the family that the Registration asks for.
	ReasonAddressNotFound Reason = "AddressNotFound"
	// ReasonLabelUnusable: the label that takes the Pod out of its Service cannot be turned.
	ReasonLabelUnusable Reason = "LabelUnusable"
	// ReasonRegistryNotFound: there is no Registry of that name.
	ReasonRegistryNotFound Reason = "RegistryNotFound"
	// ReasonRegistryNotAllowed: spec.namespaces of the Registry leaves the
	// namespace out.
	ReasonRegistryNotAllowed Reason = "RegistryNotAllowed"
	// ReasonServiceTaken: the service has entries of another namespace, or of others than
	// Usher.
	ReasonServiceTaken Reason = "ServiceTaken"
	// ReasonServiceNotAllowed: spec.services of the Registry keeps the namespace out of the
	// service.
	ReasonServiceNotAllowed Reason = "ServiceNotAllowed"
	// ReasonRegistryFull: the Registry object has no room to record the Registration.
	ReasonRegistryFull Reason = "RegistryFull"
	// ReasonRegistryUnavailable: the registry is down or slow. It is tried again.
	ReasonRegistryUnavailable Reason = "RegistryUnavailable"
	// ReasonRegistryRefuses: the registry refuses until somebody changes something.
	ReasonRegistryRefuses Reason = "RegistryRefuses"
	// ReasonClusterCopied: the cluster may be a copy of another one, whose entries are in the registry. Usher leaves it alone.
	ReasonClusterCopied Reason = "ClusterCopied"
	// ReasonNotAsked: the registry was not asked in this pass; the next one asks.
	ReasonNotAsked Reason = "NotAskedYet"
	// ReasonRateLimited: spec.rateLimit of the Registry puts the change off.
	ReasonRateLimited Reason = "RateLimited"
	// ReasonNotListed: the entry was or will be written, and is not listed yet.
	ReasonNotListed Reason = "NotListedYet"
	// ReasonNotRegistered: the Pod is Ready, and its application has not registered itself.
	ReasonNotRegistered Reason = "ApplicationNotRegistered"
	// ReasonNotInService: the application has registered itself, and gets no callers.
	ReasonNotInService Reason = "ApplicationNotInService"
	// ReasonAddressShared: other Pods may have the Pod's address, so that no entry is known to be its own.
	ReasonAddressShared Reason = "AddressShared"
	// ReasonRegistryUnsuited: the Registry's kind cannot take out what applications register.
	ReasonRegistryUnsuited Reason = "RegistryUnsuited"
	// ReasonStillListed: the entry was or will be removed, and is listed yet.
	ReasonStillListed Reason = "StillListed"
	// ReasonDraining: the entry gets no new requests, and old ones are in flight.
	ReasonDraining Reason = "Draining"
	// ReasonForeignEntry: somebody else's entry has the id of the Pod's.
	ReasonForeignEntry Reason = "ForeignEntry"
	// ReasonDuplicate: another Registration registers the Pod there already.
	ReasonDuplicate Reason = "DuplicateRegistration"
	// ReasonServiceNotFound: there is no Service of that name, so nobody is called through it.
	ReasonServiceNotFound Reason = "ServiceNotFound"
	// ReasonSelectorMismatch: the Pod is Ready, and the Service's selector does not match its labels.
	ReasonSelectorMismatch Reason = "SelectorMismatch"
	// ReasonNoEndpoint: the Pod is Ready and the Service selects it, and no EndpointSlice lists it as ready.
	ReasonNoEndpoint Reason = "NoEndpoint"
	// ReasonGateMissing: the Pod has no readiness gate usher.dev/registered, so nothing
	// takes it out of its Service.
	ReasonGateMissing Reason = "ReadinessGateMissing"
	// ReasonNodeSilent: the Pod's node does not answer, as too many others do not,
	// and the Pod stays listed.
	ReasonNodeSilent Reason = "NodeSilent"
	// ReasonKeyRefused: the API server refuses the hook's label or finalizer, as an admission policy
	// has it. Usher tries again.
	ReasonKeyRefused Reason = "KeyRefused"
	// ReasonKeyNotAllowed: Usher may not write the hook's label or finalizer: --hook-keys lacks it.
	ReasonKeyNotAllowed Reason = "KeyNotAllowed"
	// ReasonTogether: the Registration is being deleted, and perhaps the Pod with it.
	ReasonTogether Reason = "RegistrationGoes"
	// ReasonPropagation: the entry is gone; callers may still use it.
	ReasonPropagation Reason = "Propagation"
	// ReasonReconnecting: the entry is gone; the registry was away, and callers hear
	// of it when they are back.
	ReasonReconnecting Reason = "Reconnecting"
	// ReasonUnderWay: no caller chooses the Pod any more, and what they have begun is under way.
	ReasonUnderWay Reason = "RequestsUnderWay"
	// ReasonUnderWayUnknown: the Pod does not say whether anything is under way, and counts as busy.
	ReasonUnderWayUnknown Reason = "RequestsUnderWayUnknown"
)

// Reasons of conditions.
const (
	// ReasonReady: every registry can be used.
	ReasonReady = "Ready"
	// ReasonWaiting: Pods wait.
	ReasonWaiting = "PodsWait"
	// ReasonNothingWaits: no Pod waits for a registry.
	ReasonNothingWaits = "NothingWaits"
	// ReasonDeadlineExceeded: a Pod missed a deadline, and is blocked.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonForced: the Pod, or the Registration, was let go at its deadline, before a registry
	// confirmed. It is the reason of the event as well.
	ReasonForced = "HookReleasedAtDeadline"
	// ReasonBusy: the Pod was let go at its timeout, although requests may be under way. It is the reason of the event
	// as well.
	ReasonBusy = "BusyAtTimeout"
	// ReasonHooksMatched: every hook is used and answered.
	ReasonHooksMatched = "Matched"
	// ReasonHookUnused: no CloneSet uses a hook that the Registration names.
	ReasonHookUnused = "HookUnused"
	// ReasonHookUnanswered: no Registration names a hook that a CloneSet uses.
	ReasonHookUnanswered = "HookUnanswered"
	// ReasonNoCloneSet: there is no CloneSet yet to compare hooks with.
	ReasonNoCloneSet = "NoCloneSet"
	// ReasonRegistered: every registry lists the Pod.
	ReasonRegistered = "Registered"
	// ReasonDeregistered: at least one registry does not list the Pod.
	ReasonDeregistered = "Deregistered"
	// ReasonNodeGoes: the Pod leaves, since its node goes within a short time, whoever objects.
	ReasonNodeGoes = "NodeGoes"
	// ReasonEvictionRequested: the Pod leaves, since an eviction of Kubernetes' is under way that names Usher as a
	// responder.
	ReasonEvictionRequested = "EvictionRequested"
	// ReasonValid: whatever is taken from Pods can be used.
	ReasonValid = "Valid"
	// ReasonInstanceInvalid: a Pod has a weight, a tag or metadata that cannot be
	// used; it is the reason of the event about the Pod as well.
	ReasonInstanceInvalid = "InstanceInvalid"
	// ReasonOrdered: all Pods in service say how much is under way, for the order of a scale-in.
	ReasonOrdered = "Ordered"
)

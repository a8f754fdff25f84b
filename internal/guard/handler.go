// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/usher-dev/usher/internal/kube"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;patch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reasons of the guard's events on Pods.
const (
	// ReasonDeletionRequested: somebody wants to delete the Pod; it leaves its registries first.
	ReasonDeletionRequested = "DeletionRequested"
	// ReasonEvictedAfterDrain: the Pod has drained for its DaemonSet, whose controller asks for another one.
	ReasonEvictedAfterDrain = "EvictedAfterDrain"
	// ReasonDrainSkipped: someone deleted the Pod without a drain, as its annotation allows.
	ReasonDrainSkipped = "DrainSkipped"
	// ReasonDrainCutShort: somebody has deleted the Pod with less time than its own grace period, and that is nearly
	// over.
	ReasonDrainCutShort = "DrainCutShort"
)

// Handler answers admission requests. It needs nothing but the API server, so every
// replica can serve, leader or not.
type Handler struct {
	// Reader and Writer use the API server, not a cache, which might not show yet that a Pod is
	// registered.
	Reader   client.Reader
	Writer   client.Client
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// CloneSetUsers are the users that CloneSet controllers act as.
	CloneSetUsers []string
	// Secret returns the secret of the guard's replicas and API servers; nil if there is none.
	Secret func() string
	// Answered counts answers; nil counts none.
	Answered func(Answer)

	lists sync.Mutex
}

// Handle implements admission.Handler. An error allows the request: a failure of the guard never keeps
// a Pod. Only a timeout denies it, with a retry, since an attacker may have caused that.
func (h *Handler) Handle(ctx context.Context, request admission.Request) admission.Response {
	response, err := h.answer(ctx, &request.AdmissionRequest)
	switch {
	case err != nil && ctx.Err() != nil:
		h.count(AnswerBusy)
		return tooBusy()
	case err == nil:
		h.count(answerOf(response))
		return response
	}
	h.count(AnswerFailed)
	log.FromContext(ctx).Error(err, "A Pod is deleted without a drain", "pod", request.Namespace+"/"+request.Name)
	return admission.Allowed("").WithWarnings("usher: the Pod is deleted without a drain: " + err.Error())
}

func (h *Handler) count(answer Answer) {
	if h.Answered != nil {
		h.Answered(answer)
	}
}

func (h *Handler) answer(ctx context.Context, request *admissionv1.AdmissionRequest) (admission.Response, error) {
	if request.DryRun != nil && *request.DryRun {
		return admission.Allowed(""), nil
	}
	if d, known := h.repeated(request); known {
		return later(d), nil
	}
	pod, eviction, err := h.podOf(ctx, request)
	if apierrors.IsNotFound(err) {
		return admission.Allowed(""), nil
	}
	if err != nil {
		return admission.Response{}, err
	}
	d, err := h.decide(ctx, h.requestFor(pod, request, eviction))
	if err != nil {
		return admission.Response{}, err
	}
	if d.Allowed {
		return admission.Allowed(""), h.letGo(ctx, pod, &d, request.UserInfo.Username)
	}
	if err := h.tryEviction(ctx, pod, eviction); err != nil {
		return refused(err), nil
	}
	if d.Evict != nil {
		h.evictDrained(ctx, &d)
	}
	return later(d), h.ask(ctx, pod, &d, request.UserInfo.Username)
}

// repeated answers a deletion of a Pod that the request itself shows to drain for it, without a read: a ReplicaSet's
// controller repeats all its deletions whenever one of the Pods changes. Such an answer lets nothing go and writes
// nothing, so whoever forges the request is the only one refused. False means that the Pod has to be read.
func (h *Handler) repeated(request *admissionv1.AdmissionRequest) (Decision, bool) {
	said := &corev1.Pod{}
	if request.SubResource != "" || json.Unmarshal(request.OldObject.Raw, said) != nil || said.UID == "" {
		return Decision{}, false
	}
	r := h.requestFor(said, request, nil)
	if r.dependsOnOwner() {
		return Decision{}, false
	}
	d := Decide(r, h.CloneSetUsers)
	return d, !d.Allowed && d.Patch == nil
}

// requestFor returns what a request asks about a Pod.
func (h *Handler) requestFor(
	pod *corev1.Pod, request *admissionv1.AdmissionRequest, eviction *policyv1.Eviction,
) Request {
	r := Request{Pod: pod, User: request.UserInfo.Username, Eviction: eviction != nil, Now: h.Clock.Now()}
	r.GracePeriodSeconds = graceOf(request, eviction)
	if h.Secret != nil {
		r.Secret = h.Secret()
	}
	return r
}

// graceOf returns the grace period of the request; nil for the Pod's own.
func graceOf(request *admissionv1.AdmissionRequest, eviction *policyv1.Eviction) *int64 {
	var options metav1.DeleteOptions
	if eviction != nil {
		options = ptr.Deref(eviction.DeleteOptions, options)
	} else if json.Unmarshal(request.Options.Raw, &options) != nil {
		return nil // the API server has read it
	}
	return options.GracePeriodSeconds
}

// decide answers a request. If the owner's Pods drain one after another, it reads those Pods.
func (h *Handler) decide(ctx context.Context, r Request) (Decision, error) {
	if proved := h.prove(ctx, r.Pod, r.claim()); proved != nil {
		r.Owner = &proved.OwnerReference
		if r.takesTurns() {
			var err error
			if r.First, err = h.drainsFirst(ctx, r, proved.selects); err != nil {
				return Decision{}, err
			}
		}
	}
	return Decide(r, h.CloneSetUsers), nil
}

// podsAtATime is how many Pods the guard lists at a time: each may have 1.5 MiB.
const podsAtATime = 8

// drainsFirst lists the Pods that the owner selects, page by page, until Request.drainsFirst finds one;
// nil if it finds none.
func (h *Handler) drainsFirst(ctx context.Context, r Request, selects labels.Selector) (*corev1.Pod, error) {
	options := &client.ListOptions{Namespace: r.Pod.Namespace, LabelSelector: selects, Limit: podsAtATime}
	h.lists.Lock() // one page at a time, for all requests
	defer h.lists.Unlock()
	for {
		page := &corev1.PodList{}
		pods, err := kube.List[*corev1.Pod](ctx, h.Reader, "the Pods of the same owner", page, options)
		if err != nil {
			return nil, err
		}
		if first := r.drainsFirst(pods); first != nil || page.Continue == "" {
			return first.DeepCopy(), nil // a copy, so that the page can be freed
		}
		options.Continue = page.Continue
	}
}

// podOf returns the Pod that a request is about, as the API server has it now, and the eviction if it
// is one. For what lets a Pod go or writes, the request is only trusted to say which Pod it is: its sender may have
// forged the rest.
func (h *Handler) podOf(ctx context.Context, request *admissionv1.AdmissionRequest) (*corev1.Pod, *policyv1.Eviction, error) {
	if request.SubResource == "" {
		// A deletecollection names the Pod in the old object only.
		var said metav1.PartialObjectMetadata
		if err := json.Unmarshal(request.OldObject.Raw, &said); err != nil {
			return nil, nil, fmt.Errorf("read the Pod of the request: %w", err)
		}
		if said.UID == "" {
			return nil, nil, errors.New("read the Pod of the request: it has no UID")
		}
		pod, err := h.live(ctx, said.Namespace, said.Name, said.UID)
		return pod, nil, err
	}
	eviction := &policyv1.Eviction{}
	if err := json.Unmarshal(request.Object.Raw, eviction); err != nil {
		return nil, nil, fmt.Errorf("read the eviction of the request: %w", err)
	}
	var uid types.UID
	if o := eviction.DeleteOptions; o != nil {
		if len(o.DryRun) > 0 || o.GracePeriodSeconds != nil && *o.GracePeriodSeconds == 0 {
			return &corev1.Pod{}, nil, nil
		}
		if o.Preconditions != nil && o.Preconditions.UID != nil {
			uid = *o.Preconditions.UID
		}
	}
	pod, err := h.live(ctx, request.Namespace, request.Name, uid)
	return pod, eviction, err
}

// live reads a Pod. If the Pod has another UID, the one that was meant is gone; an empty UID means any.
func (h *Handler) live(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := h.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
		return nil, err
	}
	if uid != "" && pod.UID != uid {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return pod, nil
}

// tryEviction asks the API server whether it would evict the Pod now, so that a PodDisruptionBudget
// refuses before the Pod leaves its registries. Without an eviction it does nothing.
func (h *Handler) tryEviction(ctx context.Context, pod *corev1.Pod, eviction *policyv1.Eviction) error {
	if eviction == nil {
		return nil
	}
	// Without the dry run among its own options as well, the guard would call itself.
	options := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	if eviction.DeleteOptions != nil {
		options.Preconditions = eviction.DeleteOptions.Preconditions
	}
	return h.evict(ctx, pod, options, client.DryRunAll)
}

// evict creates an eviction. The Pod may be gone.
func (h *Handler) evict(ctx context.Context, pod *corev1.Pod, o metav1.DeleteOptions, options ...client.SubResourceCreateOption) error {
	attempt := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &o}
	return client.IgnoreNotFound(h.Writer.SubResource("eviction").Create(ctx, pod, attempt, options...))
}

// evictDrained evicts the Pod that a decision names, with the version that was read as a precondition,
// since the Pod may be registered again meanwhile. If it stays, the message says why; the controller's
// next request tries again.
func (h *Handler) evictDrained(ctx context.Context, d *Decision) {
	pod := d.Evict
	err := h.evict(ctx, pod, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
	if err != nil {
		d.Message += ": " + err.Error()
		return
	}
	h.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, ReasonEvictedAfterDrain, "Evict", "The Pod has drained for its DaemonSet, which now asks for another one: %s", d.Message)
}

// ask writes the request for a drain on the Pod, unless the Pod has it. The Pod may be gone.
func (h *Handler) ask(ctx context.Context, pod *corev1.Pod, d *Decision, user string) error {
	wrote, err := h.write(ctx, pod, d)
	if err != nil {
		return fmt.Errorf("ask for a drain: %w", err)
	}
	if !wrote {
		return nil
	}
	h.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, ReasonDeletionRequested, "Drain", "%s asks to delete the Pod: %s", user, d.Message)
	return nil
}

// write makes the decision's patch of the Pod, if it has one, and reports whether that is there now.
func (h *Handler) write(ctx context.Context, pod *corev1.Pod, d *Decision) (bool, error) {
	if d.Patch == nil {
		return false, nil
	}
	err := h.Writer.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, d.Patch))
	return err == nil, client.IgnoreNotFound(err)
}

// letGo says why a Pod goes that callers may use.
func (h *Handler) letGo(ctx context.Context, pod *corev1.Pod, d *Decision, user string) error {
	if d.Skipped {
		h.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonDrainSkipped, "Delete",
			"%s deletes the Pod without a drain: it is annotated so. Callers may lose requests.", user)
	}
	if !d.Hurried {
		return nil
	}
	if _, err := h.write(ctx, pod, d); err != nil {
		return fmt.Errorf("write the deadline: %w", err)
	}
	h.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonDrainCutShort, "Delete",
		"%s deletes the Pod before all callers know of it: %s. Requests may be lost.", user, d.Message)
	return nil
}

// tooBusy asks for a retry of a request that the guard could not answer in time.
func tooBusy() admission.Response {
	return later(Decision{Message: "the guard has more to do than it can: try again", RetryAfter: minRetry})
}

// later answers 429 Too Many Requests: client-go repeats the request by itself.
func later(d Decision) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: d.Message, Details: &metav1.StatusDetails{RetryAfterSeconds: int32(d.RetryAfter / time.Second)},
	}}}
}

// refused passes on the API server's refusal to evict the Pod.
func refused(err error) admission.Response {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Message: err.Error()}
	if known, ok := err.(apierrors.APIStatus); ok {
		status = known.Status()
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
}

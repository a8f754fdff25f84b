// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file interprets the API server's answers to writes, for both halves:
//
//	409, 422 without a field   Conflicts: the object has changed since it was observed; decide again
//	400, 403, 413, 422         Refused: the same write is refused until somebody changes the object or a policy
//	404                        apierrors.IsNotFound: the object, its namespace or the subresource is gone
//	429                        Delay: the API server, or the guard, asks to wait
//	none, 5xx                  Unanswered: the write may have taken effect

// Conflicts reports whether a write's preconditions did not hold. If a test of a jsonPatch does not hold, the API
// server answers with the code of an invalid object, 422, but names no field. An admission webhook that refuses the
// write may answer with the same code: that is no conflict, as to decide again would ask the webhook again at once,
// for ever.
func Conflicts(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	return apierrors.IsInvalid(err) && !FromWebhook(err) && isStatus(err) && len(causes(err)) == 0
}

// Refused reports whether the API server, or a policy there, refuses the object that a write would
// result in: the same write is refused again until somebody changes the object or the policy. Call
// Conflicts first.
func Refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// RefusesField reports whether the API server's own rules refuse a write, which name the field. A policy, a quota
// or a webhook names none: it might refuse other objects as well, or allow the write later.
func RefusesField(err error) bool {
	return apierrors.IsInvalid(err) && !FromWebhook(err) &&
		slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool { return c.Field != "" })
}

// Unanswered reports whether it is unknown if a request took effect: there is an error, and it is not
// the API server's refusal.
func Unanswered(err error) bool {
	if err == nil || Conflicts(err) {
		return false
	}
	refusals := []func(error) bool{
		apierrors.IsConflict, apierrors.IsNotFound, apierrors.IsAlreadyExists, apierrors.IsInvalid,
		apierrors.IsForbidden, apierrors.IsBadRequest, apierrors.IsTooManyRequests, apierrors.IsUnauthorized,
	}
	return !slices.ContainsFunc(refusals, func(refused func(error) bool) bool { return refused(err) })
}

// Delay returns how long the API server asks to wait before a request is sent again, at least a second, and whether
// it does.
func Delay(err error) (time.Duration, bool) {
	if !apierrors.IsTooManyRequests(err) {
		return 0, false
	}
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return max(time.Duration(seconds)*time.Second, time.Second), true
}

// NamespaceEnds reports whether nothing can be created because the namespace is being deleted.
func NamespaceEnds(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// ExceedsQuota reports whether a quota refuses an object. It is the last thing that the API server checks: the
// content of the object is right.
func ExceedsQuota(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// FromWebhook reports whether an admission webhook has answered. Webhooks choose any code.
func FromWebhook(err error) bool { return strings.Contains(err.Error(), "admission webhook") }

// WebhookFailed reports whether the API server could not ask an admission webhook.
func WebhookFailed(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook")
}

// NoDryRun reports whether an admission webhook that has side effects cannot be asked in a dry run.
func NoDryRun(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}

func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// causes returns what an answer says about single fields.
func causes(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

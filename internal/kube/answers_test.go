// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestAnswers: the meaning of each answer to a write, also when the error is wrapped.
func TestAnswers(t *testing.T) {
	pods, kind := corev1.Resource("pods"), corev1.SchemeGroupVersion.WithKind("Pod").GroupKind()
	named := field.ErrorList{field.Invalid(field.NewPath("spec"), "x", "no")}
	forbidden := func(why string) error { return apierrors.NewForbidden(pods, "a", errors.New(why)) }
	webhook := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: code, Reason: reason, Message: `admission webhook "w" denied the request`,
		}}
	}
	ends := apierrors.NewForbidden(pods, "a", nil)
	ends.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"no error":                     {nil, ""},
		"a version that is not":        {apierrors.NewConflict(pods, "a", nil), "conflicts"},
		"a test of a jsonPatch":        {apierrors.NewInvalid(kind, "a", nil), "conflicts refused"},
		"an invalid field":             {apierrors.NewInvalid(kind, "a", named), "refused field"},
		"a webhook, as invalid":        {webhook(422, metav1.StatusReasonInvalid), "refused webhook"},
		"a policy":                     {forbidden("not here"), "refused"},
		"a quota":                      {forbidden("exceeded quota: q"), "refused quota"},
		"a namespace that is deleted":  {ends, "refused ends"},
		"a bad request":                {apierrors.NewBadRequest("no"), "refused"},
		"a webhook without dry runs":   {apierrors.NewBadRequest("w does not support dry run"), "refused no-dry-run"},
		"an object that is too large":  {apierrors.NewRequestEntityTooLargeError("no"), "refused unanswered"},
		"an object that is gone":       {apierrors.NewNotFound(pods, "a"), ""},
		"a name that is taken":         {apierrors.NewAlreadyExists(pods, "a"), ""},
		"a user who is not known":      {apierrors.NewUnauthorized("no"), ""},
		"too many requests":            {apierrors.NewTooManyRequests("later", 7), "delay 7s"},
		"too many requests, when ever": {apierrors.NewTooManyRequests("later", 0), "delay 1s"},
		"an internal error":            {apierrors.NewInternalError(errors.New("etcd")), "unanswered"},
		"a webhook that is down":       {apierrors.NewInternalError(errors.New("failed calling webhook w")), "unanswered webhook-down"},
		"a time-out":                   {apierrors.NewTimeoutError("no", 1), "unanswered"},
		"no answer":                    {errors.New("connection refused"), "unanswered"},
	} {
		checktest.Same(t, name, test.want, meaning(test.err))
		if test.err != nil {
			checktest.Same(t, name+", wrapped", test.want, meaning(fmt.Errorf("write Pod a: %w", test.err)))
		}
	}
}

// meaning lists the functions that are true of an answer.
func meaning(err error) string {
	var all []string
	for _, is := range []struct {
		name string
		of   func(error) bool
	}{
		{"conflicts", Conflicts}, {"refused", Refused}, {"field", RefusesField}, {"quota", ExceedsQuota},
		{"unanswered", Unanswered}, {"ends", NamespaceEnds}, {"no-dry-run", NoDryRun}, {"webhook-down", WebhookFailed},
		{"webhook", func(err error) bool { return err != nil && FromWebhook(err) }},
	} {
		if is.of(err) {
			all = append(all, is.name)
		}
	}
	if delay, waits := Delay(err); waits {
		all = append(all, "delay "+delay.Round(time.Second).String())
	}
	return strings.Join(all, " ")
}

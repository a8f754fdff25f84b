// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	collect "github.com/usher-dev/usher/internal/collectors"
)

// Answer is the kind of the guard's answer to a review.
type Answer string

// Values of Answer; docs/metrics.md says what they mean.
const (
	AnswerAllowed Answer = "allowed"
	AnswerLater   Answer = "later"
	AnswerRefused Answer = "refused"
	AnswerBusy    Answer = "busy"
	AnswerFailed  Answer = "failed"
)

// Answers returns all values of Answer.
func Answers() []Answer {
	return []Answer{AnswerAllowed, AnswerLater, AnswerRefused, AnswerBusy, AnswerFailed}
}

// answerOf returns the Answer that a response stands for.
func answerOf(response admission.Response) Answer {
	switch {
	case response.Allowed:
		return AnswerAllowed
	case response.Result != nil && response.Result.Code == http.StatusTooManyRequests:
		return AnswerLater
	}
	return AnswerRefused
}

// newAnswers registers the counter of answers, or takes over that of an earlier guard in this process.
func newAnswers(registerer prometheus.Registerer) (func(Answer), error) {
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "usher_guard_answers_total",
		Help: "Reviews of deletions and evictions that the guard has answered: allowed, later, refused, busy, failed.",
	}, []string{"answer"})
	err := collect.Register(registerer, &answers)
	for _, answer := range Answers() {
		answers.WithLabelValues(string(answer)) // a series that begins at 1 shows no increase
	}
	return func(a Answer) { answers.WithLabelValues(string(a)).Inc() }, err
}

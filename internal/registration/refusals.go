// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// refusalMin and refusalMax bound the back-off of a Pod's keys that the API server refuses.
	refusalMin = time.Second
	refusalMax = time.Minute
	// maxRefusal bounds what a refusal says, in bytes.
	maxRefusal = 512
)

// refusal is an answer to a write of keys of users' choice, and how long Usher waits after it.
type refusal struct {
	plan.Refusal
	wait time.Duration
}

// refuses reports whether the API server has decided against the write, as admission policies do. Other
// failures say nothing of its content.
func refuses(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

// refused notes a refusal, which ends no pass and holds up no other Pod: the next pass reports it, and one
// after the back-off tries again. The caller holds the lock.
func (p *pass) refused(pod types.UID, keys []string, err error) {
	before := p.notes.refusals[pod]
	wait := min(max(2*before.wait, refusalMin), refusalMax)
	p.notes.refusals[pod] = refusal{
		Refusal: plan.Refusal{Keys: keys, Message: excerpt(err.Error()), Until: p.clock.Now().Add(wait)}, wait: wait,
	}
	if before.wait == 0 {
		p.again(batchDelay)
	} else {
		p.again(wait)
	}
}

// refusalsOf are those of the Pods that there are; others are forgotten.
func (n *notes) refusalsOf(pods []*corev1.Pod) map[types.UID]plan.Refusal {
	if len(n.refusals) == 0 {
		return nil
	}
	known := map[types.UID]plan.Refusal{}
	for _, pod := range pods {
		if r, ok := n.refusals[pod.UID]; ok {
			known[pod.UID] = r.Refusal
		}
	}
	maps.DeleteFunc(n.refusals, func(pod types.UID, _ refusal) bool { _, ok := known[pod]; return !ok })
	return known
}

// excerpt is what tenants read of an answer: printable, and no longer than it has to be.
func excerpt(text string) string {
	return plan.Shorten(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text), maxRefusal)
}

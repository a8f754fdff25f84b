// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"
)

// GateDeletion stands for a gate where a Pod waits until the API server lets it be deleted.
const GateDeletion = "deletion"

// keyTooManyRequests is the API server's reason for a deferred deletion.
const keyTooManyRequests = "TooManyRequests"

// Deferral is a deletion that the API server answered with 429: an admission webhook, such
// as Usher's guard, asks to try again later.
type Deferral struct {
	// Since is when the first of these answers came, Until when to try again.
	Since, Until time.Time
	// Message is the API server's.
	Message string
}

// deferred is the wait of a Pod whose deletion the API server has deferred.
func (s *Snapshot) deferred(v *podState) []Blocked {
	d := s.Deferred[v.pod.UID]
	return []Blocked{{Pod: v.pod.Name, Gate: GateDeletion, State: v.state, Keys: []string{keyTooManyRequests}, Since: d.Since, Deferral: &d}}
}

func (d *Deferral) text(pod string) string {
	return fmt.Sprintf("Pod %s is to be deleted, and the API server asks to wait%s: %s", pod, since("", d.Since), strings.TrimSuffix(d.Message, "."))
}

// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// maxFlight bounds how long a request can be in flight before it takes effect: the API
// server gives up after a minute, its default --request-timeout.
const maxFlight = time.Minute

// drains remembers since when Pods are known to be out of service for an update. The time
// in their condition is when the write was sent; a slow API server may have applied it
// much later, and the grace period counts from then.
type drains struct {
	mu    sync.Mutex
	known map[types.UID]drain
}

type drain struct {
	// recorded is the time in the condition; it distinguishes drains.
	recorded metav1.Time
	since    time.Time
}

func newDrains() *drains { return &drains{known: map[types.UID]drain{}} }

// note looks at the answer to a write, or at a cached Pod, and keeps when the drain was
// first known. A drain that another process began counts, at the latest, from when its
// request must have ended.
func (d *drains) note(pod *corev1.Pod, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep(pod, now)
}

func (d *drains) keep(pod *corev1.Pod, now time.Time) {
	recorded, out := drainOf(pod)
	if !out {
		delete(d.known, pod.UID)
		return
	}
	if have, ok := d.known[pod.UID]; ok && have.recorded.Equal(&recorded) {
		return
	}
	since := now
	if latest := recorded.Add(maxFlight); latest.Before(since) {
		since = latest
	}
	d.known[pod.UID] = drain{recorded: recorded, since: since}
}

// of returns since when each Pod is known to be drained; it leaves out Pods in service.
func (d *drains) of(pods []*plan.PodInfo, now time.Time) map[types.UID]time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]time.Time{}
	for _, info := range pods {
		if len(d.known) == 0 && !info.Drained() {
			continue // nothing to forget
		}
		pod := info.Pod()
		d.keep(pod, now)
		if have, ok := d.known[pod.UID]; ok {
			out[pod.UID] = have.since
		}
	}
	return out
}

// forget drops a Pod that is gone.
func (d *drains) forget(pod types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, pod)
}

func drainOf(pod *corev1.Pod) (recorded metav1.Time, out bool) {
	c := inplace.ConditionOf(pod, apps.ConditionInPlaceUpdateReady)
	if c == nil {
		return metav1.Time{}, false
	}
	return c.LastTransitionTime, c.Status == corev1.ConditionFalse
}

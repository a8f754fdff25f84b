// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// leaveTime is how long a replica that has lost its lease answers for the guard before it ends: until three
// readiness probes of the chart have failed, and EndpointSlices lead API servers to another replica. An API server that
// reaches nobody lets a deletion pass.
const leaveTime = 18 * time.Second

// lostLease is the error with which a manager ends that has lost its lease: controller-runtime does not export it.
const lostLease = "leader election lost"

var errFenced = errors.New("this process does not lead any more")

// fence keeps the controllers from the API server once their manager has ended by itself, as after the loss of its
// lease. What they have begun goes on until the process ends, and must not meet what the next leader does. The lease
// itself can still be released.
type fence struct {
	// asked is done when somebody has asked the process to end: then the controllers finish what they have begun.
	asked  context.Context
	closed atomic.Bool
}

// around is a configuration whose requests the fence lets through or not.
func (f *fence) around(config *rest.Config) *rest.Config {
	fenced := rest.CopyConfig(config)
	fenced.Wrap(func(next http.RoundTripper) http.RoundTripper { return &gate{f, next} })
	return fenced
}

// Start implements manager.Runnable.
func (f *fence) Start(ctx context.Context) error {
	<-ctx.Done()
	if f.asked.Err() == nil {
		f.closed.Store(true)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: the fence closes for a standby, too.
func (f *fence) NeedLeaderElection() bool { return false }

type gate struct {
	*fence
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.closed.Load() && !strings.Contains(r.URL.Path, "/apis/coordination.k8s.io/") {
		return nil, errFenced
	}
	return g.next.RoundTrip(r)
}

// stay waits until API servers know another replica, if a manager has ended because it has lost its lease.
func stay(ctx context.Context, ended error) {
	if ended == nil || ended.Error() != lostLease {
		return
	}
	ctrl.Log.Info("The lease is lost: the guard answers until API servers know another replica",
		"time", leaveTime.String())
	select {
	case <-ctx.Done():
	case <-time.After(leaveTime):
	}
}

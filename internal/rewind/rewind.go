// SPDX-License-Identifier: Apache-2.0

// Package rewind ends a process when etcd has been restored under it. resourceVersions go back then, and an API server
// sends nothing to who watches from a later one: what the caches hold is of a time that never was, and stays.
package rewind

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/usher-dev/usher/internal/kube"
)

// Watch asks the API server how far it is. Replicas that do not lead need it too: their caches are those of the next
// leader.
type Watch struct {
	reader client.Reader
	every  time.Duration
	last   string
}

// Setup adds a Watch to a manager, which asks that often. It has to be well below the time that a lease lasts: a replica
// whose caches are of no use must end before it can lead.
func Setup(mgr manager.Manager, every time.Duration) error {
	if err := mgr.Add(&Watch{reader: mgr.GetAPIReader(), every: every}); err != nil {
		return fmt.Errorf("watch whether resourceVersions go back: %w", err)
	}
	return nil
}

// NeedLeaderElection is false: it runs in each replica.
func (w *Watch) NeedLeaderElection() bool { return false }

// Start asks until ctx ends, and returns an error when resourceVersions have gone back.
func (w *Watch) Start(ctx context.Context) error {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	for {
		if err := w.ask(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// ask compares how far the API server is with how far it was. A list of one Pod's metadata, which all parts of Usher may
// read, has the newest resourceVersion of etcd: without one in the request, it is consistent.
func (w *Watch) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(w.every, time.Second))
	defer cancel()
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := w.reader.List(ctx, pods, client.Limit(1)); err != nil {
		log.FromContext(ctx).V(1).Info("Cannot ask the API server how far it is", "reason", err.Error())
		return nil
	}
	before := w.last
	w.last = pods.ResourceVersion
	if before != "" && kube.Later(before, w.last) {
		return fmt.Errorf("resourceVersions went back from %s to %s: etcd was restored from a snapshot, and Usher starts again to read everything anew",
			before, w.last)
	}
	return nil
}

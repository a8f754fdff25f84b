// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// maxReview is the longest review that the guard reads, in bytes. It contains a Pod, which etcd
	// keeps up to 1.5 MiB of.
	maxReview = 4 << 20
	// maxReviews bounds the reviews that the guard reads and answers at a time, in bytes, and
	// leastReview is what each counts at least: so there are 128 at most.
	maxReviews  = 8 << 20
	leastReview = 64 << 10
	// maxAnswer is how long an answer may take: no API server waits longer.
	maxAnswer = 30 * time.Second
)

// secretOf returns the path as the secret that proves what the guard has written; empty while there is none.
func secretOf(path *atomic.Pointer[string]) func() string {
	return func() string {
		if known := path.Load(); known != nil {
			return *known
		}
		return ""
	}
}

// door lets in whoever knows the path, as many at a time as there is room for. Of others it reads
// nothing but the request's header.
type door struct {
	path *atomic.Pointer[string]
	room *semaphore.Weighted
	next http.Handler
}

func newDoor(path *atomic.Pointer[string], next http.Handler) *door {
	return &door{path: path, room: semaphore.NewWeighted(maxReviews), next: next}
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.opens(r.URL.Path) {
		refuse(w, http.StatusNotFound)
		return
	}
	switch {
	case r.ContentLength < 0:
		refuse(w, http.StatusLengthRequired)
		return
	case r.ContentLength > maxReview:
		refuse(w, http.StatusRequestEntityTooLarge)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxAnswer)
	defer cancel()
	size := max(r.ContentLength, leastReview)
	if err := d.room.Acquire(ctx, size); err != nil {
		refuse(w, http.StatusServiceUnavailable)
		return
	}
	defer d.room.Release(size)
	d.next.ServeHTTP(w, r.WithContext(ctx))
}

// opens reports whether a path is the guard's. How long that takes tells nothing of the path.
func (d *door) opens(path string) bool {
	known := d.path.Load()
	if known == nil {
		return false
	}
	want, got := sha256.Sum256([]byte(*known)), sha256.Sum256([]byte(path))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// refuse ends a connection, without a word about the guard.
func refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Connection", "close")
	http.Error(w, http.StatusText(code), code)
}

// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// An API server shows a webhook no credentials, unless its admin has configured some. So the guard
// is served at a path of 32 random bytes, which only its webhook configuration has: API servers read
// that, and hardly anybody else may.

const (
	pathPrefix = "/guard/"
	pathBytes  = 32
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

// newPath makes a path that nobody can guess.
func newPath() string {
	secret := make([]byte, pathBytes)
	_, _ = rand.Read(secret) // It never fails.
	return pathPrefix + hex.EncodeToString(secret)
}

// pathOf is the path at which a configuration has API servers call the guard. It is empty if one of
// the webhooks has none that newPath could have made, or another one than the first.
func pathOf(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) (path string) {
	for _, webhook := range configuration.Webhooks {
		service := webhook.ClientConfig.Service
		if service == nil || service.Path == nil || path != "" && *service.Path != path {
			return ""
		}
		path = *service.Path
	}
	secret, found := strings.CutPrefix(path, pathPrefix)
	if bytes, err := hex.DecodeString(secret); !found || err != nil || len(bytes) != pathBytes {
		return ""
	}
	return path
}

// ready is a check of /readyz.
func (k *keeper) ready(*http.Request) error {
	if k.path.Load() == nil {
		return errors.New("the guard does not know yet at which path API servers call it")
	}
	return nil
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

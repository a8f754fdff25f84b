// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/guard/endpoint"
)

// unread is a body that nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// TestStrangersAreRefused: who does not know the path is answered before the guard reads a body, asks
// the API server or looks at the review. So is a review that is too long, or of unknown length.
func TestStrangersAreRefused(t *testing.T) {
	secret := endpoint.NewPath()
	var path atomic.Pointer[string]
	d := newDoor(&path, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the guard is asked") }))
	ask := func(path string, length int64) int {
		t.Helper()
		r, answer := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, unread{t}), httptest.NewRecorder()
		r.ContentLength = length
		d.ServeHTTP(answer, r)
		checktest.Same(t, "the connection", "close", answer.Header().Get("Connection"))
		return answer.Code
	}
	checktest.Same(t, "before there is a path", http.StatusNotFound, ask("/", 10))
	path.Store(&secret)
	for _, guess := range []string{
		"/", "/guard", "/guard/", endpoint.NewPath(), secret[:len(secret)-1], secret + "0", strings.ToUpper(secret), "/x/.." + secret,
	} {
		checktest.Same(t, "path "+guess, http.StatusNotFound, ask(guess, 10))
	}
	checktest.Same(t, "6 MB", http.StatusRequestEntityTooLarge, ask(secret, 6_000_000))
	checktest.Same(t, "an unknown length", http.StatusLengthRequired, ask(secret, -1))
}

// TestReviewsHaveRoom: what reviews take at a time is bounded; others wait until there is room, or
// their caller goes.
func TestReviewsHaveRoom(t *testing.T) {
	secret := endpoint.NewPath()
	var path atomic.Pointer[string]
	path.Store(&secret)
	asked := 0
	d := newDoor(&path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusOK)
	}))
	ask := func(length int64, gone bool) int {
		t.Helper()
		r, answer := httptest.NewRequestWithContext(t.Context(), http.MethodPost, secret, http.NoBody), httptest.NewRecorder()
		r.ContentLength = length
		ctx, cancel := context.WithCancel(t.Context())
		if gone {
			cancel()
		}
		defer cancel()
		d.ServeHTTP(answer, r.WithContext(ctx))
		return answer.Code
	}
	checktest.Same(t, "a review", http.StatusOK, ask(100, false))
	if !d.room.TryAcquire(maxReviews - leastReview) {
		t.Fatal("an answered review keeps its room")
	}
	checktest.Same(t, "the last room", http.StatusOK, ask(leastReview, false))
	crowded := ask(leastReview+1, true)
	checktest.Same(t, "more than there is room for, and its caller goes", http.StatusServiceUnavailable, crowded)
	checktest.Same(t, "asked", 2, asked)
	d.room.Release(maxReviews - leastReview)
	checktest.Same(t, "with room again", http.StatusOK, ask(maxReview, false))
	if maxReviews/leastReview != 128 {
		t.Error("the document says 128 reviews at a time")
	}
}

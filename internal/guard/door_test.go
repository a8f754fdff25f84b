// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/guard/endpoint"
)

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// TestStrangersAreRefused: a request with a wrong path is answered before the guard reads its body or
// asks the API server. So is a review that is too long, or of unknown length.
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

// knocks is a door whose path the test knows, with the reviews that it passes on.
type knocks struct {
	*door
	asked int
}

func newKnocks() *knocks {
	secret := endpoint.NewPath()
	var path atomic.Pointer[string]
	path.Store(&secret)
	k := &knocks{}
	k.door = newDoor(&path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		k.asked++
		w.WriteHeader(http.StatusOK)
	}))
	return k
}

// ask sends a review of a length from an address; timeout is how long the API server waits.
func (k *knocks) ask(t *testing.T, from string, length int64, timeout, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, *k.path.Load()+"?timeout="+timeout, strings.NewReader(body))
	r.ContentLength, r.RemoteAddr = length, from+":1"
	answer := httptest.NewRecorder()
	k.ServeHTTP(answer, r)
	return answer
}

// ofServer is the beginning of a review as API servers send it.
const ofServer = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-7","kind":{"group":"",`

// denied returns the UID of a denial that asks for a retry; empty for another answer.
func denied(t *testing.T, answer *httptest.ResponseRecorder) types.UID {
	t.Helper()
	var review admissionv1.AdmissionReview
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &review) != nil || review.Response == nil {
		return ""
	}
	if r := review.Response; r.Allowed || r.Result.Code != http.StatusTooManyRequests || r.Result.Details.RetryAfterSeconds != 1 {
		return ""
	}
	checktest.Same(t, "the kind of the answer", "admission.k8s.io/v1, Kind=AdmissionReview", review.GroupVersionKind().String())
	return review.Response.UID
}

// TestFloodsDenyNothingAway: a review for which there is no room is denied, with status 429, with its
// UID, so that the API server accepts the denial: a flood delays deletions, but lets none pass without
// a drain.
func TestFloodsDenyNothingAway(t *testing.T) {
	k, turnedAway := newKnocks(), 0
	k.turnedAway = func() { turnedAway++ }
	checktest.Same(t, "a review", http.StatusOK, k.ask(t, "10.0.0.1", 100, "", ofServer).Code)
	checktest.Same(t, "asked", 1, k.asked)
	var leaves []func()
	for _, flood := range []string{"10.0.0.2/32", "10.0.0.3/32"} { // which know the path
		leaves = append(leaves, checktest.Must(k.room.take(t.Context(), flood, maxReviews/2))(t))
	}
	for _, body := range []string{ofServer, `{"request":{"name":"web","options":{"uid":"x"},"uid":"uid-7"`} {
		checktest.Same(t, "the denied review", "uid-7", denied(t, k.ask(t, "10.0.0.1", 100, "4ms", body)))
	}
	for _, body := range []string{"", "{", `{"uid":"x","request":{"kind":{"uid":"x"},"list":["uid"]}}`, `[[["`, strings.Repeat(" ", headOfReview) + ofServer} {
		checktest.Same(t, "the answer to "+body, http.StatusServiceUnavailable, k.ask(t, "10.0.0.1", 100, "4ms", body).Code)
	}
	checktest.Same(t, "asked", 1, k.asked)
	checktest.Same(t, "counted as turned away", 7, turnedAway)
	for _, leave := range leaves {
		leave()
	}
	checktest.Same(t, "with room again", http.StatusOK, k.ask(t, "10.0.0.1", maxReview, "", ofServer).Code)
	checktest.Same(t, "asked", 2, k.asked)
	checktest.Same(t, "addresses that are remembered", 0, len(k.room.shares))
}

// TestAddressesShareTheRoom: an address that fills its share keeps no other one out.
func TestAddressesShareTheRoom(t *testing.T) {
	k := newKnocks()
	leave := checktest.Must(k.room.take(t.Context(), "10.0.0.2/32", maxShare))(t)
	defer leave()
	checktest.Same(t, "one more of the same", "uid-7", denied(t, k.ask(t, "10.0.0.2", 100, "4ms", ofServer)))
	checktest.Same(t, "another one", http.StatusOK, k.ask(t, "10.0.0.1", 100, "", ofServer).Code)
	checktest.Same(t, "asked", 1, k.asked)
}

// TestReviewsWaitForRoom: a review waits for half as long as its API server does, 1.5 s at most. The other half is for
// the answer.
func TestReviewsWaitForRoom(t *testing.T) {
	for _, row := range []struct {
		timeout string
		frees   time.Duration
		denied  types.UID
	}{
		{"3s", 1400 * time.Millisecond, ""}, {"3s", 1600 * time.Millisecond, "uid-7"},
		{"1s", 600 * time.Millisecond, "uid-7"}, {"30s", 2 * time.Second, "uid-7"},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newKnocks()
			leave := checktest.Must(k.room.take(t.Context(), "10.0.0.1/32", maxShare))(t)
			time.AfterFunc(row.frees, leave)
			answer := k.ask(t, "10.0.0.1", 100, row.timeout, ofServer)
			what := fmt.Sprintf("the review that is denied when room comes after %s of %s", row.frees, row.timeout)
			checktest.Same(t, what, row.denied, denied(t, answer))
		})
	}
}

// TestBoundsAsDocumented: the bounds are those in docs/security.md.
func TestBoundsAsDocumented(t *testing.T) {
	checktest.Same(t, "reviews at a time", 16, maxReviews/leastReview)
	checktest.Same(t, "reviews of one address at a time", 12, maxShare/leastReview)
}

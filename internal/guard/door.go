// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/access"
	"github.com/usher-dev/usher/internal/encode"
)

const (
	// maxReview is the longest review that the guard reads, in bytes. It contains a Pod, which etcd
	// keeps up to 1.5 MiB of.
	maxReview = 4 << 20
	// maxReviews bounds, in bytes, the reviews that the guard reads and answers at a time, and maxShare
	// those of one address. A review counts as at least leastReview, since the guard reads the Pod of a
	// short one too. So there are at most 16.
	maxReviews  = 8 << 20
	maxShare    = 6 << 20
	leastReview = 512 << 10
	// reviewsASecond bounds the reviews that cause requests to the API server. At most maxWaiting
	// reviews of one address wait for that, and those of at most maxAddresses.
	reviewsASecond = 200
	maxWaiting     = 400
	maxAddresses   = 256
	// maxPatience is how long a review waits for the rate limit and for room. One that is turned away comes back with
	// its controller's next attempt only, a second later: the last ones of 90 that came at a time have waited for 1 s.
	maxPatience = 1500 * time.Millisecond
	// maxAnswer is how long an answer may take: no API server waits longer.
	maxAnswer = 30 * time.Second
	// headOfReview is where an API server has the review's UID, in bytes.
	headOfReview = 4 << 10
)

// secretOf returns the path, which is also the secret that seals the guard's requests; empty while
// there is none.
func secretOf(path *atomic.Pointer[string]) func() string {
	return func() string {
		if known := path.Load(); known != nil {
			return *known
		}
		return ""
	}
}

// door passes on requests with the secret path, as many at a time as there is room for. Of other
// requests it reads only the header.
type door struct {
	path *atomic.Pointer[string]
	// line is where reviews wait for their turn: addresses take turns, so that none waits behind
	// another one's flood.
	line *access.Line
	room *room
	next http.Handler
	// turnedAway is called for each review that finds no room; nil if they are not counted.
	turnedAway func()
}

func newDoor(path *atomic.Pointer[string], next http.Handler) *door {
	return &door{path: path, line: access.NewLine(reviewsASecond, maxWaiting, maxAddresses), room: newRoom(maxReviews, maxShare), next: next}
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.opens(r.URL.Path) {
		refuse(w, http.StatusNotFound)
		return
	}
	prove(r.Context())
	switch {
	case r.ContentLength < 0:
		refuse(w, http.StatusLengthRequired)
		return
	case r.ContentLength > maxReview:
		refuse(w, http.StatusRequestEntityTooLarge)
		return
	}
	timeout := timeoutOf(r)
	// The answer has to arrive before the API server gives up and lets the deletion pass.
	ctx, cancel := context.WithTimeout(r.Context(), timeout*3/4)
	defer cancel()
	leave, err := d.enter(ctx, r, min(timeout/2, maxPatience))
	if err != nil {
		if d.turnedAway != nil {
			d.turnedAway()
		}
		busy(w, r)
		return
	}
	defer leave()
	d.next.ServeHTTP(w, r.WithContext(ctx))
}

// enter waits, at most for patience, until the rate limit and the room admit a review.
func (d *door) enter(ctx context.Context, r *http.Request, patience time.Duration) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	from := access.NetworkOf(r.RemoteAddr)
	if err := d.line.Turn(ctx, from); err != nil {
		return nil, err
	}
	return d.room.take(ctx, from, max(r.ContentLength, leastReview))
}

// timeoutOf returns how long the API server waits for the answer, as its request says.
func timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 || timeout > maxAnswer {
		return maxAnswer
	}
	return timeout
}

// busy denies a review for which there is no room, and asks for a retry. An HTTP error would be no
// denial: the API server would let the deletion pass, so that in a flood of reviews Pods would be
// deleted without a drain.
func busy(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(maxPatience)) // may fail in a test
	uid, err := uidOf(io.LimitReader(r.Body, headOfReview))
	if err != nil {
		refuse(w, http.StatusServiceUnavailable)
		return
	}
	denial := tooBusy().AdmissionResponse
	denial.UID = uid
	review := admissionv1.AdmissionReview{Response: &denial}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(encode.JSON(review)) // after an error there is no client to inform
}

// uidOf finds the UID of a review, request.uid, in the beginning of it.
func uidOf(body io.Reader) (uid types.UID, err error) {
	decoder := json.NewDecoder(body)
	for _, name := range []string{"request", "uid"} {
		if err := seek(decoder, name); err != nil {
			return "", err
		}
	}
	if err := decoder.Decode(&uid); err != nil || uid == "" {
		return "", errors.Join(err, errNoUID)
	}
	return uid, nil
}

var errNoUID = errors.New("the review has no UID")

// seek reads into the next object, up to the value of a name.
func seek(decoder *json.Decoder, name string) error {
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return errors.Join(err, errNoUID)
	}
	for decoder.More() {
		found, err := decoder.Token()
		if err != nil || found == name {
			return err
		}
		var skipped json.RawMessage
		if err := decoder.Decode(&skipped); err != nil {
			return err
		}
	}
	return errNoUID
}

// opens reports whether a path is the guard's. The comparison takes the same time for every path, so it
// reveals nothing.
func (d *door) opens(path string) bool {
	known := d.path.Load()
	if known == nil {
		return false
	}
	want, got := sha256.Sum256([]byte(*known)), sha256.Sum256([]byte(path))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// refuse answers with an error that does not mention the guard, and ends the connection.
func refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Connection", "close")
	http.Error(w, http.StatusText(code), code)
}

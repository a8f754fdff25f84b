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
	// maxReviews bounds the reviews that the guard reads and answers at a time, in bytes, and maxShare
	// those of one address. leastReview is what each counts at least, since the guard reads the Pod of a
	// short one too: so there are 16 at most.
	maxReviews  = 8 << 20
	maxShare    = 6 << 20
	leastReview = 512 << 10
	// reviewsASecond bounds the reviews that cause requests to the API server. maxWaiting of one
	// address wait for their turn, and those of maxAddresses.
	reviewsASecond = 200
	maxWaiting     = 400
	maxAddresses   = 256
	// maxPatience is how long a review waits for its turn and for room.
	maxPatience = time.Second
	// maxAnswer is how long an answer may take: no API server waits longer.
	maxAnswer = 30 * time.Second
	// headOfReview is where an API server has the review's UID, in bytes.
	headOfReview = 4 << 10
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
	// line is where reviews wait for their turn: addresses take turns, so that none waits behind
	// another one's flood.
	line *access.Line
	room *room
	next http.Handler
	// turnedAway is called for each review that finds no room; nil if nobody counts them.
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
	// The answer has to be there before the API server lets the deletion pass.
	ctx, cancel := context.WithTimeout(r.Context(), timeout*3/4)
	defer cancel()
	leave, err := d.enter(ctx, r, min(timeout/4, maxPatience))
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

// enter waits for a review's turn and for room, as long as it has patience.
func (d *door) enter(ctx context.Context, r *http.Request, patience time.Duration) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	from := access.NetworkOf(r.RemoteAddr)
	if err := d.line.Turn(ctx, from); err != nil {
		return nil, err
	}
	return d.room.take(ctx, from, max(r.ContentLength, leastReview))
}

// timeoutOf is how long the API server waits for the answer to a request, as it says in that.
func timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 || timeout > maxAnswer {
		return maxAnswer
	}
	return timeout
}

// busy denies a review that has found no room, and asks to come again. An error of HTTP would be no
// denial: the API server would let the deletion pass, and a flood would have Pods deleted without a drain.
func busy(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(maxPatience)) // where the connection has one
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
	_, _ = w.Write(encode.JSON(review)) // nobody is left to tell
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

// seek enters the object that comes next, up to the value of a name.
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

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/stage"
)

// quietFor is how long Usher must write nothing for a phase to be over.
const quietFor = time.Second

// lookEvery is how often the audit log is read meanwhile.
const lookEvery = 200 * time.Millisecond

// auditEvent is the part of an audit.k8s.io/v1 Event that is read. Each request has one, written when
// it is answered; a watch also has one when it begins.
type auditEvent struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// what returns the verb and the resource, such as "patch pods/status".
func (e auditEvent) what() string {
	what := e.Verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		what += "/" + e.ObjectRef.Subresource
	}
	return what
}

// writes reports whether it is a write that is no dry run.
func (e auditEvent) writes() bool {
	verbs := []string{"create", "update", "patch", "delete", "deletecollection"}
	return slices.Contains(verbs, e.Verb) && !strings.Contains(e.RequestURI, "dryRun=")
}

// auditLog reads an audit log while it grows.
type auditLog struct {
	path   string
	offset int64
}

// next reads the complete lines written since the last call.
func (l *auditLog) next(take func(auditEvent)) error {
	file, err := os.Open(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no request has been logged yet
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	lines := bufio.NewReaderSize(file, 1<<18)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // an incomplete line is read the next time
		}
		var event auditEvent
		if err == nil {
			err = json.Unmarshal(line, &event)
		}
		if err != nil {
			return fmt.Errorf("audit log: %w in line %.200q", err, line)
		}
		l.offset += int64(len(line))
		take(event)
	}
}

// untilQuiet counts the requests of Usher, and of all others, until Usher has written
// nothing for a while.
func (l *auditLog) untilQuiet(ctx context.Context) (own, theirs apiRequests, err error) {
	own, theirs = newRequests(), newRequests()
	last := time.Now()
	for {
		err := l.next(func(one auditEvent) {
			switch {
			case one.User.Username != stage.UsherUser:
				theirs.add(one)
			case own.add(one):
				last = time.Now()
			}
		})
		if err != nil || time.Since(last) > quietFor {
			return own, theirs, err
		}
		if err := stage.Pause(ctx, lookEvery); err != nil {
			return own, theirs, fmt.Errorf("wait until Usher writes no more: %w", err)
		}
	}
}

// apiRequests are one user's requests to the API server.
type apiRequests struct {
	// writes counts the writes by verb and resource, whatever the answer was, rejected
	// those answered with 4xx or 5xx, with the code, such as "patch pods 409".
	writes, rejected map[string]int
	// reads counts gets and lists, and dry-run writes.
	reads int
}

func newRequests() apiRequests {
	return apiRequests{writes: map[string]int{}, rejected: map[string]int{}}
}

// add counts a request and reports whether it was a write.
func (r *apiRequests) add(one auditEvent) bool {
	switch {
	case one.Verb == "watch":
		return false
	case !one.writes():
		r.reads++
		return false
	}
	r.writes[one.what()]++
	if code := one.ResponseStatus.Code; code >= 400 {
		r.rejected[fmt.Sprintf("%s %d", one.what(), code)]++
	}
	return true
}

// rejectedShare returns the share of the writes that were rejected, from 0 to 1; 0 if there were none.
func (r apiRequests) rejectedShare() float64 {
	return float64(sum(r.rejected)) / float64(max(sum(r.writes), 1))
}

func sum(counts map[string]int) int {
	total := 0
	for _, count := range counts {
		total += count
	}
	return total
}

// addAll adds counts.
func addAll(to, more map[string]int) {
	for what, count := range more {
		to[what] += count
	}
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// quietFor is how long Usher must write nothing for a phase to be over.
	quietFor = time.Second
	// lookEvery is how often the audit log is read until then.
	lookEvery = 200 * time.Millisecond
)

// request is one answered request, as in the API server's audit log.
type request struct {
	user string
	// what is the verb and the resource, such as "patch pods/status".
	what  string
	write bool
	dry   bool
	watch bool
	code  int
}

// auditEvent is the part of an audit.k8s.io/v1 Event that the benchmark reads.
type auditEvent struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// parseRequest parses one line of the audit log. Each request has one line, written
// when it is answered; only a watch has another, when it begins.
func parseRequest(line []byte) (request, error) {
	var event auditEvent
	if err := json.Unmarshal(line, &event); err != nil {
		return request{}, fmt.Errorf("audit log: %w in line %.200q", err, line)
	}
	what := event.Verb
	if ref := event.ObjectRef; ref != nil && ref.Resource != "" {
		what += " " + ref.Resource
		if ref.Subresource != "" {
			what += "/" + ref.Subresource
		}
	}
	return request{
		user: event.User.Username, what: what, write: isWrite(event.Verb), watch: event.Verb == "watch",
		dry: strings.Contains(event.RequestURI, "dryRun="), code: event.ResponseStatus.Code,
	}, nil
}

func isWrite(verb string) bool {
	switch verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// auditLog reads an audit log while it grows.
type auditLog struct {
	path   string
	offset int64
}

// next reads the complete lines written since the last call.
func (l *auditLog) next(take func(request)) error {
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
		if err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		l.offset += int64(len(line))
		if err := takeLine(bytes.TrimSpace(line), take); err != nil {
			return err
		}
	}
}

func takeLine(line []byte, take func(request)) error {
	if len(line) == 0 {
		return nil
	}
	parsed, err := parseRequest(line)
	if err != nil {
		return err
	}
	take(parsed)
	return nil
}

// untilQuiet counts Usher's requests, and the writes of others, until Usher has written
// nothing for a while.
func (l *auditLog) untilQuiet(ctx context.Context) (own *Requests, others int, err error) {
	own, theirs := newRequests(), newRequests()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	last := time.Now()
	for {
		err := l.next(func(one request) {
			switch {
			case one.user != usherUser:
				theirs.add(one)
			case own.add(one):
				last = time.Now()
			}
		})
		if err != nil {
			return nil, 0, err
		}
		if time.Since(last) > quietFor {
			return own, theirs.Total(), nil
		}
		select {
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("wait until Usher writes no more: %w", context.Cause(ctx))
		case <-look.C:
		}
	}
}

// Requests are one user's requests to the API server.
type Requests struct {
	// Writes counts the writes by verb and resource, such as "patch pods/status",
	// whatever the answer was.
	Writes map[string]int `json:"writes"`
	// Rejected counts those answered with 4xx or 5xx, with the code, such as "patch
	// pods 409".
	Rejected map[string]int `json:"rejected,omitempty"`
	// Reads counts gets and lists, and dry-run writes.
	Reads int `json:"reads"`
}

func newRequests() *Requests {
	return &Requests{Writes: map[string]int{}, Rejected: map[string]int{}}
}

// add counts a request and reports whether it was a write.
func (r *Requests) add(one request) bool {
	switch {
	case one.watch:
		return false
	case !one.write || one.dry:
		r.Reads++
		return false
	}
	r.Writes[one.what]++
	if one.code >= 400 {
		r.Rejected[fmt.Sprintf("%s %d", one.what, one.code)]++
	}
	return true
}

// Total is the number of writes.
func (r *Requests) Total() int { return sum(r.Writes) }

// RejectedShare is the share of the writes that were rejected, from 0 to 1; 0
// if there were none.
func (r *Requests) RejectedShare() float64 {
	if r.Total() == 0 {
		return 0
	}
	return float64(sum(r.Rejected)) / float64(r.Total())
}

func sum(counts map[string]int) int {
	total := 0
	for _, count := range counts {
		total += count
	}
	return total
}

// byCount sorts the keys by their counts, the largest first, then by name.
func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
}

// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// writesPolicy logs Usher's writes, and nothing else; the patches of Pods with what they change.
const writesPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Request, users: [usher], verbs: [patch], resources: [{resources: [pods]}]}
- {level: Metadata, users: [usher], verbs: [create, update, patch, delete]}
- {level: None}
`

// credential is the field by which audit events say whose certificate a request had. Each replica has its own.
const credential = "authentication.kubernetes.io/credential-id"

// write is one of Usher's writes, as the API server's audit log has it.
type write struct {
	Verb, RequestURI string
	ObjectRef        struct{ Resource, Subresource, Namespace, Name string }
	User             struct{ Extra map[string][]string }
	Response         struct{ Code int } `json:"responseStatus"`
	// Patch is the body of a patch of a Pod.
	Patch json.RawMessage `json:"requestObject"`
	// Received is when its request came, Answered when the answer went. API servers have one clock here.
	Received time.Time `json:"requestReceivedTimestamp"`
	Answered time.Time `json:"stageTimestamp"`
}

// by returns whose write it is.
func (w write) by() string { return fmt.Sprint(w.User.Extra[credential]) }

// takes reports whether it takes, renews or gives back the leader's lease.
func (w write) takes() bool { return w.ObjectRef.Resource == "leases" && w.ObjectRef.Name == lease }

// needsLeader reports whether only the leader may write that: all but leases, events, questions about rights and about
// who one is, dry runs, and what the guard writes.
func (w write) needsLeader() bool {
	return !strings.Contains(w.RequestURI, "dryRun=All") && !w.asksForDrain() && !slices.Contains([]string{"leases", "events", "tokenreviews", "subjectaccessreviews", "selfsubjectreviews"}, w.ObjectRef.Resource)
}

// asksForDrain reports whether the write is the guard's, with which it asks for the drain of a Pod: any replica may. The
// hook operator's patches of Pods name the version.
func (w write) asksForDrain() bool {
	var patch struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]*string
		}
	}
	err := json.Unmarshal(w.Patch, &patch)
	return err == nil && patch.Metadata.ResourceVersion == "" && patch.Metadata.Annotations[usherv1alpha1.AnnotationDeletionRequest] != nil
}

func (w write) String() string {
	return fmt.Sprintf("%s %s/%s %s/%s at %s", w.Verb, w.ObjectRef.Resource, w.ObjectRef.Subresource, w.ObjectRef.Namespace,
		w.ObjectRef.Name, w.Received.Format("15:04:05.000"))
}

// stray is a write of a replica that did not lead. Since then another one has had the lease; zero: nobody had.
type stray struct {
	write
	since time.Time
}

func (s stray) String() string {
	return fmt.Sprintf("%s, and another one renewed the lease at %s", s.write, s.since.Format("15:04:05.000"))
}

// strays returns the writes that took effect although their replica did not lead when they reached an API server:
// another one had had an answer to its write of the lease.
func strays(writes []write) (found []stray) {
	done := list.Only(writes, func(w write) bool { return w.Response.Code < http.StatusMultipleChoices })
	held := list.Only(done, write.takes)
	slices.SortFunc(held, func(a, b write) int { return a.Answered.Compare(b.Answered) })
	for _, w := range list.Only(done, write.needsLeader) {
		next, _ := slices.BinarySearchFunc(held, w.Received, func(h write, at time.Time) int {
			return cmp.Or(h.Answered.Compare(at), -1)
		})
		switch {
		case next == 0:
			found = append(found, stray{write: w})
		case held[next-1].by() != w.by():
			found = append(found, stray{w, held[next-1].Answered})
		}
	}
	return found
}

// readWrites reads an audit log. A line that is not complete is not read.
func readWrites(path string) (writes []write, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return writes, nil
		}
		var w write
		if err = errors.Join(err, json.NewDecoder(bytes.NewReader(line)).Decode(&w)); err != nil {
			return nil, fmt.Errorf("audit log: %w in line %.200q", err, line)
		}
		writes = append(writes, w)
	}
}

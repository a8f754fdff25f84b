// SPDX-License-Identifier: Apache-2.0

package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"

	"github.com/usher-dev/usher/internal/view"
)

// Recording is what the page shows, and what it is told of changes; see the package.
type Recording struct {
	Title string `json:"title,omitempty"`
	// Note is what the reader has to know of the whole, such as missing rights.
	Note string `json:"note,omitempty"`
	// Live means that time goes on after the last change.
	Live bool `json:"live,omitempty"`
	// Reset removes what was known before.
	Reset bool `json:"reset,omitempty"`
	// Keep is for how many milliseconds what has ended is kept; 0 keeps it.
	Keep int64 `json:"keep,omitempty"`
	Runs []Run `json:"runs"`
}

// Run is a stretch of time.
type Run struct {
	Title string `json:"title,omitempty"`
	// Start is in milliseconds since 1970. Other times count from here.
	Start int64 `json:"start"`
	// Now is how far the run is.
	Now int64 `json:"now"`
	// Marks of kind phase divide the run.
	Marks []Mark `json:"marks,omitempty"`
	Sets  []Set  `json:"sets,omitempty"`
}

// Set is a workload with its Pods.
type Set struct {
	// ID is unique within a run.
	ID string `json:"id"`
	// Title is its name for people, Text what else there is to say, such as the budget.
	Title string `json:"title,omitempty"`
	Text  string `json:"text,omitempty"`
	view.Summary
	// Registries are the lines below each lane, from the top.
	Registries []string `json:"registries,omitempty"`
	// Actions are what the reader may do with it.
	Actions []Action `json:"actions,omitempty"`
	Gone    bool     `json:"gone,omitempty"`
	// Marks are what belongs to none of its Pods.
	Marks []Mark `json:"marks,omitempty"`
	Lanes []Lane `json:"lanes,omitempty"`
}

// Action is something that the reader may do with a set, after a confirmation.
type Action struct {
	Name string `json:"name"`
	// Title is on the button, Text says what follows.
	Title string `json:"title"`
	Text  string `json:"text"`
	// To is the revision that it leads to.
	To string `json:"to,omitempty"`
}

// Lane is a Pod in time. Its name is unique within a set.
type Lane struct {
	view.Pod
	// Segments are in the order of time.
	Segments []Segment `json:"segments,omitempty"`
	Marks    []Mark    `json:"marks,omitempty"`
}

// Segment is how a Pod is from a moment on, until the next segment.
type Segment struct {
	At int64 `json:"at"`
	// State is that of the lifecycle, Terminating, Failed or Succeeded; empty after the
	// Pod's end; Unknown while nobody looked.
	State string `json:"state"`
	Ready bool   `json:"ready,omitempty"`
	// In are the registries that list the Pod.
	In []string `json:"in,omitempty"`
}

// Mark is something that happened at a moment.
type Mark struct {
	At   int64    `json:"at"`
	Kind MarkKind `json:"kind"`
	Text string   `json:"text,omitempty"`
	// Count is how often; 0 is once.
	Count int `json:"count,omitempty"`
}

// MarkKind is what a Mark stands for.
type MarkKind string

// The kinds of marks.
const (
	// MarkPhase begins a phase of a run.
	MarkPhase MarkKind = "phase"
	// MarkRestart is a container that restarted.
	MarkRestart MarkKind = "restart"
	// MarkLost are requests that were lost.
	MarkLost MarkKind = "lost"
	// MarkEvent is anything else, such as an outage of a registry.
	MarkEvent MarkKind = "event"
)

var (
	//go:embed assets/page.html
	html string
	//go:embed assets/page.css
	style string
	//go:embed assets/page.js
	script string

	document = template.Must(template.New("page").Parse(html))
)

// WriteFile writes the page as one file that needs nothing else. Without a recording it
// asks for one where it was loaded from: that is what the server serves.
func WriteFile(w io.Writer, recording *Recording) error {
	err := document.Execute(w, map[string]any{
		"Style": template.CSS(style), "Script": template.JS(script), //nolint:gosec // the package's own files
		"Policy": policy(), "Recording": recording,
	})
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// policy lets a browser run the page's own script and style, and ask nobody but the server
// of the page.
func policy() string {
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; base-uri 'none'; form-action 'none'", digest(script), digest(style))
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

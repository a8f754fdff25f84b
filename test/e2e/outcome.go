// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/usher-dev/usher/test/traffic"
)

// Outcome is the result of a story.
type Outcome struct {
	// Name, About, Registry and Loss are the story's.
	Name     string
	About    string
	Registry Registry
	Loss     Loss
	// Requests is how many were sent, Lost how many of them were lost; Reasons counts
	// the causes.
	Requests, Lost int
	Reasons        []traffic.ReasonCount
	// Losses are the first lost requests.
	Losses []traffic.Loss
	// P99 is the latency that 99 % of the requests without a requested delay did not
	// exceed.
	P99 time.Duration
	// Took is the time from the first object to the end.
	Took time.Duration
	// Failure is why the story failed; empty if it did not.
	Failure string
}

// shownLosses is how many lost requests are listed individually.
const shownLosses = 5

// percentile of the latencies that the table shows.
const percentile = 99

func outcomeOf(story Story, report traffic.Report, took time.Duration, failure error) Outcome {
	total := report.Total()
	o := Outcome{
		Name: story.Name, About: story.About, Registry: story.Registry, Loss: story.Loss,
		Requests: total.Sent, Lost: total.Lost, Reasons: report.Reasons,
		Losses: report.Losses[:min(len(report.Losses), shownLosses)],
		P99:    total.Fast.Percentile(percentile), Took: took,
	}
	switch {
	case failure != nil:
		o.Failure = failure.Error()
	case o.Lost > 0 && story.Loss == LossNone:
		o.Failure = fmt.Sprintf("%d requests were lost, want none", o.Lost)
	}
	return o
}

// result is the result of a run.
type result struct {
	Outcomes  []Outcome
	Footprint Footprint
}

const resultFile = "result.json"

func writeResult(dir string, found result) error {
	text, err := json.MarshalIndent(found, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, resultFile), text, 0o644)
}

func readResult(dir string) (result, error) {
	var found result
	text, err := os.ReadFile(filepath.Join(dir, resultFile))
	if err != nil {
		return found, fmt.Errorf("read the outcome: %w", err)
	}
	return found, json.Unmarshal(text, &found)
}

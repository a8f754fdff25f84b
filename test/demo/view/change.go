// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"time"
)

// recent is how recent a registration change must be to be mentioned with a state
// change.
const recent = time.Minute

// subjectWidth is the width of the log's second column: Pod names fit.
const subjectWidth = 26

// Line formats a line of the log: the time since the start of the run, the subject, and
// the sentence.
func Line(elapsed time.Duration, subject, sentence string) string {
	if subject == "" {
		return fmt.Sprintf("%6.1fs  %s", elapsed.Seconds(), sentence)
	}
	return fmt.Sprintf("%6.1fs  %-*s  %s", elapsed.Seconds(), subjectWidth, subject, sentence)
}

// Changes describes, in one sentence each, what happened to a Pod between two
// observations; nil for before means that the Pod is new, nil for after that it is
// gone.
func Changes(before, after *Pod, now time.Time) []string {
	switch {
	case after == nil && before == nil:
		return nil
	case after == nil:
		return []string{"is gone" + since("left etcd", !before.Registered, before.RegisteredSince, now)}
	}
	sentences := []string{}
	if before == nil {
		sentences = append(sentences, creation(after))
		before = &Pod{State: after.State}
	}
	for _, change := range []func(before, after *Pod, now time.Time) string{
		stateChange, addressChange, readyChange, versionChange, restartChange, registryChange, leavingChange, waitChange,
	} {
		if sentence := change(before, after, now); sentence != "" {
			sentences = append(sentences, sentence)
		}
	}
	return sentences
}

func creation(pod *Pod) string {
	if pod.State == "" {
		return "is created"
	}
	return "is created in " + pod.State
}

func stateChange(before, after *Pod, now time.Time) string {
	switch {
	case before.State == after.State || after.State == "":
		return ""
	case before.State == "":
		return "→ " + after.State
	default:
		return before.State + " → " + after.State + registryNote(after, now)
	}
}

// registryNote describes when callers last got news of the Pod.
func registryNote(pod *Pod, now time.Time) string {
	return since("left etcd", !pod.Registered, pod.RegisteredSince, now) +
		since("in etcd since", pod.Registered, pod.RegisteredSince, now)
}

func since(what string, holds bool, at, now time.Time) string {
	ago := now.Sub(at)
	if !holds || at.IsZero() || ago > recent {
		return ""
	}
	if what == "in etcd since" {
		return fmt.Sprintf("  (in etcd for %s)", seconds(ago))
	}
	return fmt.Sprintf("  (%s %s ago)", what, seconds(ago))
}

func addressChange(before, after *Pod, _ time.Time) string {
	if before.Address == after.Address || after.Address == "" {
		return ""
	}
	return "has the address " + after.Address
}

func readyChange(before, after *Pod, _ time.Time) string {
	switch {
	case before.Ready == after.Ready:
		return ""
	case after.Ready:
		return "is ready"
	default:
		return "is not ready"
	}
}

func versionChange(before, after *Pod, _ time.Time) string {
	if before.Version == after.Version || after.Version == "" {
		return ""
	}
	return "runs " + after.Version
}

func restartChange(before, after *Pod, _ time.Time) string {
	if before.Restarts == after.Restarts || after.Restarts == 0 {
		return ""
	}
	return fmt.Sprintf("has restarted its container (restarts: %d)", after.Restarts)
}

func registryChange(before, after *Pod, _ time.Time) string {
	switch {
	case before.Registered == after.Registered:
		return ""
	case after.Registered:
		return "joined etcd"
	default:
		return "left etcd"
	}
}

func leavingChange(before, after *Pod, now time.Time) string {
	if before.Leaving || !after.Leaving {
		return ""
	}
	if after.Registered {
		return "is deleted  (still in etcd)"
	}
	return "is deleted" + registryNote(after, now)
}

func waitChange(before, after *Pod, _ time.Time) string {
	if before.Waits == after.Waits || after.Waits == "" {
		return ""
	}
	return "waits for " + after.Waits
}

// seconds formats a duration like a stopwatch.
func seconds(d time.Duration) string {
	return fmt.Sprintf("%.1fs", max(d, 0).Seconds())
}

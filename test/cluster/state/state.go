// SPDX-License-Identifier: Apache-2.0

// Package state stores what is known of the cluster that runs in a directory, and
// distinguishes a valid state from one left behind by a crash.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
)

// fileName is the state's file in the cluster's directory.
const fileName = "state.json"

// Phase is how far the supervisor has got.
type Phase string

// The phases of a supervisor.
const (
	Starting Phase = "starting"
	Ready    Phase = "ready"
	Stopping Phase = "stopping"
	// Failed is the final phase of a supervisor that ended with an error.
	Failed Phase = "failed"
)

// State is what a supervisor writes about itself and its cluster.
type State struct {
	// Supervisor is the process that runs the cluster.
	Supervisor process.Identity `json:"supervisor"`
	// Phase is how far it has got.
	Phase Phase `json:"phase"`
	// Since is when the supervisor was started; for Failed, when it failed.
	Since time.Time `json:"since"`
	// Message is the cause, for Failed.
	Message string `json:"message,omitempty"`
	// Version of Kubernetes.
	Version string `json:"version,omitempty"`
	// Server is the API server's URL.
	Server string `json:"server,omitempty"`
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Components are the control plane's processes, in start order.
	Components []cluster.Component `json:"components,omitempty"`
	// Nodes are the names of the nodes that the supervisor runs.
	Nodes []string `json:"nodes,omitempty"`
}

// Write replaces the state of a directory atomically.
func Write(dir string, s State) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	path := filepath.Join(dir, fileName)
	temp := fmt.Sprintf("%s.%d", path, s.Supervisor.PID)
	if err := os.WriteFile(temp, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	return nil
}

// Remove deletes the state of a directory; it is not an error if there is none.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the cluster's state: %w", err)
	}
	return nil
}

// Verdict is how valid a directory's state is.
type Verdict string

// The verdicts of Examine.
const (
	// None means that there is no state: no cluster runs.
	None Verdict = "None"
	// Running means that the supervisor is alive; State.Phase is what it does.
	Running Verdict = "Running"
	// Ended means that the supervisor reported an error and exited.
	Ended Verdict = "Ended"
	// Stale means that the supervisor has gone without reporting its end.
	Stale Verdict = "Stale"
)

// Finding is the result of Examine.
type Finding struct {
	// State is the content of the file; empty for None.
	State State
	// Verdict is how valid the state is.
	Verdict Verdict
	// Reason is why the state is stale.
	Reason string
}

// Examine reads the state of a directory and compares it with the running processes. An
// unreadable file is Stale.
func Examine(dir string, table process.Table) (Finding, error) {
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Finding{Verdict: None}, nil
	}
	if err != nil {
		return Finding{}, fmt.Errorf("read the cluster's state: %w", err)
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil || s.Supervisor.PID <= 0 {
		return Finding{Verdict: Stale, Reason: path + " does not hold a state"}, nil
	}
	return judge(s, table), nil
}

func judge(s State, table process.Table) Finding {
	id := s.Supervisor
	if table.Alive(id) {
		return Finding{State: s, Verdict: Running}
	}
	if s.Phase == Failed {
		return Finding{State: s, Verdict: Ended}
	}
	reason := fmt.Sprintf("its supervisor, process %d, has ended without a word", id.PID)
	if now, err := table.Identify(id.PID); err == nil {
		switch {
		case now.BootID != id.BootID:
			reason = "the machine was restarted"
		case now.StartTicks != id.StartTicks:
			reason += fmt.Sprintf(" (the number %d now belongs to another program)", id.PID)
		}
	} else if boot, err := table.BootID(); err == nil && boot != id.BootID {
		reason = "the machine was restarted"
	}
	return Finding{State: s, Verdict: Stale, Reason: reason}
}

// Survivors are the components of a state that still run. After a crash of the
// supervisor there should be none.
func Survivors(s State, table process.Table) []cluster.Component {
	list := []cluster.Component{}
	for _, c := range s.Components {
		if table.Alive(c.Process) {
			list = append(list, c)
		}
	}
	return list
}

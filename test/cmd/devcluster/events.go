// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/state"
)

// message is what a background supervisor sends to the "up" that started it, one JSON
// object per line. Exactly one message has Ready or Error set, and it is the last.
type message struct {
	Event *progress.Event `json:"event,omitempty"`
	Ready *state.State    `json:"ready,omitempty"`
	Error string          `json:"error,omitempty"`
}

// reporter writes messages. The supervisor does not care whether "up" still listens.
type reporter struct {
	mu  sync.Mutex
	out io.Writer
}

func (r *reporter) send(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text, err := json.Marshal(m); err == nil {
		_, _ = r.out.Write(append(text, '\n'))
	}
}

func (r *reporter) event(e progress.Event) { r.send(message{Event: &e}) }

// receive reads messages until the writer is gone.
func receive(in io.Reader) <-chan message {
	messages := make(chan message)
	go func() {
		defer close(messages)
		decoder := json.NewDecoder(in)
		for {
			var m message
			if decoder.Decode(&m) != nil {
				return
			}
			messages <- m
		}
	}()
	return messages
}

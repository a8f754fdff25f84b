// SPDX-License-Identifier: Apache-2.0

// Package checkout handles the checkout of Usher that a development program runs in: it
// builds the programs of the tree and installs its API and its rights.
package checkout

import (
	"context"
	"fmt"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/fetch"
)

// Find returns the root of the checkout that contains the working directory.
func Find(getenv func(string) string) (string, error) {
	source, err := build.FindSource("", getenv)
	if err != nil {
		return "", err
	}
	return source.Root(), nil
}

// Program is one of the checkout's own programs.
type Program struct {
	// Name is the name of its build in the progress.
	Name string
	// Module is the directory of its module.
	Module string
	// Pkg is its package, relative to the module.
	Pkg string
	// Out is the output file.
	Out string
}

// Compile builds the program with the go command. The error contains the compiler's
// output; it is the cause of ctx if that ended.
func (p Program) Compile(ctx context.Context, tell progress.Sink) error {
	tell.Tell(progress.Event{Task: p.Name, State: progress.Compiling})
	if _, err := fetch.Run(ctx, p.Module, "go", "build", "-o", p.Out, p.Pkg); err != nil {
		tell.Tell(progress.Event{Task: p.Name, State: progress.Failed})
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	tell.Tell(progress.Event{Task: p.Name, State: progress.Done, Detail: "built"})
	return nil
}

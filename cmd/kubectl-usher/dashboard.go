// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/log"

	lanes "github.com/usher-dev/usher/internal/page"
)

const (
	// keepFor is how long the page remembers.
	keepFor = time.Hour
	// tellEvery bounds how often it is told what is new.
	tellEvery = 250 * time.Millisecond
	// tellRest is how many times longer than that takes the pause after it is.
	tellRest = 20
)

func dashboardCommand(s *session) *cobra.Command {
	var port int
	var noOpen bool
	command := described("dashboard")
	command.Args = cobra.NoArgs
	command.RunE = func(c *cobra.Command, _ []string) error {
		if err := s.connect(); err != nil {
			return err
		}
		return s.dashboard(c.Context(), port, !noOpen && isTerminal(s.Out))
	}
	command.Flags().IntVar(&port, "port", 0, "`port` on loopback; 0 is any that is free")
	command.Flags().BoolVar(&noOpen, "no-open", false, "do not open a browser; without a terminal none is opened")
	return command
}

// dashboard serves the page until ctx ends.
func (s *session) dashboard(ctx context.Context, port int, open bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log.SetLogger(logr.Discard()) // the page says what is wrong
	cluster, err := s.observe(ctx)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("listen on loopback: %w; --port chooses another port", err)
	}
	recorder := lanes.NewRecorder(time.Now(), "Usher: namespace "+s.namespace, keepFor)
	server := lanes.NewServer(recorder, s.do)
	address := server.Address(listener)
	tell(s.Out, "%s\nOpen this address in a browser. Ctrl-C ends it.\n", address)
	if open {
		defer s.browse(ctx, address)()
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return server.Serve(ctx, listener) })
	both.Go(func() error { return cluster.report(ctx, server) })
	err = both.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// report tells the page of changes, and of what time alone changes.
func (c *cluster) report(ctx context.Context, server *lanes.Server) error {
	for {
		now := time.Now()
		all, err := c.workloads(ctx, now)
		if err != nil {
			return err
		}
		seen := make([]lanes.Seen, len(all))
		for i := range all {
			seen[i].Workload = all[i]
			if c.mayChange {
				seen[i].Actions = lanes.Actions(&all[i])
			}
		}
		if err := server.Observe(now, c.note(now), seen); err != nil {
			return err
		}
		if err := pause(ctx, max(tellEvery, min(tellRest*time.Since(now), clockEvery)), c.changed); err != nil {
			return err
		}
	}
}

// do carries out what somebody confirmed on the page.
func (s *session) do(ctx context.Context, id, action, to string) error {
	parts := strings.Split(id, "/")
	if len(parts) != 3 || parts[0] != kindCloneSet.Kind || parts[1] != s.namespace {
		return fmt.Errorf("%s is no CloneSet of namespace %s", id, s.namespace)
	}
	set, err := s.cloneSet(ctx, []string{"clone/" + parts[2]})
	if err != nil {
		return err
	}
	switch action {
	case "pause", "resume":
		return s.pause(ctx, set, &change{}, action == "pause")
	case "undo":
		return s.undo(ctx, set, &change{}, to)
	}
	return fmt.Errorf("the page knows no action %q", action)
}

// browse opens a browser. The token is in a file that nobody else can read, since a
// program's arguments can be read by all. It returns what removes the file.
func (s *session) browse(ctx context.Context, address string) (done func()) {
	dir, err := os.MkdirTemp("", "kubectl-usher-")
	if err != nil {
		tell(s.ErrOut, "No browser is opened: %v\n", err)
		return func() {}
	}
	done = func() { _ = os.RemoveAll(dir) }
	file := filepath.Join(dir, "open.html")
	text := `<meta http-equiv="refresh" content="0; url=` + html.EscapeString(address) + `">`
	if err = os.WriteFile(file, []byte(text), 0o600); err == nil {
		err = opener(ctx, file).Start()
	}
	if err != nil {
		tell(s.ErrOut, "No browser is opened: %v\n", err)
	}
	return done
}

func opener(ctx context.Context, file string) *exec.Cmd {
	switch runtime.GOOS {
	case "darwin":
		return exec.CommandContext(ctx, "open", file)
	case "windows":
		return exec.CommandContext(ctx, "rundll32", "url.dll,FileProtocolHandler", file)
	}
	return exec.CommandContext(ctx, "xdg-open", file)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// dirEnv names the environment variable for the cluster's directory.
const dirEnv = "USHER_DEVCLUSTER_DIR"

// defaultNodes is how many nodes a cluster gets.
const defaultNodes = 2

// errHelp means that help was requested and shown.
var errHelp = errors.New("help was shown")

// usageError is an invalid command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

// settings are the flags of all commands; each command registers those it has.
type settings struct {
	dir        string
	dirFlag    bool // the directory was named on the command line
	port       int
	nodes      int
	simulate   bool
	programs   string
	foreground bool
	user       string
	groups     []string
	events     int
}

// newFlags creates a flag set with the one flag that all commands except build have.
func newFlags(name string, s *settings) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&s.dir, "dir", "", "the cluster's `folder` (default: $"+dirEnv+", and without that usher/devcluster in your cache folder)")
	return fs
}

func clusterFlags(fs *flag.FlagSet, s *settings) {
	fs.IntVar(&s.port, "port", 0, "the API server's `port` on 127.0.0.1 (default: a free one)")
	fs.IntVar(&s.nodes, "nodes", defaultNodes, "how many nodes; `number` 0 leaves all Pods pending")
	fs.BoolVar(&s.simulate, "simulate", false, "only pretend to run containers, for clusters with thousands of Pods")
	fs.StringVar(&s.programs, "programs", "", "the `folder` of images: a container of image NAME:TAG runs the program NAME\nin it with APP_VERSION=TAG (default: one with the demo's service, web)")
}

// parse parses the flags; about is the first line of the help.
func parse(fs *flag.FlagSet, args []string, about string, t terminal) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		t.sayf("%s\n\nFlags:\n%s", about, describe(fs))
		return errHelp
	}
	if err != nil {
		// Package flag writes flags with one dash, we with two.
		return &usageError{errors.New(strings.Replace(err.Error(), ": -", ": --", 1))}
	}
	if fs.NArg() > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", fs.Arg(0))}
	}
	return nil
}

// describe lists the flags with two dashes, one per line.
func describe(fs *flag.FlagSet) string {
	text := &strings.Builder{}
	fs.VisitAll(func(f *flag.Flag) {
		value, about := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" {
			about += " (default: " + f.DefValue + ")"
		}
		about = strings.ReplaceAll(about, "\n", "\n"+strings.Repeat(" ", 21))
		writef(text, "  %-18s %s\n", strings.TrimRight("--"+f.Name+" "+strings.ToUpper(value), " "), about)
	})
	return text.String()
}

// check completes the settings and refuses invalid ones.
func (s *settings) check() error {
	if s.port < 0 || s.port > 65535 {
		return &usageError{fmt.Errorf("--port is %d: give one from 1 to 65535, or leave it out for a free one", s.port)}
	}
	if s.programs != "" {
		programs, err := filepath.Abs(s.programs)
		if err != nil {
			return err
		}
		s.programs = programs
		if info, err := os.Stat(programs); err != nil || !info.IsDir() {
			return &usageError{fmt.Errorf("--programs: %s is no folder: name one with executable files", programs)}
		}
	}
	if s.nodes < 0 {
		return &usageError{fmt.Errorf("--nodes is %d: give 0 or more", s.nodes)}
	}
	dir, err := folder(s.dir, os.Getenv)
	s.dir, s.dirFlag = dir, s.dir != ""
	return err
}

// folder is the cluster's directory: the flag, the environment, or the default.
func folder(flagged string, getenv func(string) string) (string, error) {
	if flagged == "" {
		flagged = getenv(dirEnv)
	}
	if flagged != "" {
		return filepath.Abs(flagged)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder (give --dir or set %s): %w", dirEnv, err)
	}
	return filepath.Join(cache, "usher", "devcluster"), nil
}

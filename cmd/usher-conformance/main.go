// SPDX-License-Identifier: Apache-2.0

// Command usher-conformance tries whether a server does what Usher needs of a webhook registry, and prints what holds
// and what does not (docs/registry/webhook.md). It ends with 1 if something does not hold, and with 2 if it cannot try.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/usher-dev/usher/pkg/registrytest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// The exit codes.
const (
	allHold = iota
	someFail
	cannotTry
)

// run is the command; it returns the exit code.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	w, err := parse(args, complaints)
	if errors.Is(err, flag.ErrHelp) {
		return allHold
	}
	if err != nil {
		return cannotTry // parse has said why.
	}
	rows, err := w.Try(ctx)
	if len(rows) > 0 {
		_, _ = fmt.Fprint(out, registrytest.Table(rows))
	}
	if err != nil {
		_, _ = fmt.Fprintln(complaints, "usher-conformance:", err)
		return cannotTry
	}
	if slices.ContainsFunc(rows, func(r registrytest.Row) bool { return r.Result == registrytest.Fails }) {
		return someFail
	}
	return allHold
}

// parse reads the flags, and complains of what is wrong with them.
func parse(args []string, complaints io.Writer) (registrytest.Webhook, error) {
	var w registrytest.Webhook
	var key, ca string
	flags := flag.NewFlagSet("usher-conformance", flag.ContinueOnError)
	flags.SetOutput(complaints)
	flags.StringVar(&w.URL, "webhook", "", "the server's `URL`, as spec.webhook.url of a Registry would have it; entries of services "+
		"usher-conformance-… come and go there")
	flags.StringVar(&key, "hmac-file", "", "a `file` with the key that signs requests, as the key hmac of the credentials Secret has it; without "+
		"it requests are not signed")
	flags.StringVar(&ca, "ca-file", "", "a `file` with the PEM bundle that verifies the server's certificate; without it the system's roots do")
	flags.DurationVar(&w.Timeout, "timeout", 5*time.Second, "how long a call may take, as spec.timeout")
	flags.DurationVar(&w.Stay, "stay", 10*time.Second, "how long an entry must stay without heartbeats; a server with a lease needs a longer trial")
	flags.StringVar(&w.Service, "service", "", "the one `service` to use, which must be empty; by default services of new names")
	flags.StringVar(&w.Foreign, "foreign", "", "an entry that something other than Usher wrote, as `SERVICE/ID`; changes to it are asked for, which "+
		"the server must refuse")
	if err := flags.Parse(args); err != nil {
		return w, err
	}
	var err error
	if w.URL == "" || flags.NArg() > 0 {
		err = errors.New("say which server: --webhook http://127.0.0.1:8080/usher")
	}
	if err == nil {
		w.HMAC, err = content("hmac-file", key)
	}
	if err == nil {
		w.CA, err = content("ca-file", ca)
	}
	if err != nil {
		_, _ = fmt.Fprintln(complaints, "usher-conformance:", err)
	}
	return w, err
}

// content reads the file that a flag names; nil if it names none.
func content(flag, file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return data, nil
}

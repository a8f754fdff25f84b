// SPDX-License-Identifier: Apache-2.0

// Command web is the web service of the demo: a stand-in for an application without
// draining.
//
// It listens on $POD_IP:$PORT (127.0.0.1:8080 if they are not set):
//
//	GET /                who answers: version, Pod, process
//	GET /slow?d=1500ms   the same after that time (at most a minute)
//	GET /readyz          200 once it serves
//	GET /healthz         200
//
// As in many applications, SIGTERM ends it at once and cuts requests in flight: their
// senders see the connection break. $TERM_GRACE, a duration such as 5s, lets them
// finish for that long instead. $IGNORE_TERM makes it ignore SIGTERM. $START_DELAY
// delays the start of listening.
//
// "web sleep SECONDS" and "web get URL" are for exec hooks and probes: images of the
// development cluster have no shell.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// slowest is the longest delay that a request may ask for.
const slowest = time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		return serve()
	case args[0] == "sleep" && len(args) == 2:
		return sleep(args[1])
	case args[0] == "get" && len(args) == 2:
		return get(args[1], os.Stdout)
	}
	return fmt.Errorf("unknown arguments %q: use none, sleep SECONDS or get URL", args)
}

func sleep(seconds string) error {
	duration, err := strconv.ParseFloat(seconds, 64)
	if err != nil || duration < 0 {
		return fmt.Errorf("sleep %q: give a number of seconds", seconds)
	}
	time.Sleep(time.Duration(duration * float64(time.Second)))
	return nil
}

// get prints the URL's answer; it also fails if the answer is not 2xx.
func get(url string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), slowest)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(response.Body, 1<<20))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("read the answer of %s: %w", url, err)
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("get %s: %s", url, response.Status)
	}
	return nil
}

// settings come from the environment.
type settings struct {
	address               string
	startDelay, termGrace time.Duration
	ignoreTerm            bool
	answer                answer
}

// answer identifies who answers.
type answer struct {
	Version string `json:"version"`
	Pod     string `json:"pod"`
	PID     int    `json:"pid"`
}

func loadSettings(getenv func(string) string) (settings, error) {
	or := func(name, fallback string) string {
		if value := getenv(name); value != "" {
			return value
		}
		return fallback
	}
	s := settings{
		address:    net.JoinHostPort(or("POD_IP", "127.0.0.1"), or("PORT", "8080")),
		ignoreTerm: getenv("IGNORE_TERM") != "",
		answer:     answer{Version: or("APP_VERSION", "unknown"), Pod: or("POD_NAME", "none"), PID: os.Getpid()},
	}
	for name, field := range map[string]*time.Duration{"START_DELAY": &s.startDelay, "TERM_GRACE": &s.termGrace} {
		duration, err := time.ParseDuration(or(name, "0s"))
		if err != nil || duration < 0 {
			return settings{}, fmt.Errorf("%s=%q: give a duration such as 1500ms", name, getenv(name))
		}
		*field = duration
	}
	return s, nil
}

func serve() error {
	s, err := loadSettings(os.Getenv)
	if err != nil {
		return err
	}
	terminated := make(chan os.Signal, 1)
	if s.ignoreTerm {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(terminated, syscall.SIGTERM, os.Interrupt)
	}
	select {
	case <-terminated:
		return nil
	case <-time.After(s.startDelay):
	}
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on $POD_IP:$PORT: %w", err)
	}
	server := &http.Server{Handler: routes(s.answer), ReadHeaderTimeout: slowest}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Printf("web %s of %s serves on %s\n", s.answer.Version, s.answer.Pod, listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-terminated:
	}
	if s.termGrace == 0 {
		fmt.Println("terminated")
		return server.Close()
	}
	fmt.Println("terminated, finishing what is in flight")
	ctx, cancel := context.WithTimeout(context.Background(), s.termGrace)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return fmt.Errorf("requests were cut after $TERM_GRACE: %w", errors.Join(err, server.Close()))
	}
	return nil
}

func routes(who answer) http.Handler {
	reply := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(who) // a client that went away does not matter
	}
	fine := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { reply(w) })
	mux.HandleFunc("GET /readyz", fine)
	mux.HandleFunc("GET /healthz", fine)
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
		duration, err := time.ParseDuration(r.URL.Query().Get("d"))
		if err != nil || duration < 0 || duration > slowest {
			http.Error(w, fmt.Sprintf("d: give a duration of up to %s, such as 1500ms", slowest), http.StatusBadRequest)
			return
		}
		fmt.Println("a request that takes", duration)
		select {
		case <-time.After(duration):
			reply(w)
		case <-r.Context().Done():
		}
	})
	return mux
}

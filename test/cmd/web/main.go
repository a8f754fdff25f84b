// SPDX-License-Identifier: Apache-2.0

// Command web is the web service of the demo: a stand-in for an application without
// draining.
//
// It listens on $POD_IP:$PORT (127.0.0.1:8080 if they are not set):
//
//	GET /                who answers: version, Pod, process
//	GET /slow?d=1500ms   the same after that time (at most a minute)
//	GET /stream?d=30s    a line every 100 ms for so long, and "end"
//	GET /metrics         streams_active: how many streams are under way
//	GET /readyz          200 once it serves
//
// As in many applications, SIGTERM ends it at once and cuts requests in flight: their
// senders see the connection break. $IGNORE_TERM makes it ignore SIGTERM, and $BROKEN
// makes it exit at once.
//
// With $ETCD, an etcd's URL, it registers itself there in the service $SERVICE, such as services/stock, under a lease:
//
//	POST /leave          it takes its entry out, and goes on serving
//	POST /return         it puts its entry in again
//
// It removes its entry when it gets SIGTERM.
//
// "web sleep SECONDS" is for exec hooks: images of the development cluster have no shell.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
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
		duration, err := time.ParseDuration(args[1] + "s")
		time.Sleep(duration)
		return err
	}
	return fmt.Errorf("unknown arguments %q: use none, or sleep SECONDS", args)
}

// answer identifies the instance that answers.
type answer struct {
	Version string `json:"version"`
	Pod     string `json:"pod"`
	PID     int    `json:"pid"`
}

func serve() error {
	if os.Getenv("BROKEN") != "" {
		return errors.New("this version is broken")
	}
	terminated := make(chan os.Signal, 1)
	if os.Getenv("IGNORE_TERM") != "" {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(terminated, syscall.SIGTERM, os.Interrupt)
	}
	address := net.JoinHostPort(cmp.Or(os.Getenv("POD_IP"), "127.0.0.1"), cmp.Or(os.Getenv("PORT"), "8080"))
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on $POD_IP:$PORT: %w", err)
	}
	who := answer{cmp.Or(os.Getenv("APP_VERSION"), "unknown"), cmp.Or(os.Getenv("POD_NAME"), "none"), os.Getpid()}
	own, deregister, err := register(os.Getenv("ETCD"), os.Getenv("SERVICE"), who.Pod, listener.Addr().String())
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes(who, own), ReadHeaderTimeout: slowest}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Printf("web %s of %s serves on %s\n", who.Version, who.Pod, listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-terminated:
		fmt.Println("terminated")
		deregister()
		return server.Close()
	}
}

// routes are the paths that it serves; own is its entry in a registry, nil if it registers itself nowhere.
func routes(who answer, own *entry) http.Handler {
	reply := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(who) // a client that went away does not matter
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { reply(w) })
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
		duration, ok := span(w, r)
		if !ok {
			return
		}
		fmt.Println("a request that takes", duration)
		select {
		case <-time.After(duration):
			reply(w)
		case <-r.Context().Done():
		}
	})
	if own != nil {
		mux.HandleFunc("POST /leave", own.ask(true))
		mux.HandleFunc("POST /return", own.ask(false))
	}
	all := &streams{}
	mux.HandleFunc("GET /stream", all.stream)
	mux.HandleFunc("GET /metrics", all.metrics)
	return mux
}

// SPDX-License-Identifier: Apache-2.0

// Command webhook is a webhook registry that keeps its entries in memory, as a start for your own:
//
//	go run ./examples/webhook &
//	go run ./cmd/usher-conformance --webhook http://127.0.0.1:8080/usher
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/usher-dev/usher/examples/webhook/receiver"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8080", "where to listen, as `HOST:PORT`")
	key := flag.String("hmac-file", "", "a `file` with the key that signs requests; without it every request is obeyed")
	flag.Parse()
	err := serve(*address, *key)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serve answers until it cannot.
func serve(address, file string) error {
	r := &receiver.Receiver{Base: "/usher"}
	if file != "" {
		key, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		r.Key = key
	}
	server := &http.Server{Addr: address, Handler: r, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
	return server.ListenAndServe()
}

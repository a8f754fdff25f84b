// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"syscall"
)

const (
	loopback = "127.0.0.1"
	// Ports are below the range for outgoing connections (Linux: 32768 and up), so that
	// no connection can take one between its choice and its use.
	firstPort = 20000
	lastPort  = 32000
	// portTries bounds the search for one free port.
	portTries = 200
)

// PortInUseError means that a requested port is taken.
type PortInUseError struct {
	// Port is the port on 127.0.0.1.
	Port int
}

// Error names the port and the remedy.
func (e *PortInUseError) Error() string {
	return fmt.Sprintf("port %d on %s is in use by another program: stop it (ss -ltnp 'sport = :%d' shows it), or choose another port",
		e.Port, loopback, e.Port)
}

// FreePorts picks n different ports on the loopback interface at random that are free now.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	var chosen []int
	for range n * portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if !slices.Contains(chosen, port) && checkPort(ctx, port) == nil {
			chosen = append(chosen, port)
		}
		if len(chosen) == n {
			return chosen, nil
		}
	}
	return nil, fmt.Errorf("found no %d free ports from %d to %d on %s: end programs that listen there", n, firstPort, lastPort, loopback)
}

// checkPort returns nil if a port is free, *PortInUseError if it is taken, and otherwise
// another error, for instance a missing permission. Port 0, which is any, is fine.
func checkPort(ctx context.Context, port int) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", hostPort(port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &PortInUseError{Port: port}
	case err != nil:
		return fmt.Errorf("port %d on %s cannot be used: %w", port, loopback, err)
	}
	return listener.Close()
}

func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

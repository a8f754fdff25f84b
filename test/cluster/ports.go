// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
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
	return fmt.Sprintf("port %d on %s is in use by another program: stop that one (it is listed by: ss -ltnp 'sport = :%d'), "+
		"ask for another port, or for none to get a free one", e.Port, loopback, e.Port)
}

// choosePorts picks n different ports at random that are free now.
func choosePorts(n int, random func(n int) int, free func(port int) bool) ([]int, error) {
	chosen := []int{}
	taken := map[int]bool{}
	for tries := 0; len(chosen) < n; tries++ {
		if tries == n*portTries {
			return nil, fmt.Errorf("found no %d free ports from %d to %d on %s: end programs that listen there", n, firstPort, lastPort, loopback)
		}
		port := firstPort + random(lastPort-firstPort)
		if !taken[port] && free(port) {
			chosen = append(chosen, port)
		}
		taken[port] = true
	}
	return chosen, nil
}

// FreePorts picks n free ports on the loopback interface.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	return choosePorts(n, rand.IntN, func(port int) bool { return tryPort(ctx, port) == nil })
}

// CheckPort returns nil if a requested port is available, and *PortInUseError if it is
// taken. Port 0, which requests none, is fine.
func CheckPort(ctx context.Context, port int) error {
	if port == 0 {
		return nil
	}
	return tryPort(ctx, port)
}

// tryPort returns nil if a port is available, *PortInUseError if it is taken, and
// otherwise another error, for instance a missing permission.
func tryPort(ctx context.Context, port int) error {
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

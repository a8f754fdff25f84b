// SPDX-License-Identifier: Apache-2.0

package ownnet

import (
	"net"
	"os"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestEnter: inside, a process listens on an address of the prefix and is reached there, and there is no interface but
// that of the loopback. Outside, the prefix does not lead here.
func TestEnter(t *testing.T) {
	address := Prefix().Addr().Next()
	prepared := false
	inside := Enter(t, func() { prepared = true })
	if prepared == inside {
		t.Errorf("prepared: %v, inside: %v", prepared, inside)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address.String()+":0")
	if !inside {
		if err == nil {
			t.Errorf("%s leads to this machine outside, too", listener.Addr())
		}
		return
	}
	checktest.NoError(t, err)
	conn := checktest.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String()))(t)
	checktest.NoError(t, conn.Close())
	checktest.NoError(t, listener.Close())
	if interfaces := checktest.Must(net.Interfaces())(t); len(interfaces) != 1 || interfaces[0].Name != "lo" {
		t.Errorf("the interfaces are %v", interfaces)
	}
}

// TestFailuresAreSeen: what fails inside fails outside.
func TestFailuresAreSeen(t *testing.T) {
	if os.Getenv(insideEnv) == t.Name() {
		os.Exit(1)
	}
	if err := play(t); err == nil {
		t.Error("the process inside has failed, and nobody knows")
	}
}

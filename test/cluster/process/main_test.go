// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

// roleEnv makes this test binary act as a process of a test.
const roleEnv = "PROCESS_TEST_ROLE"

func TestMain(m *testing.M) {
	os.Exit(play(os.Getenv(roleEnv), m))
}

func play(role string, m *testing.M) int {
	switch role {
	case "":
		return m.Run()
	case "talker": // writes something and exits
		for i := range 30 {
			fmt.Println("line", i)
		}
		return 3
	case "waiter": // ends on SIGTERM
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("waiting")
		<-stop
		fmt.Println("ends in order")
		return 0
	case "stubborn": // ends on SIGKILL only
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("waiting")
		forever()
	case "parent": // has a child and never ends it
		s := NewSpawner()
		p, err := s.Start(Spec{
			Name: "child", Path: os.Args[0], Env: append(os.Environ(), roleEnv+"=stubborn"),
			Log: filepath.Join(os.Getenv("PROCESS_TEST_DIR"), "child.log"),
		})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("child", p.PID())
		forever()
	}
	return 1
}

// forever never returns.
func forever() {
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR1)
	<-never
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gofrs/flock"
)

// InUseError means that a cluster already runs in a directory.
type InUseError struct {
	// Dir is the directory.
	Dir string
	// PID is the process that runs it.
	PID int
}

// Error names the directory and the process.
func (e *InUseError) Error() string {
	return fmt.Sprintf("a cluster already runs in %s (process %d): stop it first, or choose another directory", e.Dir, e.PID)
}

func lockFile(dir string) string { return filepath.Join(dir, "lock") }

// lockDir locks a directory for one cluster. The kernel releases the lock when this
// process ends, however it ends.
func lockDir(dir string) (*flock.Flock, error) {
	lock := flock.New(lockFile(dir))
	locked, err := lock.TryLock()
	if err == nil && !locked {
		return nil, &InUseError{Dir: dir, PID: holder(dir)}
	}
	if err == nil {
		err = os.WriteFile(lockFile(dir), []byte(strconv.Itoa(os.Getpid())), 0o644)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), lock.Close())
	}
	return lock, nil
}

// holder is the process that has written its ID to the lock file.
func holder(dir string) int {
	text, _ := os.ReadFile(lockFile(dir))
	pid, _ := strconv.Atoi(string(text))
	return pid
}

// Running returns the process that runs a cluster in a directory; 0 if none does.
func Running(dir string) (pid int, err error) {
	lock := flock.New(lockFile(dir))
	free, err := lock.TryRLock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("is a cluster running in %s: %w", dir, err)
	}
	if !free {
		pid = holder(dir)
	}
	return pid, lock.Close()
}

// SPDX-License-Identifier: Apache-2.0

// Package filelock provides mutual exclusion between processes with flock(2) on a file
// that names the holder. The kernel releases the lock when its holder dies, however it
// dies.
package filelock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// HeldError means that another process holds the lock.
type HeldError struct {
	// Path is the lock file.
	Path string
	// Holder is the holder's description of itself; empty until the holder has written
	// it.
	Holder string
}

// Error names the holder.
func (e *HeldError) Error() string {
	holder := e.Holder
	if holder == "" {
		holder = "another process"
	}
	return fmt.Sprintf("%s is locked by %s", e.Path, holder)
}

// Lock is a held lock.
type Lock struct{ file *os.File }

// Try takes the lock at once or fails with *HeldError. me describes the holder to
// others.
func Try(path, me string) (*Lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a lock: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(&HeldError{Path: path, Holder: holder(file)}, file.Close())
	}
	if err == nil {
		err = write(file, me)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return &Lock{file: file}, nil
}

// Release releases the lock. The file stays: deleting it would let two processes lock
// two files of the same name.
func (l *Lock) Release() error {
	// Empty it first, so that nobody reads of a holder that has left.
	return errors.Join(l.file.Truncate(0), l.file.Close())
}

func write(file *os.File, me string) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(me+"\n"), 0)
	return err
}

func holder(file *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<10))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

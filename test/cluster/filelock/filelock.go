// SPDX-License-Identifier: Apache-2.0

// Package filelock keeps two processes apart with flock(2) on a file that says
// who holds it. The kernel releases the lock when its holder dies, however it
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

// HeldError says that another holds the lock.
type HeldError struct {
	// Path is the lock's file.
	Path string
	// Holder is what the holder says of itself; empty in the moment in which it
	// has not said it yet.
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

// Try takes the lock at once or fails with *HeldError. The text me is what
// others read of the holder.
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

// Release gives the lock back. The file stays: deleting it would let two
// processes lock two files of one name.
func (l *Lock) Release() error {
	// Emptied first: nobody must read of a holder that has left.
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

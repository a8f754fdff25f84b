// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Try(path, "process 1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Try(path, "process 2")
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("the second got %v; want *HeldError", err)
	}
	if held.Holder != "process 1" || held.Path != path || !strings.Contains(held.Error(), "process 1") {
		t.Errorf("the second reads %+v", held)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	second, err := Try(path, "process 2")
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	_, err = Try(path, "process 3")
	if !errors.As(err, &held) || held.Holder != "process 2" {
		t.Errorf("the third got %v; want it to read of process 2", err)
	}
	if err := second.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestTryNamesTheFileThatItCannotOpen(t *testing.T) {
	_, err := Try(filepath.Join(t.TempDir(), "missing", "lock"), "me")
	if err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("error is %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gofrs/flock"

	"github.com/usher-dev/usher/internal/checktest"
)

func TestOnceIsOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cache", "thing")
	// The remains of a killed process.
	checktest.NoError(t, os.MkdirAll(filepath.Join(folder+".making", "half"), 0o755))
	var made atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			err := Once(t.Context(), folder, "Making a thing", func(_ context.Context, dir string) error {
				made.Add(1)
				return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "whole"), nil, 0o600))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if files, err := os.ReadDir(folder); err != nil || len(files) != 1 || files[0].Name() != "whole" || made.Load() != 1 {
		t.Errorf("made %d times; the folder holds %v, %v", made.Load(), files, err)
	}
}

func TestOnceLeavesNothingThatFailed(t *testing.T) {
	folder, broken := filepath.Join(t.TempDir(), "thing"), errors.New("broken")
	err := Once(t.Context(), folder, "Making a thing", func(_ context.Context, dir string) error {
		return errors.Join(os.WriteFile(dir, nil, 0o600), broken)
	})
	if !errors.Is(err, broken) || exists(folder) || exists(folder+".making") {
		t.Errorf("%v; is the folder there: %v", err, exists(folder))
	}
}

func TestOnceWaitsNoLongerThanItsContext(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "thing")
	lock := flock.New(folder + ".lock")
	checktest.NoError(t, lock.Lock())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Once(ctx, folder, "Making a thing", func(context.Context, string) error { return nil })
	if !errors.Is(err, context.Canceled) || exists(folder) {
		t.Errorf("while another makes it: %v", err)
	}
	checktest.NoError(t, lock.Close())
}

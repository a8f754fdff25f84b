// SPDX-License-Identifier: Apache-2.0

// Package checktest has the checks that all tests share.
package checktest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns the value of a call, and ends the test if there is an error.
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Same fails the test if a value is not the wanted one, and reports the difference.
func Same[T any](t testing.TB, what string, want, have T) {
	t.Helper()
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s differs (-want +have):\n%s", what, diff)
	}
}

// Says checks that a text or an error contains all the words.
func Says(t testing.TB, what string, something any, words ...string) {
	t.Helper()
	text := fmt.Sprint(something)
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s does not say %q: %s", what, word, text)
		}
	}
}

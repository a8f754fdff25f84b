// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

const root = "../.."

// TestWords: each step of a story begins with a word, each word is used by a story, and none has two
// meanings in one scope. docs/stories.md has them all.
func TestWords(t *testing.T) {
	scopes := checktest.Must(readScopes(root))(t)
	for _, w := range wrong(scopes) {
		t.Error(w)
	}
	before := string(checktest.Must(os.ReadFile(filepath.Join(root, page)))(t))
	checktest.Same(t, page+" (make generate writes it)", checktest.Must(replaced(before, scopes))(t), before)
}

// TestWrong finds the mistakes in a small project.
func TestWrong(t *testing.T) {
	scopes := checktest.Must(readScopes("testdata"))(t)
	checktest.Same(t, "what is wrong", []string{
		`test/toys/testdata/stories/toys.txt:4: no word begins "jump"`,
		`test/toys/toys_test.go: no story uses the word "sleep": take it out, or write a story with it`,
		`test/toys: the word "make" has two meanings: rename one`,
		`test/integration/scene/words.go: no story uses the word "make": take it out, or write a story with it`,
	}, wrong(scopes))
	checktest.Same(t, "the list", `test/toys: 1 stories, which can use the words of test/integration/scene as well.

  make TOY
      makes a toy, and paints it; test/toys/toys_test.go
  sleep
      does nothing; test/toys/toys_test.go

test/integration/scene: Words about any object. The folders that name this one can use them.

  make OBJECT
      creates an object; test/integration/scene/words.go

`, text(scopes))
}

// SPDX-License-Identifier: Apache-2.0

// Command words lists the words that steps of stories can begin with: it reads the tables of words in
// the source, and the stories themselves. With -write it writes the list into docs/stories.md.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "`folder` of the project")
	write := flag.Bool("write", false, "write the list into docs/stories.md instead of printing it")
	flag.Parse()
	if err := run(*root, *write); err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

func run(root string, write bool) error {
	scopes, err := readScopes(root)
	if err != nil {
		return err
	}
	if !write {
		fmt.Print(text(scopes))
		return nil
	}
	return writePage(root, scopes)
}

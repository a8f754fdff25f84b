// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/scenariotest"
)

// word is a word as its table in the source has it.
type word struct {
	Name, Args, Does string
	// file has the table, relative to the project.
	file string
	// used counts the steps that begin with it.
	used int
}

// scope is a folder of stories, with the words that their steps can begin with.
type scope struct {
	// folder is the folder of the stories' package.
	folder string
	words  []*word
	// shared are words of a package that several scopes share.
	shared []*word
	// strangers are steps that begin with no word, each with its place.
	strangers []string
	stories   int
	// facts are what some words of the scope accept in place of FACT.
	facts []*word
}

// all returns the words of a scope, its own first.
func (s *scope) all() []*word { return slices.Concat(s.words, s.shared) }

// sharedFolder is the package whose words belong to each scope that adds them to its own.
const sharedFolder = "test/integration/scene"

// readScopes reads the tables of words below test/, and counts how often stories use them.
func readScopes(root string) (scopes []*scope, err error) {
	sources, err := readSources(filepath.Join(root, "test"))
	if err != nil {
		return nil, err
	}
	shared := wordsOf(root, sources[filepath.Join(root, sharedFolder)])
	if len(shared) == 0 {
		return nil, fmt.Errorf("there are no words in %s", sharedFolder)
	}
	for _, folder := range sortedKeys(sources) {
		s := &scope{folder: relative(root, folder), words: wordsOf(root, sources[folder]), facts: factsOf(sources[folder])}
		switch {
		case len(s.words) == 0:
			continue
		case s.folder == sharedFolder:
			s.words = nil
		case addsShared(sources[folder]):
			s.shared = shared
		}
		if err := s.readStories(root, folder); err != nil {
			return nil, err
		}
		if s.stories > 0 {
			scopes = append(scopes, s)
		}
	}
	return append(scopes, &scope{folder: sharedFolder, words: shared}), nil
}

// source is a Go file.
type source struct {
	name string
	*ast.File
}

// readSources reads all Go files below a folder, by their folders.
func readSources(root string) (map[string][]source, error) {
	sources := map[string][]source{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder := filepath.Dir(name)
		sources[folder] = append(sources[folder], source{name, parsed})
		return nil
	})
	return sources, err
}

// addsShared reports whether a package adds the shared words to its own: it calls scene.Words.
func addsShared(files []source) (adds bool) {
	for _, file := range files {
		ast.Inspect(file.File, func(node ast.Node) bool {
			if selector, ok := node.(*ast.SelectorExpr); ok && selector.Sel.Name == "Words" {
				folder, isName := selector.X.(*ast.Ident)
				adds = adds || isName && folder.Name == path.Base(sharedFolder)
			}
			return true
		})
	}
	return adds
}

// wordsOf returns the words of a package, in the order of its source: composite literals with the
// fields Name, Does and Run.
func wordsOf(root string, files []source) (words []*word) {
	for _, file := range files {
		if file.Name.Name == "scenariotest" {
			continue
		}
		ast.Inspect(file.File, func(node ast.Node) bool {
			literal, ok := node.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if w := wordOf(literal, "Run"); w != nil {
				w.file = relative(root, file.name)
				words = append(words, w)
			}
			return true
		})
	}
	return words
}

// wordOf returns the word of a literal, or the fact; nil if it has no Name, no Does, or not the field that does it.
func wordOf(literal *ast.CompositeLit, does string) *word {
	fields := map[string]ast.Expr{}
	for _, element := range literal.Elts {
		if field, ok := element.(*ast.KeyValueExpr); ok {
			if name, ok := field.Key.(*ast.Ident); ok {
				fields[name.Name] = field.Value
			}
		}
	}
	name, isText := constant(fields["Name"])
	about, explained := constant(fields["Does"])
	if !isText || !explained || fields[does] == nil {
		return nil
	}
	args, _ := constant(fields["Args"])
	return &word{Name: name, Args: args, Does: about}
}

// factsOf returns the facts of a package, in the order of its source: composite literals with the fields Name, Does and
// Wrong.
func factsOf(files []source) (facts []*word) {
	for _, file := range files {
		ast.Inspect(file.File, func(node ast.Node) bool {
			literal, ok := node.(*ast.CompositeLit)
			if ok {
				if f := wordOf(literal, "Wrong"); f != nil {
					facts = append(facts, f)
				}
			}
			return true
		})
	}
	return facts
}

// constant returns the text of a literal, or of several that are added.
func constant(expression ast.Expr) (text string, ok bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		first, ok := constant(e.X)
		second, too := constant(e.Y)
		return first + second, ok && too
	}
	return "", false
}

// readStories counts the words in the stories of a package: text files in testdata/*, and stories.yaml.
func (s *scope) readStories(root, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "testdata", "*", "*.txt"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name := relative(root, file)
		for _, story := range scenariotest.Parse(name, string(text)) {
			s.stories++
			for _, step := range story.Steps() {
				s.count(step.Place(name), step.Parts(severalInALine(s.folder)))
			}
		}
	}
	return s.readYAML(filepath.Join(folder, "stories.yaml"))
}

// severalInALine reports whether the lines of a scope's stories can have several steps.
func severalInALine(folder string) bool { return strings.HasPrefix(folder, "test/sim/") }

// readYAML counts the words of stories in YAML, if there are any.
func (s *scope) readYAML(file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var stories []struct{ Name, Play string }
	if err := errors.Join(err, yaml.Unmarshal(text, &stories)); err != nil {
		return err
	}
	for _, story := range stories {
		s.stories++
		for line := range strings.Lines(story.Play) {
			if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "#") {
				s.count(story.Name, []string{strings.TrimSpace(line)})
			}
		}
	}
	return nil
}

// count counts the words of steps at a place.
func (s *scope) count(place string, steps []string) {
	all := s.all()
	names := namesOf(all)
	for _, step := range steps {
		name, _, ok := scenariotest.Beginning(names, step)
		if !ok {
			s.strangers = append(s.strangers, fmt.Sprintf("%s: no word begins %q", place, step))
			continue
		}
		all[slices.Index(names, name)].used++
	}
}

func namesOf(words []*word) (names []string) {
	for _, w := range words {
		names = append(names, w.Name)
	}
	return names
}

// wrong returns the words that no story uses, the words with two meanings in a scope, and the steps
// without a word.
func wrong(scopes []*scope) (all []string) {
	for _, s := range scopes {
		all = append(all, s.strangers...)
		for _, w := range s.words {
			if w.used == 0 {
				all = append(all, fmt.Sprintf("%s: no story uses the word %q: take it out, or write a story with it", w.file, w.Name))
			}
		}
		for _, name := range scenariotest.Twice(namesOf(s.all())) {
			all = append(all, fmt.Sprintf("%s: the word %q has two meanings: rename one", s.folder, name))
		}
	}
	return all
}

func relative(root, name string) string {
	short, err := filepath.Rel(root, name)
	if err != nil {
		return name
	}
	return filepath.ToSlash(short)
}

func sortedKeys[T any](m map[string]T) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

const (
	here     = "github.com/usher-dev/usher/internal/cloneset"
	planners = here + "/plan"
)

// commands are the verbs with which the name of a method begins that changes its receiver. A method with another
// name is a query, and changes nothing.
var commands = regexp.MustCompile(`^(?i:add|begin|change|close|collect|confirm|detach|drop|end|finish|forget|keep|lend|` +
	`make|merge|note|offer|open|put|record|run|take|wait|write)([A-Z]\w*)?$`)

// pipeline are the values that the steps of a pass hand on.
var pipeline = []string{"observation", "results", "pullResults", "status", "reported", "finished"}

// snapshotsOwn are the packages that make snapshots of their own, and so may write them.
var snapshotsOwn = []string{"github.com/usher-dev/usher/internal/forecast", "github.com/usher-dev/usher/internal/view"}

// TestRules: nothing outside the package plan writes a Plan or a Snapshot, no step of a pass writes a value that it
// got from another one, and a method that changes its receiver has a verb's name.
func TestRules(t *testing.T) {
	l := listPackages(t, "./internal/...", "./cmd/usher/...")
	checktest.Same(t, "the packages of the controller are among them", true, len(l.sources[here]) > 20)
	for _, name := range slices.Sorted(maps.Keys(l.sources)) {
		for _, breach := range l.breaches(t, name, l.sources[name]) {
			t.Error(breach)
		}
	}
}

// TestRulesAreChecked: each rule finds code that breaks it.
func TestRulesAreChecked(t *testing.T) {
	l, file := listPackages(t, "./internal/cloneset/plan"), "testdata/rules/broken.go"
	text := string(checktest.Must(os.ReadFile(file))(t))
	var want []string
	for i, line := range strings.Split(text, "\n") {
		if _, breach, found := strings.Cut(line, "// want: "); found {
			want = append(want, fmt.Sprintf("broken.go:%d: %s", i+1, breach))
		}
	}
	var found []string
	for _, breach := range l.breaches(t, here, []string{file}) {
		at := strings.Index(breach, "broken.go")
		found = append(found, breach[at:])
	}
	checktest.Same(t, "breaches", len(want), len(found))
	for i := range want {
		if !strings.HasPrefix(found[i], want[i]) {
			t.Errorf("found %q, want %q", found[i], want[i])
		}
	}
}

// listed are the files of packages that the rules concern, and the compiled packages that they import.
type listed struct {
	sources, exports map[string][]string
	files            *token.FileSet
}

func listPackages(t *testing.T, patterns ...string) *listed {
	t.Helper()
	fields := "-json=ImportPath,Export,Dir,GoFiles,Imports,DepOnly"
	command := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", fields}, patterns...)...)
	command.Dir = "../.."
	out, err := command.Output()
	checktest.NoError(t, err)
	l := &listed{map[string][]string{}, map[string][]string{}, token.NewFileSet()}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Export, Dir string
			GoFiles, Imports        []string
			DepOnly                 bool
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return l
		} else if err != nil {
			t.Fatal(err)
		}
		l.exports[p.ImportPath] = []string{p.Export}
		concerned := strings.HasPrefix(p.ImportPath, here) || slices.Contains(p.Imports, planners)
		for _, file := range p.GoFiles {
			if !p.DepOnly && concerned {
				l.sources[p.ImportPath] = append(l.sources[p.ImportPath], filepath.Join(p.Dir, file))
			}
		}
	}
}

// breaches returns where the files of a package break the rules.
func (l *listed) breaches(t *testing.T, name string, files []string) []string {
	t.Helper()
	lookup := func(path string) (io.ReadCloser, error) {
		if len(l.exports[path]) == 0 {
			return nil, fmt.Errorf("no package %s", path)
		}
		return os.Open(l.exports[path][0])
	}
	var parsed []*ast.File
	for _, file := range files {
		parsed = append(parsed, checktest.Must(parser.ParseFile(l.files, file, nil, parser.SkipObjectResolution))(t))
	}
	c := &checker{name: name, files: l.files, info: &types.Info{
		Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{},
	}}
	config := types.Config{Importer: importer.ForCompiler(l.files, "gc", lookup)}
	_, err := config.Check(name, l.files, parsed, c.info)
	checktest.NoError(t, err)
	for _, file := range parsed {
		for _, declared := range file.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok && f.Body != nil {
				c.function(f)
			}
		}
	}
	return c.found
}

// checker looks for breaches of the rules in a package.
type checker struct {
	name  string
	files *token.FileSet
	info  *types.Info
	found []string
}

func (c *checker) report(at token.Pos, format string, args ...any) {
	position := c.files.Position(at)
	c.found = append(c.found, fmt.Sprintf("%s:%d: ", position.Filename, position.Line)+fmt.Sprintf(format, args...))
}

// function checks what a function writes.
func (c *checker) function(f *ast.FuncDecl) {
	given := map[types.Object]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if of, ok := n.(*ast.FuncType); ok {
			for _, field := range of.Params.List {
				for _, name := range field.Names {
					given[c.info.Defs[name]] = true
				}
			}
		}
		return true
	})
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				c.written(f, given, to)
			}
		case *ast.IncDecStmt:
			c.written(f, given, n.X)
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && (name.Name == "delete" || name.Name == "clear") {
				c.written(f, given, n.Args[0])
			}
		}
		return true
	})
}

// written checks an expression that a function writes.
func (c *checker) written(f *ast.FuncDecl, given map[types.Object]bool, to ast.Expr) {
	inner, whole := to, true
	for {
		switch e := inner.(type) {
		case *ast.SelectorExpr:
			if owner := c.owner(e); owner != "" && !c.mayWrite(owner) {
				c.report(to.Pos(), "writes %s: return another one", owner)
				return
			}
			inner, whole = e.X, false
		case *ast.IndexExpr:
			inner, whole = e.X, false
		case *ast.StarExpr:
			inner, whole = e.X, false
		case *ast.ParenExpr:
			inner = e.X
		case *ast.Ident:
			if !whole || e != to {
				c.root(f, given, e)
			}
			return
		default:
			return
		}
	}
}

// root checks the variable through which a function writes.
func (c *checker) root(f *ast.FuncDecl, given map[types.Object]bool, name *ast.Ident) {
	object := c.info.Uses[name]
	if object == nil || c.name != here && c.name != here+"/async" {
		return
	}
	pointer, isPointer := object.Type().(*types.Pointer)
	switch {
	case !isPointer:
	case object == c.receiver(f):
		if !commands.MatchString(f.Name.Name) {
			c.report(name.Pos(), "%s sounds like a query, and changes its receiver: begin its name with a verb", f.Name.Name)
		}
	case given[object] && isStep(pointer.Elem()):
		c.report(name.Pos(), "writes its parameter %s: return a value", name.Name)
	}
}

// receiver returns the variable of a method's receiver; nil if there is none.
func (c *checker) receiver(f *ast.FuncDecl) types.Object {
	if f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
		return nil
	}
	return c.info.Defs[f.Recv.List[0].Names[0]]
}

// isStep reports whether a type is that of a value that a step of a pass hands on.
func isStep(t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && slices.Contains(pipeline, named.Obj().Name())
}

// owner returns the type of package plan whose field an expression selects; "" if there is none.
func (c *checker) owner(e *ast.SelectorExpr) string {
	selection := c.info.Selections[e]
	if selection == nil || selection.Kind() != types.FieldVal {
		return ""
	}
	at := selection.Recv()
	for _, index := range selection.Index() {
		if pointer, ok := at.Underlying().(*types.Pointer); ok {
			at = pointer.Elem()
		}
		if name := at.String(); name == planners+".Plan" || name == planners+".Snapshot" {
			return "plan" + strings.TrimPrefix(name, planners)
		}
		fields, ok := at.Underlying().(*types.Struct)
		if !ok {
			return ""
		}
		at = fields.Field(index).Type()
	}
	return ""
}

func (c *checker) mayWrite(owner string) bool {
	return c.name == planners || owner == "plan.Snapshot" && slices.Contains(snapshotsOwn, c.name)
}

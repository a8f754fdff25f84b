// SPDX-License-Identifier: Apache-2.0

// Package rules checks that the code of both halves keeps rule 9 of AGENTS.md.
package rules

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
	"github.com/usher-dev/usher/internal/list"
)

const module = "github.com/usher-dev/usher/internal/"

// half is a controller whose passes hand on values.
type half struct {
	name string
	// steps are the types of the values that the steps of a pass hand on.
	steps []string
	// packages are those in which the rules about steps and queries hold.
	packages []string
}

// planners is the package that plans.
func (h half) planners() string { return module + h.name + "/plan" }

var halves = []half{
	{"cloneset", []string{"observation", "results", "pullResults", "status", "reported", "finished"},
		[]string{module + "cloneset", module + "cloneset/async"}},
	{"registration", []string{"observation", "stage", "results", "status", "learned", "sweeps", "patchResult"},
		[]string{module + "registration"}},
}

// commands are the verbs with which the name of a method begins that changes its receiver. A method with another
// name is a query, and changes nothing.
var commands = regexp.MustCompile(`^(?i:add|begin|change|close|collect|confirm|detach|drop|end|finish|forget|gather|keep|` +
	`lend|make|merge|note|offer|open|put|record|remember|run|take|wait|watch|write)([A-Z]\w*)?$`)

// deciders are the functions that may decide when the next pass is due: those of passes, and of probes of registries.
var deciders = []string{"next", "Reconcile", "ReconcileRegistry"}

// snapshotsOwn are the packages that make snapshots of their own, and so may write them.
var snapshotsOwn = []string{module + "forecast", module + "view"}

// TestRules: nothing outside the packages plan writes a Plan or a Snapshot, no step of a pass writes a value that it
// got from another one, a method that changes its receiver has a verb's name, and only next decides when the next pass
// is due.
func TestRules(t *testing.T) {
	l := listPackages(t, "./internal/...", "./cmd/usher/...")
	for _, h := range halves {
		checktest.Same(t, "the files of "+h.name+" are among them", true, len(l.sources[module+h.name]) > 20)
	}
	for _, name := range slices.Sorted(maps.Keys(l.sources)) {
		for _, breach := range l.breaches(t, name, l.sources[name]) {
			t.Error(breach)
		}
	}
}

// TestRulesAreChecked: each rule finds code that breaks it, in both halves.
func TestRulesAreChecked(t *testing.T) {
	l := listPackages(t, "./internal/cloneset/plan", "./internal/registration/plan", "sigs.k8s.io/controller-runtime")
	for _, h := range halves {
		file := "testdata/" + h.name + ".go"
		text := string(checktest.Must(os.ReadFile(file))(t))
		var want []string
		for i, line := range strings.Split(text, "\n") {
			if _, breach, found := strings.Cut(line, "// want: "); found {
				want = append(want, fmt.Sprintf("%s.go:%d: %s", h.name, i+1, breach))
			}
		}
		var found []string
		for _, breach := range l.breaches(t, module+h.name, []string{file}) {
			at := strings.Index(breach, h.name+".go")
			found = append(found, breach[at:])
		}
		checktest.Same(t, "breaches in "+file, len(want), len(found))
		for i := range want {
			if !strings.HasPrefix(found[i], want[i]) {
				t.Errorf("found %q, want %q", found[i], want[i])
			}
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
		concerned := slices.ContainsFunc(halves, func(h half) bool {
			return strings.HasPrefix(p.ImportPath, module+h.name) || slices.Contains(p.Imports, h.planners())
		})
		for _, file := range p.GoFiles {
			if !p.DepOnly && concerned {
				l.sources[p.ImportPath] = append(l.sources[p.ImportPath], filepath.Join(p.Dir, file))
			}
		}
	}
}

// breaches are where the files of a package break the rules.
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
	given := c.parameters(f)
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			c.decides(f, n)
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

// parameters are those of a function, and of the functions in it.
func (c *checker) parameters(f *ast.FuncDecl) map[types.Object]bool {
	given := map[types.Object]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		of, ok := n.(*ast.FuncType)
		if !ok {
			return true
		}
		for _, field := range of.Params.List {
			for _, name := range field.Names {
				given[c.info.Defs[name]] = true
			}
		}
		return true
	})
	return given
}

// decides checks a value of a struct that a function makes.
func (c *checker) decides(f *ast.FuncDecl, value *ast.KeyValueExpr) {
	if key, ok := value.Key.(*ast.Ident); ok && key.Name == "RequeueAfter" && c.half() != nil && !slices.Contains(deciders, f.Name.Name) {
		c.report(value.Pos(), "%s decides when the next pass is due: leave that to next", f.Name.Name)
	}
}

// half is the one in whose package of passes the code is; nil if there is none.
func (c *checker) half() *half {
	return list.Find(halves, func(h *half) bool { return slices.Contains(h.packages, c.name) })
}

// written checks an expression that a function writes.
func (c *checker) written(f *ast.FuncDecl, given map[types.Object]bool, to ast.Expr) {
	if name, direct, shared := c.trace(to); name != nil && !direct {
		c.root(f, given, name, shared)
	}
}

// trace finds the variable through which an expression writes; nil if there is none, or if the expression is reported.
// direct means that the expression is the variable itself, shared that it changes more than a copy.
func (c *checker) trace(to ast.Expr) (name *ast.Ident, direct, shared bool) {
	whole := true
	for inner := to; ; {
		if e, ok := inner.(*ast.SelectorExpr); ok {
			if c.foreign(e, to.Pos()) {
				return nil, false, false
			}
			shared = shared || !whole && isPointer(c.info.Types[e.X].Type)
		}
		next, part, through := partOf(inner)
		if next == nil {
			name, _ = inner.(*ast.Ident)
			return name, whole && inner == to, shared
		}
		inner, whole, shared = next, whole && !part, shared || through
	}
}

// foreign reports a field of a value that only its own package may change.
func (c *checker) foreign(field *ast.SelectorExpr, at token.Pos) bool {
	owner := c.owner(field)
	if owner == "" || c.mayWrite(owner) {
		return false
	}
	c.report(at, "writes %s: return another one", owner[strings.LastIndex(owner, "/")+1:])
	return true
}

// partOf returns the expression of which another one is a part, and whether it is a real part, and one that others
// share; nil if it is none.
func partOf(e ast.Expr) (of ast.Expr, part, shared bool) {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.X, true, false
	case *ast.IndexExpr:
		return e.X, true, true
	case *ast.StarExpr:
		return e.X, true, true
	case *ast.ParenExpr:
		return e.X, false, false
	}
	return nil, false, false
}

// root checks the variable through which a function writes. shared means that the write changes more than a copy.
func (c *checker) root(f *ast.FuncDecl, given map[types.Object]bool, name *ast.Ident, shared bool) {
	object, of := c.info.Uses[name], c.half()
	if object == nil || of == nil {
		return
	}
	changes, kind := shared, object.Type()
	if pointer, ok := kind.(*types.Pointer); ok {
		changes, kind = true, pointer.Elem()
	}
	switch {
	case !changes:
	case object == c.receiver(f):
		if !commands.MatchString(f.Name.Name) {
			c.report(name.Pos(), "%s sounds like a query, and changes its receiver: begin its name with a verb", f.Name.Name)
		}
	case given[object] && isStep(of, kind):
		c.report(name.Pos(), "writes its parameter %s: return a value", name.Name)
	}
}

func isPointer(t types.Type) bool {
	_, ok := t.(*types.Pointer)
	return ok
}

// receiver is the variable of a method's receiver; nil if there is none.
func (c *checker) receiver(f *ast.FuncDecl) types.Object {
	if f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
		return nil
	}
	return c.info.Defs[f.Recv.List[0].Names[0]]
}

// isStep reports whether a type is that of a value that a step of a pass hands on.
func isStep(of *half, t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && slices.Contains(of.steps, named.Obj().Name())
}

// owner is the type of the package plan whose field an expression selects; "" if it is none.
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
		for _, h := range halves {
			if name := at.String(); name == h.planners()+".Plan" || name == h.planners()+".Snapshot" {
				return name
			}
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
	planners, kind, _ := strings.Cut(owner, "/plan.")
	return c.name == planners+"/plan" || kind == "Snapshot" && slices.Contains(snapshotsOwn, c.name)
}

// SPDX-License-Identifier: Apache-2.0

// Package checkout handles the checkout of Usher that a development program runs in: it
// builds the programs of the tree and installs its API and its rights.
package checkout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/fetch"
)

// Find returns the root of the checkout that contains the working directory.
func Find() (string, error) {
	source, err := build.FindSource("")
	if err != nil {
		return "", err
	}
	return source.Root(), nil
}

// Program is one of the checkout's own programs.
type Program struct {
	// Name is the name of its build in the progress.
	Name string
	// Module is the directory of its module.
	Module string
	// Pkg is its package, relative to the module.
	Pkg string
	// Out is the output file.
	Out string
	// ModFile replaces the module's go.mod. Empty means that nothing does.
	ModFile string
	// LinkFlags are for the linker. Empty means none.
	LinkFlags string
}

// Compile builds the program with the go command. The error contains the compiler's
// output; it is the cause of ctx if that ended.
//
// All builds of a program, in all processes, share one file in the cache: the go command links it only
// if something has changed, or another checkout has built the program since. The output file is a copy,
// which later builds do not change.
func (p Program) Compile(ctx context.Context, sink progress.Sink) error {
	return sink.Task(p.Name, func() (string, error) {
		if err := p.compile(ctx); err != nil {
			return "", fmt.Errorf("%s: %w", p.Name, err)
		}
		return "built", nil
	})
}

func (p Program) compile(ctx context.Context) (err error) {
	shared, err := p.shared()
	if err != nil {
		return err
	}
	unlock, err := fetch.Lock(ctx, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	// As in tools/image: without traces of gRPC the linker drops what nothing calls.
	if _, err := fetch.Run(ctx, p.Module, "go", "build", "-tags=grpcnotrace", "-modfile="+p.ModFile, "-ldflags="+p.LinkFlags, "-o", shared, p.Pkg); err != nil {
		return err
	}
	_, err = fetch.Run(ctx, "", "install", "-D", shared, p.Out)
	return err
}

// shared returns the file in the cache that all builds of the program share. Builds with another go.mod
// share another file, so that other builds need not wait for them.
func (p Program) shared() (string, error) {
	root, err := fetch.Root()
	return filepath.Join(root, "programs", filepath.Base(p.Out)+"-"+fetch.Digest(p.Pkg, filepath.Base(p.ModFile))), err
}

// InstallTools puts helm and kubectl, which the documents' commands need, into a directory. They
// are built from their Go modules, which takes minutes the first time.
func InstallTools(ctx context.Context, root, dir string) error {
	if err := InstallKubectl(ctx, root, dir); err != nil {
		return err
	}
	path, err := fetch.Run(ctx, toolsModule(root), "go", "tool", "-n", "helm")
	if err == nil {
		err = os.Symlink(strings.TrimSpace(path), filepath.Join(dir, "helm"))
	}
	if err != nil {
		return fmt.Errorf("build helm: %w", err)
	}
	return nil
}

// InstallKubectl puts only kubectl into a directory. It sets the version of Kubernetes in it, without
// which kubectl version fails.
func InstallKubectl(ctx context.Context, root, dir string) error {
	library, err := fetch.Run(ctx, toolsModule(root), "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubectl")
	if err != nil {
		return fmt.Errorf("find the version of kubectl: %w", err)
	}
	kubernetes := strings.Replace(strings.TrimSpace(library), "v0.", "v1.", 1)
	kubectl := Program{
		Name: "build kubectl", Module: toolsModule(root), Pkg: "./kubectl", Out: filepath.Join(dir, "kubectl"),
		LinkFlags: "-X=k8s.io/component-base/version.gitVersion=" + kubernetes,
	}
	return kubectl.Compile(ctx, nil)
}

// toolsModule returns the module that has helm and kubectl among its tools.
func toolsModule(root string) string { return filepath.Join(root, "tools", "chart") }

// ToolEnv returns the environment of the documents' commands: they find the tools of a directory and a
// cluster, and nothing of the user's.
func ToolEnv(tools, kubeconfig, home string) []string {
	return append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+home,
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
}

// DocumentedStep returns a command block of a document in docs/ of the checkout at
// root: the one after <!-- story: NAME -->.
func DocumentedStep(root, document, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", document))
	if err != nil {
		return "", err
	}
	block := regexp.MustCompile("(?s)<!-- story: " + regexp.QuoteMeta(name) + " -->\n+ *```sh\n(.*?)\n *```")
	found := block.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s has no commands for the step %q", document, name)
	}
	return string(found[1]), nil
}

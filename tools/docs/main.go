// SPDX-License-Identifier: Apache-2.0

// Command docs builds the documentation site: it generates the reference from the CRDs and from the
// programs' --help, runs Hugo, and follows every link within the site.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", ".", "`folder` of the project")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *root); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, root string) error {
	if err := writeReference(ctx, root); err != nil {
		return err
	}
	site := filepath.Join(root, "bin", "docs")
	version, err := versionOf(root)
	if err != nil {
		return err
	}
	hugo := command(ctx, root, "go", "tool", "-modfile=tools/docs/hugo.mod", "hugo", "--config", "tools/docs/hugo.yaml",
		"--cleanDestinationDir", "--panicOnWarning", "--noBuildLock", "--quiet")
	hugo.Env = append(hugo.Env, "HUGO_PARAMS_VERSION="+version)
	if out, err := hugo.CombinedOutput(); err != nil {
		return fmt.Errorf("hugo: %w\n%s", err, out)
	}
	dead, err := deadLinks(os.DirFS(site))
	if err != nil {
		return err
	}
	if len(dead) > 0 {
		return fmt.Errorf("dead links, mend them in docs/:\n%s", strings.Join(dead, "\n"))
	}
	fmt.Println("The site is in bin/docs: open bin/docs/index.html.")
	return nil
}

// versionOf returns Usher's version, from the chart.
func versionOf(root string) (string, error) {
	chart, err := os.ReadFile(filepath.Join(root, "charts", "usher", "Chart.yaml"))
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^appVersion: "?([^"\s]+)`).FindSubmatch(chart)
	if found == nil {
		return "", errors.New("charts/usher/Chart.yaml has no appVersion")
	}
	return string(found[1]), nil
}

// command returns a program that runs in the project's folder, with each module by itself.
func command(ctx context.Context, root, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	return cmd
}

// writeReference writes the pages that are generated, to bin/reference.
func writeReference(ctx context.Context, root string) error {
	folder := filepath.Join(root, "bin", "reference")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, generate := range map[string]func(context.Context, string) (string, error){
		"api.md": apiPage, "flags.md": flagsPage, "kubectl-usher.md": pluginPage,
	} {
		page, err := generate(ctx, root)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

var anchors = regexp.MustCompile(`\bid="([^"]*)"`)
var links = regexp.MustCompile(`<(?:a|link|script|img|source)\b[^>]*?\b(?:href|src|srcset)="([^"]*)"`)

// deadLinks follows every link between the site's files, to the anchor. Only <a> may refer to other
// sites: the site works without network.
func deadLinks(site fs.FS) (dead []string, err error) {
	ids, pages := map[string]bool{}, map[string]string{}
	err = fs.WalkDir(site, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		ids[name] = true
		if path.Ext(name) != ".html" {
			return nil
		}
		text, err := fs.ReadFile(site, name)
		for _, found := range anchors.FindAllSubmatch(text, -1) {
			ids[name+"#"+html.UnescapeString(string(found[1]))] = true
		}
		pages[name] = string(text)
		return err
	})
	for name, text := range pages {
		for _, found := range links.FindAllStringSubmatch(text, -1) {
			if !alive(ids, name, found[0], html.UnescapeString(found[1])) {
				dead = append(dead, fmt.Sprintf("%s: %s", name, found[1]))
			}
		}
	}
	slices.Sort(dead)
	return slices.Compact(dead), err
}

func alive(ids map[string]bool, page, tag, link string) bool {
	to, err := url.Parse(link)
	if err != nil {
		return false
	}
	if to.IsAbs() {
		return tag[:2] == "<a" && tag[2] == ' '
	}
	file := page
	if to.Path != "" {
		file = path.Join(path.Dir(page), to.Path)
	}
	if to.Fragment != "" {
		file += "#" + to.Fragment
	}
	return ids[file]
}

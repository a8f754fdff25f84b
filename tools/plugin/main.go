// SPDX-License-Identifier: Apache-2.0

// Command plugin builds the files of a release of the kubectl plugin: an archive for each platform,
// their checksums, and the manifest for krew. The same source, version and Go give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing/fstest"
	"text/template"
	"time"
)

// platforms are the platforms of a release.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// release has the values for the template of the krew manifest.
type release struct {
	Version  string
	Archives []archive
}

type archive struct {
	OS, Arch string
	// Binary is the program's name in the archive, File the archive's own.
	Binary, File string
	SHA256       string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	root := flag.String("root", ".", "`folder` of the project")
	out := flag.String("out", "bin/plugin", "`folder` to write the release to")
	version := flag.String("version", "dev", "the release's version")
	only := flag.String("platforms", strings.Join(platforms, ","), "what to build for")
	flag.Parse()
	r, err := build(ctx, *root, *out, *version, strings.Split(*only, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		stop()
		os.Exit(1)
	}
	for _, a := range r.Archives {
		fmt.Printf("%s  %s\n", a.SHA256, filepath.Join(*out, a.File))
	}
}

// build writes the archives, checksums.txt and usher.yaml.
func build(ctx context.Context, root, out, version string, platforms []string) (release, error) {
	r := release{Version: version}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return r, err
	}
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return r, err
	}
	var checksums bytes.Buffer
	for _, platform := range platforms {
		a := archiveFor(platform)
		program, err := compile(ctx, root, version, a)
		if err != nil {
			return r, err
		}
		text, err := pack(fstest.MapFS{a.Binary: {Data: program, Mode: 0o755}, "LICENSE": {Data: license, Mode: 0o644}})
		if err != nil {
			return r, fmt.Errorf("pack %s: %w", a.File, err)
		}
		sum := sha256.Sum256(text)
		a.SHA256 = hex.EncodeToString(sum[:])
		fmt.Fprintf(&checksums, "%s  %s\n", a.SHA256, a.File)
		if err := os.WriteFile(filepath.Join(out, a.File), text, 0o644); err != nil {
			return r, err
		}
		r.Archives = append(r.Archives, a)
	}
	if err := os.WriteFile(filepath.Join(out, "checksums.txt"), checksums.Bytes(), 0o644); err != nil {
		return r, err
	}
	manifest, err := r.manifest(filepath.Join(root, ".krew.yaml"))
	if err != nil {
		return r, err
	}
	return r, os.WriteFile(filepath.Join(out, "usher.yaml"), manifest, 0o644)
}

func archiveFor(platform string) archive {
	system, arch, _ := strings.Cut(platform, "/")
	a := archive{OS: system, Arch: arch, Binary: "kubectl-usher", File: fmt.Sprintf("kubectl-usher_%s_%s.tar.gz", system, arch)}
	if system == "windows" {
		a.Binary += ".exe"
	}
	return a
}

// compile returns the program for a platform.
func compile(ctx context.Context, root, version string, a archive) ([]byte, error) {
	folder, err := os.MkdirTemp("", "plugin-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }() // the system cleans up after a failure
	program := filepath.Join(folder, a.Binary)
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.version="+version, "-o", program, ".")
	command.Dir = filepath.Join(root, "cmd", "kubectl-usher")
	command.Env = append(os.Environ(), "GOOS="+a.OS, "GOARCH="+a.Arch, "CGO_ENABLED=0", "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build for %s/%s: %w\n%s", a.OS, a.Arch, err, output)
	}
	return os.ReadFile(program)
}

// pack makes a tar.gz without times, owners or anything else of this machine.
func pack(files fstest.MapFS) ([]byte, error) {
	for _, file := range files {
		file.ModTime = time.Unix(0, 0)
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	bundle := tar.NewWriter(zip)
	err = errors.Join(bundle.AddFS(files), bundle.Close(), zip.Close())
	return out.Bytes(), err
}

// manifest fills in the template for krew.
func (r *release) manifest(file string) ([]byte, error) {
	text, err := template.New(filepath.Base(file)).Option("missingkey=error").ParseFiles(file)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := text.Execute(&out, r); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

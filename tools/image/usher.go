// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/usher-dev/usher/tools/image/oci"
)

// Source describes the image to build: the project's directory, the image's name and its tag, and the
// platforms to build for.
type Source struct {
	Root, Name, Version string
	Platforms           []v1.Platform
}

// Result is a built image: its name with its tag, the image of all platforms, and those
// of each platform.
type Result struct {
	Ref      string
	Index    v1.ImageIndex
	Variants []Variant
}

// Variant is the image of one platform, and the list of its program's components as
// SPDX 2.3 JSON.
type Variant struct {
	Platform v1.Platform
	Image    v1.Image
	SBOM     []byte
}

// docs is the image's directory of files for people and scanners.
const docs = "usr/share/doc/usher/"

// Build compiles Usher and packs it. The same sources, commit and Go version give the
// same bytes, wherever and whenever.
func (s Source) Build(ctx context.Context) (*Result, error) {
	license, err := os.ReadFile(filepath.Join(s.Root, "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("-root %s is not the project's folder: %w", s.Root, err)
	}
	origin := s.origin(ctx)
	result := &Result{Ref: s.Name + ":" + s.Version}
	var images []v1.Image
	for _, platform := range s.Platforms {
		binary, err := s.compile(ctx, platform)
		if err != nil {
			return nil, fmt.Errorf("build for %s: %w", platform, err)
		}
		list, err := listComponents("usher", s.Version, binary, origin.created)
		if err != nil {
			return nil, err
		}
		image, err := oci.New(oci.Spec{
			Platform: platform, Created: origin.created, Labels: s.labels(origin), Entrypoint: []string{"/usr/local/bin/usher"},
			Layers: []oci.Layer{oci.Base(), {Comment: "usher " + s.Version, Files: map[string]oci.File{
				"usr/local/bin/usher":   {Content: binary, Mode: 0o755},
				docs + "LICENSE":        {Content: license},
				docs + "sbom.spdx.json": {Content: list},
			}}},
		})
		if err != nil {
			return nil, err
		}
		images = append(images, image)
		result.Variants = append(result.Variants, Variant{Platform: platform, Image: image, SBOM: list})
	}
	result.Index, err = oci.Index(images, s.labels(origin))
	return result, err
}

// compile builds one binary. The commit is in the image's labels, not in the binary, so
// that a commit that changes no source changes no layer.
func (s Source) compile(ctx context.Context, platform v1.Platform) ([]byte, error) {
	folder, err := os.MkdirTemp("", "usher-image-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }() // The system cleans up after a failure.
	file := filepath.Join(folder, "usher")
	// gRPC's traces use templates, which call methods by name: with them the linker keeps every
	// method of every type, a quarter of the program.
	build := exec.CommandContext(ctx, "go", "build", "-tags=grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", file, "./cmd/usher")
	build.Dir = s.Root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+platform.OS, "GOARCH="+platform.Architecture,
		"GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, output)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what was built: %w", err)
	}
	return content, nil
}

// origin describes the commit that an image is built from.
type origin struct {
	// revision is empty outside a git checkout, and ends in -dirty if files differ.
	revision string
	created  time.Time
}

// origin reads git. SOURCE_DATE_EPOCH, in seconds since 1970, overrides the time.
func (s Source) origin(ctx context.Context) origin {
	o := origin{created: time.Unix(0, 0)}
	if revision, err := s.git(ctx, "rev-parse", "HEAD"); err == nil {
		o.revision = revision
		if changes, err := s.git(ctx, "status", "--porcelain"); err != nil || changes != "" {
			o.revision += "-dirty"
		}
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		epoch, _ = s.git(ctx, "log", "-1", "--format=%ct") // Without git there is no time, and 1970 stays.
	}
	if seconds, err := strconv.ParseInt(epoch, 10, 64); err == nil {
		o.created = time.Unix(seconds, 0)
	}
	return o
}

func (s Source) git(ctx context.Context, args ...string) (string, error) {
	output, err := exec.CommandContext(ctx, "git", append([]string{"-C", s.Root}, args...)...).Output()
	return strings.TrimSpace(string(output)), err
}

func (s Source) labels(from origin) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "usher",
		"org.opencontainers.image.description": "Brings Pods into service and sees them out, without losing a request",
		"org.opencontainers.image.url":         "https://github.com/usher-dev/usher",
		"org.opencontainers.image.source":      "https://github.com/usher-dev/usher",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.Version,
		"org.opencontainers.image.created":     from.created.UTC().Format(time.RFC3339),
	}
	if from.revision != "" {
		labels["org.opencontainers.image.revision"] = from.revision
	}
	return labels
}

// Write writes the image into a directory: a layout of all platforms, and for each of
// them an archive and an SBOM.
func (r *Result) Write(folder string, out io.Writer) error {
	if err := oci.WriteLayout(filepath.Join(folder, "oci"), r.Ref, r.Index); err != nil {
		return err
	}
	digest, err := r.Index.Digest()
	if err != nil {
		return fmt.Errorf("digest of the image: %w", err)
	}
	lines := []string{fmt.Sprintf("%s@%s", r.Ref, digest), "  " + filepath.Join(folder, "oci")}
	for _, variant := range r.Variants {
		base := filepath.Join(folder, "usher-"+strings.ReplaceAll(variant.Platform.String(), "/", "-"))
		if err := oci.WriteTar(base+".tar", map[string]v1.Image{r.Ref: variant.Image}); err != nil {
			return err
		}
		if err := os.WriteFile(base+".spdx.json", variant.SBOM, 0o600); err != nil {
			return fmt.Errorf("write the SBOM: %w", err)
		}
		lines = append(lines, fmt.Sprintf("  %s.tar, %s.spdx.json", base, filepath.Base(base)))
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

const unknown = "NOASSERTION"

// listComponents lists the components of a Go program as SPDX JSON: the same bytes for
// the same program. The source is the program itself, not a module file that may list
// more than was linked.
func listComponents(name, version string, binary []byte, created time.Time) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read the modules of %s: %w", name, err)
	}
	sum := sha256.Sum256(binary)
	digest := hex.EncodeToString(sum[:])
	list := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: name + "-" + version, DocumentNamespace: "https://usher.dev/spdx/" + name + "/" + digest,
		CreationInfo: &spdx.CreationInfo{
			Created: created.UTC().Format(time.RFC3339), Creators: []spdx.Creator{{CreatorType: "Tool", Creator: "usher-image"}},
		},
		Packages: []*spdx.Package{{
			PackageName: name, PackageSPDXIdentifier: "program", PackageVersion: version, PackageDownloadLocation: unknown,
			PrimaryPackagePurpose: "APPLICATION", PackageLicenseDeclared: "Apache-2.0",
			PackageChecksums:          []spdx.Checksum{{Algorithm: spdx.SHA256, Value: digest}},
			PackageExternalReferences: purl(info.Main.Path, version),
		}},
		Relationships: []*spdx.Relationship{relation("DOCUMENT", common.TypeRelationshipDescribe, "program")},
	}
	for i, module := range modules(info) {
		id := fmt.Sprintf("module-%d", i+1)
		list.Packages = append(list.Packages, &spdx.Package{
			PackageName: module.Path, PackageSPDXIdentifier: spdx.ElementID(id), PackageVersion: module.Version, PackageDownloadLocation: unknown,
			PrimaryPackagePurpose: "LIBRARY", PackageExternalReferences: purl(module.Path, module.Version),
		})
		list.Relationships = append(list.Relationships, relation("program", common.TypeRelationshipDependsOn, id))
	}
	var content bytes.Buffer
	if err := spdxjson.Write(list, &content, spdxjson.Indent("  ")); err != nil {
		return nil, fmt.Errorf("write the list: %w", err)
	}
	return content.Bytes(), nil
}

// modules lists the linked modules by name, including Go's standard library under the
// name that scanners use. A replaced module counts as its replacement.
func modules(info *debug.BuildInfo) []debug.Module {
	all := []debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		all = append(all, *dep)
	}
	slices.SortFunc(all, func(a, b debug.Module) int { return strings.Compare(a.Path, b.Path) })
	return all
}

func relation(from, kind, to string) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.MakeDocElementID("", from), Relationship: kind, RefB: common.MakeDocElementID("", to)}
}

func purl(module, version string) []*spdx.PackageExternalReference {
	locator := "pkg:golang/" + module
	if version != "" {
		locator += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return []*spdx.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: locator}}
}

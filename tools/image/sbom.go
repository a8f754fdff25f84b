// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

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

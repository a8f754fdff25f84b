// SPDX-License-Identifier: Apache-2.0

// Package sbom lists the components of a Go program, as SPDX 2.3. The source is the
// program itself (debug/buildinfo), not a module file that may list more than was
// linked.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Subject is the program to list.
type Subject struct {
	// Name and Version of the program.
	Name, Version string
	// Binary is the program itself.
	Binary []byte
	// Created is the creation time of the list.
	Created time.Time
}

type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []pkg          `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	Name      string     `json:"name"`
	ID        string     `json:"SPDXID"`
	Version   string     `json:"versionInfo,omitempty"`
	Download  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	Purpose   string     `json:"primaryPackagePurpose"`
	License   string     `json:"licenseDeclared,omitempty"`
	Checksums []checksum `json:"checksums,omitempty"`
	Refs      []ref      `json:"externalRefs"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type ref struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	documentID = "SPDXRef-DOCUMENT"
	programID  = "SPDXRef-program"
	unknown    = "NOASSERTION"
)

// SPDX is the list as JSON: the same bytes for the same program.
func SPDX(subject Subject) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(subject.Binary))
	if err != nil {
		return nil, fmt.Errorf("read what %s is made of: %w; only programs built by Go tell", subject.Name, err)
	}
	sum := sha256.Sum256(subject.Binary)
	digest := hex.EncodeToString(sum[:])
	list := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: documentID,
		Name:      subject.Name + "-" + subject.Version,
		Namespace: "https://usher.dev/spdx/" + subject.Name + "/" + digest,
		Creation:  creation{Created: subject.Created.UTC().Format(time.RFC3339), Creators: []string{"Tool: usher-image"}},
		Packages: []pkg{{
			Name: subject.Name, ID: programID, Version: subject.Version, Download: unknown, Purpose: "APPLICATION", License: "Apache-2.0",
			Checksums: []checksum{{Algorithm: "SHA256", Value: digest}},
			Refs:      []ref{purl(info.Main.Path, subject.Version)},
		}},
		Relationships: []relationship{{Element: documentID, Type: "DESCRIBES", Related: programID}},
	}
	for i, module := range modules(info) {
		id := fmt.Sprintf("SPDXRef-module-%d", i+1)
		list.Packages = append(list.Packages, pkg{
			Name: module.Path, ID: id, Version: module.Version, Download: unknown, Purpose: "LIBRARY",
			Refs: []ref{purl(module.Path, module.Version)},
		})
		list.Relationships = append(list.Relationships, relationship{Element: programID, Type: "DEPENDS_ON", Related: id})
	}
	content, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the list: %w", err)
	}
	return append(content, '\n'), nil
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

func purl(module, version string) ref {
	locator := "pkg:golang/" + module
	if version != "" {
		locator += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return ref{Category: "PACKAGE-MANAGER", Type: "purl", Locator: locator}
}

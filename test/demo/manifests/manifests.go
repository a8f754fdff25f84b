// SPDX-License-Identifier: Apache-2.0

// Package manifests holds the CloneSets that the demo and the stories on a real node
// start from, as their authors published them, and Registrations for them.
package manifests

import (
	"embed"
	"fmt"
)

//go:embed *.yaml
var files embed.FS

// Read returns the text of a manifest, for instance seed1.yaml.
func Read(name string) (string, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("manifest %s: %w", name, err)
	}
	return string(text), nil
}

// SPDX-License-Identifier: Apache-2.0

package sbom

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

// self is this test's own program, which Go built like any other.
func self(t *testing.T) Subject {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return Subject{Name: "self", Version: "1.0.0", Binary: binary, Created: time.Unix(0, 0)}
}

// TestSPDX: the reference reader accepts the list.
func TestSPDX(t *testing.T) {
	list, err := SPDX(self(t))
	if err != nil {
		t.Fatal(err)
	}
	read, err := spdxjson.Read(bytes.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(read); err != nil {
		t.Error(err)
	}
	if last := read.Packages[len(read.Packages)-1]; last.PackageName != "stdlib" || !strings.HasPrefix(last.PackageVersion, "1.") {
		t.Errorf("it ends with %s %s, want Go's standard library: a test's program tells of no other module", last.PackageName, last.PackageVersion)
	}
	if len(read.Relationships) != len(read.Packages) {
		t.Errorf("%d relationships for %d packages", len(read.Relationships), len(read.Packages))
	}
	again, err := SPDX(self(t))
	if err != nil || !bytes.Equal(list, again) {
		t.Errorf("the list of the same program differs the second time (%v)", err)
	}
}

func TestNotGo(t *testing.T) {
	if _, err := SPDX(Subject{Name: "script", Binary: []byte("#!/bin/sh\n")}); err == nil || !strings.Contains(err.Error(), "only programs built by Go") {
		t.Errorf("a script: %v", err)
	}
}

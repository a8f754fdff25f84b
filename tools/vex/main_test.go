// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

const digest = "sha256:0123"

// statement is what scanners read.
type statement struct {
	Vulnerability struct{ Name string }
	Products      []struct {
		ID string `json:"@id"`
	}
	Status, Justification string
}

func read(t *testing.T, text []byte) (author string, statements []statement) {
	t.Helper()
	var d struct {
		Author     string
		Statements []statement
	}
	checktest.NoError(t, json.Unmarshal(text, &d))
	return d.Author, d.Statements
}

// TestRun has govulncheck look at a package that imports a module with a vulnerability, and calls nothing of what is
// vulnerable.
func TestRun(t *testing.T) {
	database, out := checktest.Must(filepath.Abs("testdata/database"))(t), filepath.Join(t.TempDir(), "vex.json")
	t.Chdir("../..")
	o := options{image: "ghcr.io/usher-dev/usher", digest: digest, out: out, program: "./internal/checktest", database: "file://" + database}
	checktest.NoError(t, run(o))
	author, statements := read(t, checktest.Must(os.ReadFile(out))(t))
	if author == "" || len(statements) != 1 {
		t.Fatalf("the document is by %q, and has %+v", author, statements)
	}
	s := statements[0]
	checktest.Same(t, "the statement", [3]string{"GO-2099-0001", "not_affected", "vulnerable_code_not_in_execute_path"},
		[3]string{s.Vulnerability.Name, s.Status, s.Justification})
	checktest.Same(t, "the product", "pkg:oci/usher@sha256%3A0123?repository_url=ghcr.io%2Fusher-dev%2Fusher", s.Products[0].ID)
	o.digest = "latest"
	checktest.Says(t, "the error", run(o), "-digest=latest")
}

// TestAffected: what concerns the image is named, and there is no document without statements.
func TestAffected(t *testing.T) {
	document, affected, err := complete([]byte(`{"statements":[{"vulnerability":{"name":"GO-1"},"products":[{"@id":"a"}],"status":"affected"},`+
		`{"vulnerability":{"name":"GO-2"},"products":[{"@id":"a"}],"status":"not_affected"}]}`), "pkg:oci/usher")
	checktest.NoError(t, err)
	checktest.Same(t, "what concerns the image", []string{"GO-1"}, affected)
	if _, statements := read(t, document); len(statements) != 2 || statements[1].Products[0].ID != "pkg:oci/usher" {
		t.Errorf("the document is %s", document)
	}
	document, _, err = complete([]byte(`{"statements":null}`), "pkg:oci/usher")
	checktest.NoError(t, err)
	checktest.Same(t, "the document of none", "", string(document))
	for _, text := range []string{`no`, `{"statements":[{}]}`} {
		if _, _, err := complete([]byte(text), "pkg:oci/usher"); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

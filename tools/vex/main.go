// SPDX-License-Identifier: Apache-2.0

// Command vex writes which known vulnerabilities of Usher's modules concern an image of it, and which do not
// because the program never calls what is vulnerable: an OpenVEX document, with which scanners keep quiet about
// the latter. Govulncheck decides that. Without any, there is no document. The exit code is 1 if a
// vulnerability concerns the image; the document says so.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strings"
)

// options are the flags.
type options struct{ image, digest, out, program, database string }

func main() {
	var o options
	flag.StringVar(&o.image, "image", "ghcr.io/usher-dev/usher", "the image's `name`")
	flag.StringVar(&o.digest, "digest", "", "its `digest`, as in sha256:0123…")
	flag.StringVar(&o.out, "out", "usher.openvex.json", "the `file` to write")
	flag.StringVar(&o.program, "program", "./cmd/usher", "the `package` of the program in the image")
	flag.StringVar(&o.database, "db", "https://vuln.go.dev", "the `URL` of the database of vulnerabilities")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "vex:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if !strings.HasPrefix(o.digest, "sha256:") {
		return fmt.Errorf("-digest=%s: give the image's digest, as in sha256:0123…", o.digest)
	}
	command := exec.Command("go", "tool", "-modfile=tools/vuln/go.mod", "govulncheck", "-tags=grpcnotrace", //nolint:noctx // It ends with this program.
		"-format=openvex", "-db="+o.database, o.program)
	command.Stderr = os.Stderr
	found, err := command.Output()
	if err != nil {
		return fmt.Errorf("govulncheck: %w", err)
	}
	document, affected, err := complete(found, product(o.image, o.digest))
	if err != nil {
		return err
	}
	if document == nil {
		fmt.Println("No vulnerability is known of what the image has: there is no document.")
		return nil
	}
	if err := os.WriteFile(o.out, document, 0o600); err != nil {
		return err
	}
	if len(affected) > 0 {
		return errors.New("these concern the image: " + strings.Join(affected, ", "))
	}
	return nil
}

// product is the image's package URL.
func product(image, digest string) string {
	return "pkg:oci/" + path.Base(image) + "@" + url.QueryEscape(digest) + "?repository_url=" + url.QueryEscape(image)
}

// complete puts the product and the author into a document of govulncheck's, and returns the names of the
// vulnerabilities that concern the product. The document is nil if there are none at all.
func complete(found []byte, product string) (document []byte, affected []string, err error) {
	var d map[string]any
	if err := json.Unmarshal(found, &d); err != nil {
		return nil, nil, fmt.Errorf("govulncheck's document: %w", err)
	}
	d["author"] = "The maintainers of Usher"
	statements, _ := d["statements"].([]any)
	if len(statements) == 0 { // which OpenVEX does not allow
		return nil, nil, nil
	}
	for _, one := range statements {
		s, _ := one.(map[string]any)
		products, _ := s["products"].([]any)
		if len(products) == 0 {
			return nil, nil, errors.New("govulncheck's document has a statement without products")
		}
		for _, p := range products {
			if p, ok := p.(map[string]any); ok {
				p["@id"] = product
			}
		}
		if s["status"] == "affected" {
			vulnerability, _ := s["vulnerability"].(map[string]any)
			affected = append(affected, fmt.Sprint(vulnerability["name"]))
		}
	}
	document, err = json.MarshalIndent(d, "", "  ")
	return append(document, '\n'), affected, err
}

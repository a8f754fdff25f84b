// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAuthorities(t *testing.T) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities()) {
		t.Fatal("Go reads no certificate")
	}
	if n := strings.Count(string(authorities()), "BEGIN CERTIFICATE"); n < 80 {
		t.Errorf("%d authorities, which is too few to be Mozilla's", n)
	}
}

func TestFromBinary(t *testing.T) {
	folder := t.TempDir()
	script := filepath.Join(folder, "web")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromBinary(script); err == nil || !strings.Contains(err.Error(), "no Linux program") {
		t.Errorf("a script: %v", err)
	}
	if _, err := FromBinary(script + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(script, []byte("\x7fELF program"), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := FromBinary(script)
	if err != nil {
		t.Fatal(err)
	}
	config, err := made.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.Entrypoint[0] != "/usr/local/bin/web" || config.OS != "linux" || config.Architecture == "" {
		t.Errorf("configuration %+v", config)
	}
}

// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"testing/fstest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// File is a file of a layer. It belongs to root, so that the image's process cannot
// change it.
type File struct {
	Content []byte
	// Mode are its permissions. Default: 0644.
	Mode fs.FileMode
}

// Layer is a set of files. Their directories are created with them, and their times are
// in 1970, so that the same files give the same layer.
type Layer struct {
	// Files are its files by path, such as etc/passwd.
	Files map[string]File
	// Tmp adds an empty, world-writable directory /tmp.
	Tmp bool
	// Comment describes the layer in the image's history.
	Comment string
}

// pack is the layer as an archive, in the order of the paths.
func (l Layer) pack() (v1.Layer, error) {
	var content bytes.Buffer
	writer := tar.NewWriter(&content)
	if err := errors.Join(writer.AddFS(l.tree()), writer.Close()); err != nil {
		return nil, fmt.Errorf("pack layer %q: %w", l.Comment, err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compress layer %q: %w", l.Comment, err)
	}
	return layer, nil
}

func (l Layer) tree() fs.FS {
	tree, epoch := fstest.MapFS{}, time.Unix(0, 0)
	for name, file := range l.Files {
		tree[name] = &fstest.MapFile{Data: file.Content, Mode: cmp.Or(file.Mode, 0o644), ModTime: epoch}
		for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
			tree[folder] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: epoch}
		}
	}
	if l.Tmp {
		tree["tmp"] = &fstest.MapFile{Mode: fs.ModeDir | fs.ModeSticky | 0o777, ModTime: epoch}
	}
	return tree
}

// Base is what a static Go program expects of a system, and no more: names for its
// user, the certificate authorities that Mozilla trusts for servers, /tmp. An authority
// that is trusted only under conditions is left out, because a certificate file cannot
// express them.
func Base() Layer {
	return Layer{
		Comment: "users, certificate authorities, /tmp",
		Tmp:     true,
		Files: map[string]File{
			"etc/passwd":                        {Content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
			"etc/group":                         {Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
			"etc/ssl/certs/ca-certificates.crt": {Content: authorities()},
		},
	}
}

func authorities() []byte {
	var certificates []*x509.Certificate
	for root := range bundle.Roots() {
		certificate, err := x509.ParseCertificate(root.Certificate)
		if err == nil && root.Constraint == nil {
			certificates = append(certificates, certificate)
		}
	}
	slices.SortFunc(certificates, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	var text bytes.Buffer
	for _, certificate := range certificates {
		fmt.Fprintf(&text, "# %s\n", certificate.Subject)
		text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}))
	}
	return text.Bytes()
}

// Binary is a layer with one program from this machine, under /usr/local/bin and its
// own name, and its path in the image.
func Binary(file string) (Layer, string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Layer{}, "", fmt.Errorf("read the program: %w", err)
	}
	if !bytes.HasPrefix(content, []byte("\x7fELF")) {
		return Layer{}, "", fmt.Errorf("%s is no Linux program: build it with GOOS=linux CGO_ENABLED=0", file)
	}
	inside := path.Join("usr/local/bin", path.Base(file))
	return Layer{Comment: path.Base(file), Files: map[string]File{inside: {Content: content, Mode: 0o755}}}, "/" + inside, nil
}

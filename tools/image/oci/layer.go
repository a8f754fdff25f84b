// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// File is a file of a layer. It belongs to root, so that the image's process
// cannot change it.
type File struct {
	// Path is its absolute path in the image.
	Path string
	// Content is its content.
	Content []byte
	// Mode are its permissions. Default: 0644.
	Mode int64
}

// Layer is a set of files. Their directories are created with them, and their times are
// in 1970, so that the same files give the same layer.
type Layer struct {
	// Files are its files, in any order.
	Files []File
	// Tmp adds an empty, world-writable directory /tmp.
	Tmp bool
	// Comment describes the layer in the image's history.
	Comment string
}

func (l Layer) pack() (v1.Layer, error) {
	content, err := l.tar()
	if err != nil {
		return nil, fmt.Errorf("pack layer %q: %w", l.Comment, err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compress layer %q: %w", l.Comment, err)
	}
	return layer, nil
}

// tar is the layer as an archive: directories before their content, all by name.
func (l Layer) tar() ([]byte, error) {
	files := slices.SortedFunc(slices.Values(l.Files), func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, folder := range l.folders() {
		mode := int64(0o755)
		if folder == "tmp/" {
			mode = 0o1777
		}
		header := &tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: mode, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := writer.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("folder %s: %w", folder, err)
		}
	}
	for i, file := range files {
		if err := writeFile(writer, files, i); err != nil {
			return nil, fmt.Errorf("file %s: %w", file.Path, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("finish the archive: %w", err)
	}
	return buffer.Bytes(), nil
}

func writeFile(writer *tar.Writer, files []File, i int) error {
	file := files[i]
	if !path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path || file.Path == "/" {
		return fmt.Errorf("must be a clean absolute path, such as /usr/bin/%s", path.Base(file.Path))
	}
	if i > 0 && files[i-1].Path == file.Path {
		return errors.New("is there twice")
	}
	mode := file.Mode
	if mode == 0 {
		mode = 0o644
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file.Path, "/"), Mode: mode, Size: int64(len(file.Content)),
		ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	}
	if err := writer.WriteHeader(header); err != nil {
		return fmt.Errorf("write its header: %w", err)
	}
	if _, err := writer.Write(file.Content); err != nil {
		return fmt.Errorf("write it: %w", err)
	}
	return nil
}

// folders lists all directories above the files, parents first.
func (l Layer) folders() []string {
	var folders []string
	if l.Tmp {
		folders = append(folders, "tmp/")
	}
	for _, file := range l.Files {
		for dir := path.Dir(file.Path); dir != "/" && dir != "."; dir = path.Dir(dir) {
			folders = append(folders, strings.TrimPrefix(dir, "/")+"/")
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// Base is what a static Go program expects of a system, and no more: names for its
// user, the certificate authorities that Mozilla trusts for servers, /tmp. An authority
// that is trusted only under conditions is left out, because a certificate file cannot
// express them.
func Base() Layer {
	return Layer{
		Comment: "users, certificate authorities, /tmp",
		Tmp:     true,
		Files: []File{
			{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
			{Path: "/etc/group", Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
			{Path: "/etc/ssl/certs/ca-certificates.crt", Content: authorities()},
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
	inside := path.Join("/usr/local/bin", path.Base(file))
	return Layer{Comment: path.Base(file), Files: []File{{Path: inside, Content: content, Mode: 0o755}}}, inside, nil
}

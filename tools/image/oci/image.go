// SPDX-License-Identifier: Apache-2.0

// Package oci packs static binaries into container images, without a container engine,
// a base image or root: from an empty image, byte for byte the same for the same files.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonRoot is the user and group that an image's process runs as: the number that
// distroless images established. A kubelet cannot check runAsNonRoot against a name.
const nonRoot = "65532:65532"

// Spec describes the content of an image.
type Spec struct {
	// Platform is the machine that the binary was built for. Default: linux on the
	// architecture of this process.
	Platform v1.Platform
	// Layers are stacked in this order. Layers that seldom change come first, so that nodes download
	// them once.
	Layers []Layer
	// Entrypoint is the command, as absolute paths inside the image. Required: there
	// is no shell in the image to fall back on.
	Entrypoint []string
	// Env are variables as NAME=value, in addition to PATH.
	Env []string
	// Labels are the image's labels; those with OCI's own keys
	// (org.opencontainers.image.…) become annotations too.
	Labels map[string]string
	// Created is the image's creation time. Default: 1970, so that it is the same in
	// every build.
	Created time.Time
}

// annotationPrefix is the prefix of OCI's own keys.
const annotationPrefix = "org.opencontainers.image."

// New builds an image.
func New(spec Spec) (v1.Image, error) {
	created := v1.Time{Time: spec.Created.UTC()}
	if spec.Created.IsZero() {
		created.Time = time.Unix(0, 0).UTC()
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(image, configOf(spec, created))
	if err != nil {
		return nil, fmt.Errorf("configure the image: %w", err)
	}
	for _, layer := range spec.Layers {
		packed, err := layer.pack()
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: packed, MediaType: types.OCILayer,
			History: v1.History{Created: created, CreatedBy: layer.Comment},
		})
		if err != nil {
			return nil, fmt.Errorf("add layer %q: %w", layer.Comment, err)
		}
	}
	return mutate.Annotations(image, annotationsOf(spec.Labels)).(v1.Image), nil
}

func configOf(spec Spec, created v1.Time) *v1.ConfigFile {
	platform := spec.Platform
	if platform.OS == "" {
		platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	}
	return &v1.ConfigFile{
		Architecture: platform.Architecture, OS: platform.OS, Variant: platform.Variant, Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: spec.Entrypoint, User: nonRoot, WorkingDir: "/", Labels: spec.Labels,
			Env: append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, spec.Env...),
		},
	}
}

func annotationsOf(labels map[string]string) map[string]string {
	annotations := maps.Clone(labels)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !strings.HasPrefix(key, annotationPrefix) })
	return annotations
}

// Index combines images for several platforms under one name. Its annotations are the
// labels with OCI's own keys.
func Index(images []v1.Image, labels map[string]string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read an image's configuration: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()},
		})
	}
	return mutate.Annotations(index, annotationsOf(labels)).(v1.ImageIndex), nil
}

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

// pack returns the layer as an archive, in the order of the paths.
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

// Base returns a layer with only the files that a static Go program expects of a system: names for its
// user, the certificate authorities that Mozilla trusts for servers, /tmp. Authorities that are trusted
// only under conditions are left out, because a certificate file cannot express them.
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

// Binary returns a layer with one program from this machine, under /usr/local/bin and its own name, and
// its path in the image.
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

// WriteTar writes images into one archive in the format of docker save, under names
// such as example.com/web:v1, for `ctr images import`, `kind load image-archive` and
// `docker load`. Such an archive has no platforms: each name is one image. The file is
// replaced atomically, or stays unchanged.
func WriteTar(file string, images map[string]v1.Image) error {
	tags := make(map[name.Tag]v1.Image, len(images))
	for ref, image := range images {
		tag, err := tagOf(ref)
		if err != nil {
			return err
		}
		tags[tag] = image
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the archive's folder: %w", err)
	}
	unfinished := file + ".unfinished"
	if err := tarball.MultiWriteToFile(unfinished, tags); err != nil {
		return fmt.Errorf("write %s: %w", unfinished, err)
	}
	if err := os.Rename(unfinished, file); err != nil {
		return fmt.Errorf("put the archive in its place: %w", err)
	}
	return nil
}

// WriteLayout writes a multi-platform image as an OCI layout, a directory that skopeo,
// crane, oras and containerd read. Previous content of the directory is removed.
func WriteLayout(folder, ref string, index v1.ImageIndex) error {
	tag, err := tagOf(ref)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("empty the layout's folder: %w", err)
	}
	target, err := layout.Write(folder, empty.Index)
	if err != nil {
		return fmt.Errorf("begin the layout: %w", err)
	}
	// containerd reads the name from its own key, other programs from OCI's.
	names := layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag.TagStr(),
		"io.containerd.image.name":          tag.Name(),
	})
	if err := target.AppendIndex(index, names); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	return nil
}

// Push uploads an image, or one for several platforms, to a registry, with the
// credentials stored by docker login. A registry on loopback or a private address is
// contacted without TLS.
func Push(ctx context.Context, ref string, image remote.Taggable) error {
	tag, err := tagOf(ref)
	if err != nil {
		return err
	}
	if err := remote.Push(tag, image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	return nil
}

func tagOf(ref string) (name.Tag, error) {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return tag, fmt.Errorf("name %q: %w; give host, repository and tag, such as example.com/web:v1", ref, err)
	}
	return tag, nil
}

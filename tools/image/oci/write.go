// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

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
	// containerd takes the name from its own key, everybody else from OCI's.
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

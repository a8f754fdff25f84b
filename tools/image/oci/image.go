// SPDX-License-Identifier: Apache-2.0

// Package oci packs static binaries into container images, without a container engine,
// a base image or root: from an empty image, byte for byte the same for the same files.
package oci

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonRoot is the user and group that an image's process runs as: the number that
// distroless images established. A kubelet cannot check runAsNonRoot against a name.
const nonRoot = "65532:65532"

// Spec describes the content of an image.
type Spec struct {
	// Platform is the machine that the binary was built for. Default: linux on the
	// architecture of this process.
	Platform v1.Platform
	// Layers are stacked in this order. What seldom changes comes first, so that nodes
	// download it once.
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

// FromBinary is an image that runs one static Linux program from this machine, as
// /usr/local/bin/<its name>.
func FromBinary(file string) (v1.Image, error) {
	layer, inside, err := Binary(file)
	if err != nil {
		return nil, err
	}
	return New(Spec{Layers: []Layer{Base(), layer}, Entrypoint: []string{inside}})
}

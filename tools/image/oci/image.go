// SPDX-License-Identifier: Apache-2.0

// Package oci packs static binaries into container images, without a container engine,
// a base image or root: from an empty image, byte for byte the same for the same files.
package oci

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// NonRoot is the user and group that an image's process runs as unless its Spec names
// another: the number that distroless images established.
const NonRoot = "65532:65532"

// Spec describes the content of an image.
type Spec struct {
	// Platform is the machine that the binary was built for. Default: linux on the
	// architecture of this process.
	Platform v1.Platform
	// Layers are stacked in this order. What seldom changes comes first, so that nodes
	// download it once. At least one.
	Layers []Layer
	// Entrypoint is the command, as absolute paths inside the image. Required: there
	// is no shell in the image to fall back on.
	Entrypoint []string
	// Env are variables as NAME=value, in addition to PATH.
	Env []string
	// User is the numeric user that the process runs as: a kubelet cannot check
	// runAsNonRoot against a name. Default: NonRoot.
	User string
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
	if len(spec.Layers) == 0 {
		return nil, errors.New("an image needs at least one layer")
	}
	if len(spec.Entrypoint) == 0 || !path.IsAbs(spec.Entrypoint[0]) {
		return nil, fmt.Errorf("the entrypoint must be an absolute path inside the image, not %q", spec.Entrypoint)
	}
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
	annotated, ok := mutate.Annotations(image, annotationsOf(spec.Labels)).(v1.Image)
	if !ok {
		return nil, errors.New("annotate the image: not an image any more")
	}
	return annotated, nil
}

func configOf(spec Spec, created v1.Time) *v1.ConfigFile {
	platform := PlatformOr(spec.Platform)
	user := spec.User
	if user == "" {
		user = NonRoot
	}
	return &v1.ConfigFile{
		Architecture: platform.Architecture, OS: platform.OS, Variant: platform.Variant, Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: spec.Entrypoint, User: user, WorkingDir: "/", Labels: spec.Labels,
			Env: append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, spec.Env...),
		},
	}
}

func annotationsOf(labels map[string]string) map[string]string {
	annotations := make(map[string]string, len(labels))
	for key, value := range labels {
		if strings.HasPrefix(key, annotationPrefix) {
			annotations[key] = value
		}
	}
	return annotations
}

// PlatformOr returns the platform, or linux on this process's architecture if it is
// empty.
func PlatformOr(platform v1.Platform) v1.Platform {
	if platform.OS == "" && platform.Architecture == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	}
	return platform
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
	annotated, ok := mutate.Annotations(index, annotationsOf(labels)).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("annotate the index: not an index any more")
	}
	return annotated, nil
}

// FromBinary is an image that runs one static Linux program from this machine, as
// /usr/local/bin/<its name>.
func FromBinary(file string, platform v1.Platform) (v1.Image, error) {
	layer, inside, err := Binary(file)
	if err != nil {
		return nil, err
	}
	return New(Spec{Platform: platform, Layers: []Layer{Base(), layer}, Entrypoint: []string{inside}})
}

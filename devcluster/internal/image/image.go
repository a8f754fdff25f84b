// SPDX-License-Identifier: Apache-2.0

// Package image packs programs into container images without a container engine.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image is one image of one static program.
type Image struct {
	// Name is its name, with registry and tag.
	Name string
	// Program is the file that becomes /app, the entry point.
	Program string
	// Env are the variables of its containers, as NAME=value.
	Env []string
	// User is who runs it, as "uid:gid"; empty means root.
	User string
}

// Write packs images into an archive that "ctr images import" and "docker load"
// read. The same input gives the same bytes.
func Write(archive string, images ...Image) error {
	packed := map[name.Tag]v1.Image{}
	for _, i := range images {
		tag, err := name.NewTag(i.Name, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
		if packed[tag], err = i.pack(); err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
	}
	if err := tarball.MultiWriteToFile(archive, packed); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}

func (i Image) pack() (v1.Image, error) {
	program, err := os.ReadFile(i.Program)
	if err != nil {
		return nil, err
	}
	files, err := layer(program)
	if err != nil {
		return nil, err
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{
		Entrypoint: []string{"/app"}, WorkingDir: "/", User: i.User,
		Env: slices.Concat([]string{"PATH=/"}, i.Env),
	}
	return mutate.ConfigFile(img, config)
}

// layer is a file system of the program and a folder for temporary files.
func layer(program []byte) ([]byte, error) {
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	for _, header := range []*tar.Header{
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: time.Unix(0, 0)},
		{Name: "app", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program)), ModTime: time.Unix(0, 0)},
	} {
		if err := out.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	if _, err := out.Write(program); err != nil {
		return nil, err
	}
	return text.Bytes(), out.Close()
}

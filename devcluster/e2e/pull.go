// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
	"github.com/usher-dev/usher/tools/image/oci"
)

// imageRegistry is where the node pulls images from. Runtimes speak plain HTTP to a
// registry on loopback.
const imageRegistry = "127.0.0.1:5000"

// PulledImage is a version of the web service under a name that a node pulls.
func (s *Scene) PulledImage(version string) string { return pulledImage(version) }

func pulledImage(version string) string { return imageRegistry + "/web:" + version }

// serveImages runs a registry of images and fills it.
func (s *stage) serveImages(ctx context.Context, _ progress.Sink) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", imageRegistry)
	if err != nil {
		return fmt.Errorf("the registry of images: %w", err)
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // It ends with this process, or by Close.
	s.images = server
	for _, version := range []string{"v1", "v2"} {
		from, err := name.NewTag(WebImage + ":" + version)
		if err != nil {
			return err
		}
		image, err := tarball.ImageFromPath(s.kit.Programs, &from)
		if err != nil {
			return fmt.Errorf("the registry of images: %w", err)
		}
		// Another content than that of the imported image: else the runtime would
		// report either under either's name.
		pulled, err := mutate.CreatedAt(image, v1.Time{Time: time.Unix(1, 0)})
		if err != nil {
			return fmt.Errorf("the registry of images: %w", err)
		}
		if err := oci.PushImage(ctx, pulledImage(version), pulled); err != nil {
			return fmt.Errorf("the registry of images: %w", err)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Package images builds the container images of the Pods on a real node, and serves
// them as a registry.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/time/rate"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/tools/image/oci"
)

const (
	// Web is the name of the web service's images. The tags are v1, v2 and v3, and
	// Broken, which exits as soon as it starts.
	Web = "usher.test/web"
	// Broken is a version of the web service that cannot start.
	Broken = "broken"
	// WebProgram is the program in those images; "sleep SECONDS" makes it a hook.
	WebProgram = "/usr/local/bin/web"
	// PulledWeb is the name of v1 and v2 as a registry serves them, at the host that
	// is PulledHost.
	PulledWeb = PulledHost + "/web"
	// PulledHost is the host in the names of images that the demo uses.
	PulledHost = "example.com"
	// Cold is the name of images that are large and served slowly: a colon and a tag follow.
	Cold = PulledHost + "/" + coldRepository
	// coldRepository is what Serve serves slowly.
	coldRepository = "cold"
	// coldSize is how much noise, in bytes, PushCold adds to an image, and coldRate how much
	// of such images is served a second: a pull takes at least eight seconds.
	coldSize = 200 << 20
	coldRate = 25 << 20
	// coldPiece is how much is sent at once.
	coldPiece = 64 << 10
)

// Pack builds the web service and the pause image, and packs them into an archive below
// dir.
func Pack(ctx context.Context, root, dir string, tell progress.Sink) (archive string, err error) {
	module := filepath.Join(root, "test")
	pause, web := filepath.Join(dir, "bin", "pause"), filepath.Join(dir, "bin", "web")
	for _, p := range []checkout.Program{
		{Name: "build pause", Module: module, Pkg: "./cmd/pause", Out: pause},
		{Name: "build web", Module: module, Pkg: "./cmd/web", Out: web},
	} {
		if err := p.Compile(ctx, tell); err != nil {
			return "", err
		}
	}
	packed := map[string]v1.Image{}
	if packed[realnode.PauseImage], err = imageOf(pause); err != nil {
		return "", err
	}
	for _, version := range []string{"v1", "v2", "v3", Broken} {
		// By default it would listen on loopback, as in the development cluster.
		env := []string{"APP_VERSION=" + version, "POD_IP=0.0.0.0"}
		if version == Broken {
			env = append(env, "BROKEN=1")
		}
		if packed[Web+":"+version], err = imageOf(web, env...); err != nil {
			return "", err
		}
	}
	archive = filepath.Join(dir, "images", "programs.tar")
	return archive, oci.WriteTar(archive, packed)
}

// imageOf is an image that runs one static program from this machine.
func imageOf(program string, env ...string) (v1.Image, error) {
	layer, inside, err := oci.Binary(program)
	if err != nil {
		return nil, err
	}
	return oci.New(oci.Spec{Layers: []oci.Layer{oci.Base(), layer}, Entrypoint: []string{inside}, Env: env})
}

// Serve runs a registry at an address, host:port, that serves v1 and v2 of the web
// service from an archive of Pack, as web:v1 and web:v2, until Close.
func Serve(ctx context.Context, archive, address string) (io.Closer, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the registry of images: %w", err)
	}
	handler := slowly(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // Close ends it.
	for _, version := range []string{"v1", "v2"} {
		if err := push(ctx, archive, version, address+"/web:"+version); err != nil {
			_ = server.Close() // The cause is already reported.
			return nil, fmt.Errorf("the registry of images: %w", err)
		}
	}
	return server, nil
}

// PushCold pushes v2 of the web service, from an archive of Pack, to the registry at an
// address, as one of the Cold images that differs from all others.
func PushCold(ctx context.Context, archive, address, tag string) error {
	noise := make([]byte, coldSize)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(tag))).Read(noise) // cannot fail
	var layer bytes.Buffer
	files := tar.NewWriter(&layer)
	if err := files.WriteHeader(&tar.Header{Name: "noise", Mode: 0o644, Size: coldSize}); err != nil {
		return err
	}
	if _, err := files.Write(noise); err != nil {
		return err
	}
	if err := files.Close(); err != nil {
		return err
	}
	return push(ctx, archive, "v2", address+"/"+coldRepository+":"+tag, static.NewLayer(layer.Bytes(), types.DockerUncompressedLayer))
}

func push(ctx context.Context, archive, version, ref string, more ...v1.Layer) error {
	from, err := name.NewTag(Web + ":" + version)
	if err != nil {
		return err
	}
	image, err := tarball.ImageFromPath(archive, &from)
	if err != nil {
		return err
	}
	// Make the content differ from the imported image's: otherwise the runtime would
	// report either image under either name.
	pulled, err := mutate.CreatedAt(image, v1.Time{Time: time.Unix(1, 0)})
	if err != nil {
		return err
	}
	if pulled, err = mutate.AppendLayers(pulled, more...); err != nil {
		return err
	}
	return oci.Push(ctx, ref, pulled)
}

// slowly limits what a registry serves of the cold images.
func slowly(registry http.Handler) http.Handler {
	pace := rate.NewLimiter(coldRate, coldPiece)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/v2/"+coldRepository+"/blobs/") {
			w = slow{w, r.Context(), pace}
		}
		registry.ServeHTTP(w, r)
	})
}

type slow struct {
	http.ResponseWriter
	ctx  context.Context
	pace *rate.Limiter
}

func (s slow) Write(data []byte) (sent int, err error) {
	for piece := range slices.Chunk(data, coldPiece) {
		if err := s.pace.WaitN(s.ctx, len(piece)); err != nil {
			return sent, err
		}
		n, err := s.ResponseWriter.Write(piece)
		if sent += n; err != nil {
			return sent, err
		}
	}
	return sent, nil
}

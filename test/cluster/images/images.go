// SPDX-License-Identifier: Apache-2.0

// Package images builds the container images of the Pods on a real node, and serves
// them as a registry.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

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
	// documentedPause is the image of the Pods in the documents that only wait.
	documentedPause = "registry.k8s.io/pause:3.10"
	// PulledHost is the host in the names of images that the demo uses.
	PulledHost = "example.com"
)

// Pack builds the web service and the pause image, and packs them into an archive below
// dir.
func Pack(ctx context.Context, root, dir string, sink progress.Sink) (archive string, err error) {
	module := filepath.Join(root, "test")
	pause, web := filepath.Join(dir, "bin", "pause"), filepath.Join(dir, "bin", "web")
	for _, p := range []checkout.Program{
		{Name: "build pause", Module: module, Pkg: "./cmd/pause", Out: pause},
		{Name: "build web", Module: module, Pkg: "./cmd/web", Out: web},
	} {
		if err := p.Compile(ctx, sink); err != nil {
			return "", err
		}
	}
	packed := map[string]v1.Image{}
	for _, name := range []string{realnode.PauseImage, documentedPause} {
		if packed[name], err = imageOf(pause); err != nil {
			return "", err
		}
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

// imageOf returns an image that runs one static program from this machine.
func imageOf(program string, env ...string) (v1.Image, error) {
	layer, inside, err := oci.Binary(program)
	if err != nil {
		return nil, err
	}
	return oci.New(oci.Spec{Layers: []oci.Layer{oci.Base(), layer}, Entrypoint: []string{inside}, Env: env})
}

// Serve runs a registry at an address, host:port, until Close. From an archive of Pack it serves
// v1 and v2 of the web service as web:v1 and web:v2, and v2 with 200 MiB more, slowly, as cold:first
// and cold:later.
func Serve(ctx context.Context, archive, address string) (io.Closer, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("start the registry of images: %w", err)
	}
	layers := map[string]cold{}
	server := &http.Server{
		Handler:           withCold(registry.New(registry.Logger(log.New(io.Discard, "", 0))), layers),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.Serve(listener) }() // Close ends it.
	for _, version := range []string{"v1", "v2"} {
		err = errors.Join(err, push(ctx, archive, version, address+"/web:"+version))
	}
	for _, tag := range []string{"first", "later"} {
		layer, made := newCold(tag)
		layers[layer.hash.String()] = layer
		err = errors.Join(err, made, push(ctx, archive, "v2", address+"/"+coldRepository+":"+tag, layer))
	}
	if err != nil {
		_ = server.Close() // The cause is already reported.
		return nil, fmt.Errorf("the registry of images: %w", err)
	}
	return server, nil
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

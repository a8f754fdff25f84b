// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/usher-dev/usher/devcluster/internal/checkout"
	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
	"github.com/usher-dev/usher/devcluster/internal/image"
	"github.com/usher-dev/usher/devcluster/internal/realnode"
)

// kit is all that the program inside needs and cannot get there, where there is
// no way to the network.
type kit struct {
	// Root is the checkout.
	Root string
	// Assets are the node's programs.
	Assets realnode.Assets
	// Usher is its program.
	Usher string
	// Programs are those of registries.
	Programs programs
	// Images are archives of images.
	Images []string
}

const kitFile = "kit.json"

// prepare builds and fetches everything into the caches and dir.
func prepare(ctx context.Context, o Options, dir string, tell progress.Sink) (kit, error) {
	root, err := checkout.Find(o.Getenv)
	if err != nil {
		return kit{}, err
	}
	k := kit{Root: root}
	if k.Assets, err = realnode.GetAssets(ctx, tell); err != nil {
		return k, err
	}
	if k.Programs, err = getPrograms(ctx, root, o.chosen(), tell); err != nil {
		return k, err
	}
	if k.Images, err = packImages(ctx, root, dir, tell); err != nil {
		return k, err
	}
	k.Usher = filepath.Join(dir, "bin", "usher")
	program := checkout.Program{Name: "build usher", Module: root, Pkg: "./cmd/usher", Out: k.Usher}
	if err := program.Compile(ctx, tell); err != nil {
		return k, err
	}
	return k, k.write(dir)
}

func (k kit) write(dir string) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, kitFile), text, 0o600)
}

func readKit(dir string) (kit, error) {
	var k kit
	text, err := os.ReadFile(filepath.Join(dir, kitFile))
	if err != nil {
		return k, fmt.Errorf("read what was prepared: %w", err)
	}
	return k, json.Unmarshal(text, &k)
}

// packImages builds the programs of the Pods and packs them.
func packImages(ctx context.Context, root, dir string, tell progress.Sink) ([]string, error) {
	module := filepath.Join(root, "devcluster")
	pause, web := filepath.Join(dir, "bin", "pause"), filepath.Join(dir, "bin", "web")
	for _, p := range []checkout.Program{
		{Name: "build pause", Module: module, Pkg: "./cmd/pause", Out: pause},
		{Name: "build web", Module: module, Pkg: "./cmd/web", Out: web},
	} {
		if err := p.Compile(ctx, tell); err != nil {
			return nil, err
		}
	}
	images := []image.Image{{Name: realnode.PauseImage, Program: pause}}
	for _, version := range []string{"v1", "v2", "v3"} {
		images = append(images, image.Image{
			Name: WebImage + ":" + version, Program: web,
			// It would listen on loopback by default, as in the development cluster.
			Env: []string{"APP_VERSION=" + version, "POD_IP=0.0.0.0"},
		})
	}
	archive := filepath.Join(dir, "images.tar")
	return []string{archive}, image.Write(archive, images...)
}

// WebImage is the name of the web service's images; the tags are v1, v2 and v3.
const WebImage = "usher.test/web"

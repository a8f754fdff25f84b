// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/usher-dev/usher/devcluster/internal/checkout"
	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
	"github.com/usher-dev/usher/devcluster/internal/realnode"
	"github.com/usher-dev/usher/tools/image/oci"
)

// WebImage is the name of the web service's images. The tags are v1, v2 and v3, and
// VersionBroken, which ends as soon as it is started.
const WebImage = "usher.test/web"

// WebProgram is the program in those images; "sleep SECONDS" makes it a hook.
const WebProgram = "/usr/local/bin/web"

// VersionBroken is a version of the web service that cannot start.
const VersionBroken = "broken"

// kit is all that the program inside needs and cannot get there, where there is
// no way to the network.
type kit struct {
	// Root is the checkout.
	Root string
	// Assets are the node's programs.
	Assets realnode.Assets
	// Usher and Programs are archives of images: Usher's, and those of all other
	// Pods.
	Usher, Programs string
	// Consul is its program, HAProxy the folder of its unpacked package; empty if
	// no story needs it.
	Consul, HAProxy string
}

const kitFile = "kit.json"

// prepare builds and fetches everything into the caches and dir.
func prepare(ctx context.Context, o Options, dir string, tell progress.Sink) error {
	root, err := checkout.Find(o.Getenv)
	if err != nil {
		return err
	}
	k := kit{Root: root}
	if k.Assets, err = realnode.GetAssets(ctx, tell); err != nil {
		return err
	}
	if err := k.fetchRegistries(ctx, o.chosen(), tell); err != nil {
		return err
	}
	if k.Usher, err = packUsher(ctx, root, dir, tell); err != nil {
		return err
	}
	if k.Programs, err = packPrograms(ctx, root, dir, tell); err != nil {
		return err
	}
	return k.write(dir)
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

// packUsher makes Usher's image with the tool that makes it for everybody.
func packUsher(ctx context.Context, root, dir string, tell progress.Sink) (string, error) {
	const task = "image usher"
	image, err := usherImage(root)
	if err != nil {
		return "", err
	}
	name, version, _ := strings.Cut(image, ":")
	tool := filepath.Join(dir, "bin", "image")
	program := checkout.Program{Name: "build image tool", Module: filepath.Join(root, "tools", "image"), Pkg: ".", Out: tool}
	if err := program.Compile(ctx, tell); err != nil {
		return "", err
	}
	tell.Tell(progress.Event{Task: task, State: progress.Compiling})
	platform := "linux/" + runtime.GOARCH
	cmd := exec.CommandContext(ctx, tool, "usher", "-root", root, "-name", name, "-version", version, "-platforms", platform,
		"-out", filepath.Join(dir, "images"))
	if out, err := cmd.CombinedOutput(); err != nil {
		tell.Tell(progress.Event{Task: task, State: progress.Failed})
		return "", fmt.Errorf("make Usher's image: %w\n%s", err, out)
	}
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "packed"})
	return filepath.Join(dir, "images", "usher-linux-"+runtime.GOARCH+".tar"), nil
}

// packPrograms builds the programs of the Pods and packs them.
func packPrograms(ctx context.Context, root, dir string, tell progress.Sink) (string, error) {
	module := filepath.Join(root, "devcluster")
	pause, web := filepath.Join(dir, "bin", "pause"), filepath.Join(dir, "bin", "web")
	for _, p := range []checkout.Program{
		{Name: "build pause", Module: module, Pkg: "./cmd/pause", Out: pause},
		{Name: "build web", Module: module, Pkg: "./cmd/web", Out: web},
	} {
		if err := p.Compile(ctx, tell); err != nil {
			return "", err
		}
	}
	images := map[string]v1.Image{}
	var err error
	if images[realnode.PauseImage], err = oci.FromBinary(pause, v1.Platform{}); err != nil {
		return "", err
	}
	for _, version := range []string{"v1", "v2", "v3", VersionBroken} {
		if images[WebImage+":"+version], err = webImage(web, version); err != nil {
			return "", err
		}
	}
	archive := filepath.Join(dir, "images", "programs.tar")
	return archive, oci.WriteTar(archive, images)
}

func webImage(program, version string) (v1.Image, error) {
	layer, inside, err := oci.Binary(program)
	if err != nil {
		return nil, err
	}
	// It would listen on loopback by default, as in the development cluster.
	env := []string{"APP_VERSION=" + version, "POD_IP=0.0.0.0"}
	if version == VersionBroken {
		env = append(env, "START_DELAY=never")
	}
	return oci.New(oci.Spec{Layers: []oci.Layer{oci.Base(), layer}, Entrypoint: []string{inside}, Env: env})
}

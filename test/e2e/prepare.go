// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/stage"
)

// kit has the files that the program inside needs and cannot get without a network.
type kit struct {
	// Assets are the node's programs.
	Assets realnode.Assets
	// Usher and Programs are image archives: Usher's, and those of all other Pods.
	Usher, Programs string
	// Consul is the path of its program, HAProxy the directory of its unpacked package;
	// empty if no story needs it.
	Consul, HAProxy string
}

const kitFile = "kit.json"

// prepare builds and downloads everything into the caches and dir.
func prepare(ctx context.Context, o Options, dir string, sink progress.Sink) error {
	root, err := checkout.Find()
	if err != nil {
		return err
	}
	var k kit
	steps, ctx := errgroup.WithContext(ctx)
	steps.Go(func() (err error) {
		// One at a time: apt-get locks its lists.
		if k.Assets, err = realnode.GetAssets(ctx, sink); err != nil {
			return err
		}
		return k.fetchRegistries(ctx, root, o.chosen(), sink)
	})
	steps.Go(func() error {
		return sink.Task("helm, kubectl", func() (string, error) { return "built", checkout.InstallTools(ctx, root, toolsIn(dir)) })
	})
	steps.Go(func() (err error) {
		k.Usher, err = packUsher(ctx, root, dir, sink)
		return err
	})
	steps.Go(func() (err error) {
		k.Programs, err = images.Pack(ctx, root, dir, sink)
		return err
	})
	if err := steps.Wait(); err != nil {
		return err
	}
	return stage.Save(k, dir, kitFile)
}

// packUsher builds Usher's image with the tool that also builds the released one.
func packUsher(ctx context.Context, root, dir string, sink progress.Sink) (string, error) {
	// The manifests that a user applies name the image.
	manifests, err := os.ReadFile(filepath.Join(root, "dist", "install.yaml"))
	if err != nil {
		return "", err
	}
	image := regexp.MustCompile(`\bimage: "?([^:"\s]+):([^"\s]+)`).FindSubmatch(manifests)
	if image == nil {
		return "", errors.New("dist/install.yaml has no image")
	}
	name, version := string(image[1]), string(image[2])
	tool := filepath.Join(dir, "bin", "image")
	program := checkout.Program{Name: "build image tool", Module: filepath.Join(root, "tools", "image"), Pkg: ".", Out: tool}
	if err := program.Compile(ctx, sink); err != nil {
		return "", err
	}
	out := filepath.Join(dir, "images")
	return filepath.Join(out, "usher-linux-"+runtime.GOARCH+".tar"), sink.Task("image usher", func() (string, error) {
		_, err := fetch.Run(ctx, "", tool, "-root", root, "-name", name, "-version", version, "-platforms", "linux/"+runtime.GOARCH, "-out", out)
		return "packed", err
	})
}

// toolsIn returns the folder of the programs for the documents' commands.
func toolsIn(dir string) string { return filepath.Join(dir, "tools") }

// fetchRegistries gets the registry servers that the stories need.
func (k *kit) fetchRegistries(ctx context.Context, root string, stories []Story, sink progress.Sink) error {
	if uses(stories, Consul) {
		err := sink.Task("consul", func() (_ string, err error) {
			k.Consul, err = fetch.GoProgram(ctx, "consul", filepath.Join(root, "test", "registries", "consul", "server"),
				"github.com/hashicorp/consul", "about ten minutes on two cores")
			return "built", err
		})
		if err != nil {
			return err
		}
	}
	if !uses(stories, HAProxy) {
		return nil
	}
	return sink.Task("haproxy", func() (_ string, err error) {
		k.HAProxy, err = fetch.DebianProgram(ctx, "haproxy")
		return "unpacked", err
	})
}

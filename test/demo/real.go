// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

const (
	// assetsFile tells the demo inside a sandbox where the node's programs are.
	assetsFile = "assets.json"
	// imageRegistry is where the real node pulls the manifests' images from.
	imageRegistry = "127.0.0.1:5000"
)

// RunReal reruns the demo inside a sandbox, where it starts a real node for its
// containers. args are the arguments of this program. Its error is sandbox.ErrFailed if
// the demo inside has already reported what is wrong.
func RunReal(ctx context.Context, options Options, args []string) error {
	o, err := options.withDefaults()
	if err != nil {
		return err
	}
	return sandbox.Session{
		Prefix: "usher-real-demo-", Args: args, Out: o.Out, Logs: []string{"node/logs"},
		Prepare: func(ctx context.Context, dir string) error {
			display := progress.Show(o.Out)
			defer display.Close()
			assets, err := realnode.GetAssets(ctx, display.Sink())
			if err != nil {
				return err
			}
			text, err := json.Marshal(assets)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, assetsFile), text, 0o600)
		},
	}.Run(ctx)
}

// startRealNode is the alternative way to get a control plane and a node.
func (s *stage) startRealNode(ctx context.Context, tell progress.Sink) error {
	var assets realnode.Assets
	text, err := os.ReadFile(filepath.Join(s.place.Dir, assetsFile))
	if err != nil {
		return fmt.Errorf("read what was prepared: %w", err)
	}
	if err := json.Unmarshal(text, &assets); err != nil {
		return fmt.Errorf("read what was prepared: %w", err)
	}
	usher := checkout.Program{Name: "build usher", Module: s.root, Pkg: "./cmd/usher", Out: s.path("bin", "usher")}
	if err := usher.Compile(ctx, tell); err != nil {
		return err
	}
	archive, err := images.Pack(ctx, s.root, s.dir, tell)
	if err != nil {
		return err
	}
	s.node, err = realnode.Start(ctx, realnode.Options{
		Dir: filepath.Join(s.place.Dir, "node"), Cgroup: s.place.Cgroup, Assets: assets, Images: []string{archive},
		Mirrors: map[string]string{images.PulledHost: "http://" + imageRegistry}, Tell: tell,
	})
	if err != nil {
		return err
	}
	s.cluster = s.node.Plane()
	s.images, err = images.Serve(ctx, archive, imageRegistry)
	return err
}

// withProbe adds a readiness probe to the set's container. On a real node, a Pod
// without one is ready as soon as its container has started, even if it does not listen
// yet.
func withProbe(set *unstructured.Unstructured) error {
	containers, _, err := unstructured.NestedSlice(set.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) == 0 {
		return fmt.Errorf("manifest %s has no containers: %w", set.GetName(), err)
	}
	main, ok := containers[0].(map[string]any)
	if !ok {
		return fmt.Errorf("manifest %s: its container is no object", set.GetName())
	}
	main["readinessProbe"] = map[string]any{
		"httpGet": map[string]any{"path": "/readyz", "port": int64(8080)}, "periodSeconds": int64(1),
	}
	return unstructured.SetNestedSlice(set.Object, containers, "spec", "template", "spec", "containers")
}

// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// imageRegistry is where a real node pulls the images from that are not imported.
const imageRegistry = "127.0.0.1:5000"

// StartRealNode starts a control plane and a real node in a sandbox, instead of
// StartCluster and StartNodes. The node has the images of all archives, and pulls those
// of the first one.
func (s *Stage) StartRealNode(ctx context.Context, place *sandbox.Place, options realnode.Options) (*realnode.Node, error) {
	options.Dir, options.Cgroup, options.Tell = filepath.Join(place.Dir, "node"), place.Cgroup, s.Tell
	options.Failed = s.fail
	options.Mirrors = map[string]string{images.PulledHost: "http://" + imageRegistry}
	node, err := realnode.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	s.Cluster = node.Plane()
	s.AtEnd(node.Stop)
	served, err := images.Serve(ctx, options.Images[0], imageRegistry)
	if err != nil {
		return nil, err
	}
	s.AtEnd(func(context.Context) error { return served.Close() })
	return node, nil
}

// Save writes a value to a file, for the program inside a sandbox or the one outside.
func Save(value any, path ...string) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path...), text, 0o600)
}

// Load reads what Save has written.
func Load(value any, path ...string) error {
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

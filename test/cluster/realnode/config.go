// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

const (
	// PauseImage is the name of the image that holds a Pod's namespaces.
	PauseImage = "usher.test/pause:1"
	// maxOpenFiles is the number that a kubelet requests by default.
	maxOpenFiles = 1000000
)

// configs are the configurations of containerd, the CNI plugins and the kubelet, with values of a
// machine as $NAME.
//
//go:embed config
var configs embed.FS

// configure writes the machine's configuration.
func (m *machine) configure(context.Context) error {
	if m.cgroup != "" {
		if err := sandbox.MakeGroup(filepath.Join(m.options.Cgroup, m.cgroup)); err != nil {
			return err
		}
	}
	values, err := m.values()
	if err != nil {
		return err
	}
	for host, url := range m.options.Mirrors {
		if err := m.write("mirrors/"+host+"/hosts.toml", fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", url)); err != nil {
			return err
		}
	}
	return fs.WalkDir(configs, "config", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := configs.ReadFile(name)
		if err != nil {
			return err
		}
		return m.write(strings.TrimPrefix(name, "config/"), cluster.Fill(string(text), values))
	})
}

func (m *machine) write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		return fmt.Errorf("configure the node: %w", err)
	}
	if err := os.WriteFile(m.path(name), []byte(text), 0o644); err != nil {
		return fmt.Errorf("configure the node: %w", err)
	}
	return nil
}

// values returns the values of the names in the configuration.
func (m *machine) values() (map[string]string, error) {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return nil, err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	taints, err := json.Marshal(m.taints)
	shutdown, failed := json.Marshal(m.shutdown)
	return map[string]string{
		"DIR": m.path(), "RUN": filepath.Dir(m.socket()), "PAUSE": PauseImage,
		"PLUGINS": m.options.Assets.plugins(), "RUNC": m.options.Assets.runc(),
		"SUFFIX": m.suffix, "PODS": m.pods, "CGROUP": filepath.Join(m.options.Cgroup, m.cgroup),
		"PORT": strconv.Itoa(m.port), "HEALTHZ": strconv.Itoa(m.port - 2), "TAINTS": string(taints), "SHUTDOWN": string(shutdown), "BUS": m.busAddress(),
		"SCORE": strings.TrimSpace(string(score)), "FILES": strconv.FormatUint(min(files.Max, maxOpenFiles), 10),
	}, errors.Join(err, failed)
}

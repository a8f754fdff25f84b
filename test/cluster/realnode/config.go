// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/test/cluster/sandbox"
)

const (
	// PauseImage is the name of the image that holds a Pod's namespaces.
	PauseImage = "usher.test/pause:1"
	// maxOpenFiles is what a kubelet requests by default.
	maxOpenFiles = 1000000
)

// containerdConfig has version 2, which containerd 1.6 to 2 read.
const containerdConfig = `version = 2
root = %[1]q
state = %[8]q
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = %[2]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[3]q
  # A machine may withhold the right to lower a process's score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %[7]q
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[4]q
    conf_dir = %[5]q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = %[6]q
`

// configure writes what containerd, the CNI plugins and the kubelet read.
func (m *machine) configure(context.Context) error {
	if m.cgroup != "" {
		if err := sandbox.MakeGroup(filepath.Join(m.options.Cgroup, m.cgroup)); err != nil {
			return err
		}
	}
	containerd := fmt.Sprintf(containerdConfig,
		m.path("containerd"), m.socket(), PauseImage, m.options.Assets.plugins(), m.path("cni"), m.options.Assets.runc(), m.path("mirrors"), filepath.Dir(m.socket()))
	network, err := json.Marshal(m.networkConfig())
	if err != nil {
		return err
	}
	settings, err := m.kubeletSettings()
	if err != nil {
		return err
	}
	kubelet, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	files := map[string]string{
		"containerd.toml": containerd, "cni/10-pods.conflist": string(network), "kubelet.yaml": string(kubelet), "resolv.conf": "",
	}
	for host, url := range m.options.Mirrors {
		files["mirrors/"+host+"/hosts.toml"] = fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", url)
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
			return fmt.Errorf("configure the node: %w", err)
		}
		if err := os.WriteFile(m.path(name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("configure the node: %w", err)
		}
	}
	return nil
}

func (p *place) networkConfig() map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods" + p.suffix,
		"plugins": []map[string]any{{
			"type": "bridge", "bridge": "cni0" + p.suffix, "isGateway": true, "isDefaultGateway": true,
			"ipMasq": false, "hairpinMode": true,
			"ipam": map[string]any{"type": "host-local", "ranges": [][]map[string]any{{{"subnet": p.pods}}}},
		}},
	}
}

// kubeletSettings suit a node that lives for minutes and shares its machine: it neither
// evicts nor garbage-collects, and does not ask for what only the whole machine could
// give.
func (m *machine) kubeletSettings() (map[string]any, error) {
	// Lowering the score of this process takes a privilege that a machine may withhold.
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return nil, err
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	return map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": "unix://" + m.socket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               filepath.Join(m.options.Cgroup, m.cgroup),
		"port":                     m.port,
		"healthzPort":              m.port - 2,
		"podLogsDir":               "/var/log/pods" + m.suffix,
		"registerWithTaints":       m.taints,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false,
		"oomScoreAdj":              score,
		"maxOpenFiles":             min(files.Max, maxOpenFiles),
		"resolvConf":               m.path("resolv.conf"),
		"evictionHard": map[string]string{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
		},
		"imageGCHighThresholdPercent": 100,
		// Otherwise an imported image would have to be pulled once another of the same
		// content was.
		"imagePullCredentialsVerificationPolicy": "NeverVerify",
		"serializeImagePulls":                    false,
		"registryPullQPS":                        0,
		"nodeStatusUpdateFrequency":              "2s",
		"nodeLeaseDurationSeconds":               10,
		"syncFrequency":                          "10s",
		"eventRecordQPS":                         0,
		"kubeAPIQPS":                             100,
		"kubeAPIBurst":                           200,
	}, nil
}

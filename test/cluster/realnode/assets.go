// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/fetch"
)

// Assets are the programs of a node.
type Assets struct {
	// Packages is the directory of the unpacked packages.
	Packages string
	// Kubelet is the kubelet's executable.
	Kubelet string
	// KubeProxy is kube-proxy's executable.
	KubeProxy string
}

// GetAssets downloads and builds what is missing, including the control plane. It needs
// Debian's apt-get and dpkg, and the go command for what is not in the cache yet.
func GetAssets(ctx context.Context, sink progress.Sink) (Assets, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return Assets{}, fmt.Errorf("a real node needs packages of Debian or one of its relatives: run this on Debian, in a virtual machine for instance: %w", err)
	}
	bins, err := build.Ensure(ctx, append(build.All(), build.Kubelet, build.KubeProxy)...)
	if err != nil {
		return Assets{}, err
	}
	assets := Assets{Kubelet: bins.Path(build.Kubelet), KubeProxy: bins.Path(build.KubeProxy)}
	err = sink.Task("containerd, runc, CNI, D-Bus", func() (_ string, err error) {
		assets.Packages, err = fetch.DebianPrograms(ctx, "node", "containerd", "runc", "containernetworking-plugins", "nftables", "dbus-daemon")
		return "unpacked", err
	})
	if err != nil {
		err = fmt.Errorf("get the node's programs: %w", err)
	}
	return assets, err
}

func (a Assets) containerd() string { return filepath.Join(a.Packages, "usr/bin/containerd") }
func (a Assets) ctr() string        { return filepath.Join(a.Packages, "usr/bin/ctr") }
func (a Assets) runc() string       { return filepath.Join(a.Packages, "usr/sbin/runc") }
func (a Assets) plugins() string    { return filepath.Join(a.Packages, "usr/lib/cni") }
func (a Assets) dbus() string       { return filepath.Join(a.Packages, "usr/bin/dbus-daemon") }

// env returns the environment in which containerd and the kubelet find the rest.
func (a Assets) env() []string {
	paths := []string{filepath.Dir(a.containerd()), filepath.Dir(a.runc()), os.Getenv("PATH")}
	// Of two values of one variable, the last one counts.
	return append(os.Environ(), "PATH="+strings.Join(paths, ":"), fetch.LibraryPath(a.Packages))
}

// run runs one of the programs to completion.
func (a Assets) run(ctx context.Context, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = a.env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%s %s: %w", filepath.Base(path), strings.Join(args, " "), err),
			errors.New(strings.TrimSpace(string(out))))
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	_ "embed"
	"os"
	"slices"
	"strings"

	"github.com/usher-dev/usher/test/cluster/build"
)

// ServiceRange is the range of cluster IPs. Only package realnode has a kube-proxy that
// routes them.
const ServiceRange = "10.96.0.0/16"

const loopback = "127.0.0.1"

// The components' flags and configuration, with values of a start as $NAME.
var (
	//go:embed config/etcd.flags
	etcdFlags string
	//go:embed config/kube-apiserver.flags
	apiServerFlags string
	//go:embed config/audit.flags
	auditFlags string
	//go:embed config/audit-policy.yaml
	auditPolicy string
	//go:embed config/kube-controller-manager.flags
	controllerManagerFlags string
	//go:embed config/controllers.flags
	controllersFlags string
	//go:embed config/kube-scheduler.flags
	schedulerFlags string
	//go:embed config/kube-scheduler.yaml
	schedulerConfig string
)

// components are the flags of the components, and the URLs of their health.
var components = map[string]struct{ flags, health string }{
	build.Etcd:              {etcdFlags, "http://127.0.0.1:$CLIENT/health"},
	build.APIServer:         {apiServerFlags, "https://127.0.0.1:$API/readyz"},
	build.ControllerManager: {controllerManagerFlags, "https://127.0.0.1:$CONTROLLERS/healthz"},
	build.Scheduler:         {schedulerFlags, "https://127.0.0.1:$SCHEDULER/readyz"},
}

// Fill replaces each $NAME in a text by its value. A name without one stays, so that whoever
// reads the text complains about it.
func Fill(text string, values map[string]string) string {
	return os.Expand(text, func(name string) string {
		if value, ok := values[name]; ok {
			return value
		}
		return "$" + name
	})
}

// flags are the flags in a text, one on a line, and then further ones: of a repeated flag,
// the last one wins.
func flags(text string, values map[string]string, extra []string) []string {
	lines := strings.Split(Fill(text, values), "\n")
	return append(slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "--") }), extra...)
}

// args are the arguments of a component.
func (c *Cluster) args(name string) []string {
	text, extra := components[name].flags, c.opts.ExtraArgs[name]
	switch {
	case name == build.APIServer && c.opts.AuditLog != "":
		text += auditFlags
	case name == build.ControllerManager && !strings.Contains(strings.Join(extra, " "), "--controllers="):
		// Of this flag the values add up, and the first one about a controller counts.
		text += controllersFlags
	}
	return flags(text, c.values, extra)
}

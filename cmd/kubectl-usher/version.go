// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// version is that of a release; the linker sets it.
var version = "dev"

// versions are those of the plugin and of what it talks to.
type versions struct {
	Plugin   string `json:"plugin"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Usher and Kubernetes are those of the cluster; empty if the user may not see them.
	Usher      []string `json:"usher,omitempty"`
	Kubernetes string   `json:"kubernetes,omitempty"`
}

func versionCommand(s *session) *cobra.Command {
	var output string
	command := described("version")
	command.Args = cobra.NoArgs
	command.RunE = func(c *cobra.Command, _ []string) error {
		v := s.versions(c.Context())
		return s.answer(output, v, func(p *page) {
			p.line(plain, "kubectl usher  %s (%s, %s)", strings.TrimSpace(v.Plugin+" "+v.Revision), v.Platform, v.Go)
			p.line(plain, "Usher          %s", cmp.Or(strings.Join(v.Usher, ", "), "not seen in the cluster"))
			p.line(plain, "Kubernetes     %s", cmp.Or(v.Kubernetes, "does not answer"))
		})
	}
	return outputs(command, &output, "json", "yaml")
}

// versions asks the cluster as far as the user may; the plugin's own need nobody.
func (s *session) versions(ctx context.Context) versions {
	v := versions{Plugin: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				v.Revision = setting.Value[:min(12, len(setting.Value))]
			}
		}
	}
	if s.connect() != nil {
		return v
	}
	if discovery, err := s.flags.ToDiscoveryClient(); err == nil {
		if server, err := discovery.ServerVersion(); err == nil {
			v.Kubernetes = server.GitVersion
		}
	}
	deployments, _ := s.list(ctx, kindDeployment, usherLabels) // none if the user may not see them
	for _, d := range deployments {
		v.Usher = append(v.Usher, d.GetLabels()["app.kubernetes.io/version"])
	}
	slices.Sort(v.Usher)
	v.Usher = slices.Compact(v.Usher)
	return v
}

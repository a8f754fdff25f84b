// SPDX-License-Identifier: Apache-2.0

// Command kubectl-usher is a kubectl plugin: kubectl usher shows what Usher is doing and why, and
// controls rollouts.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/printable"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// Errors report what goes wrong; libraries would log it again.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	command := newCommand(streams)
	command.SetArgs(arguments(os.Args))
	err := command.ExecuteContext(ctx)
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		os.Exit(int(code))
	}
	complain(os.Stderr, err)
	os.Exit(1)
}

// exitCode ends the program without an error message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// help has the usage and the description of each command.
//
//go:embed help.txt
var help string

// described makes a command with its texts from the help: a line, a longer description, and examples.
func described(name string) *cobra.Command {
	_, text, found := strings.Cut(help, "# "+name)
	if !found {
		panic("help.txt says nothing of " + name)
	}
	text, _, _ = strings.Cut(text, "\n# ")
	use, text, _ := strings.Cut(text, "\n")
	text, examples, _ := strings.Cut(strings.TrimSpace(text), "\n\nExamples:\n")
	short, more, _ := strings.Cut(text, "\n")
	command := &cobra.Command{Use: name + use, Short: strings.TrimSuffix(short, "."), Example: examples}
	if more != "" {
		command.Long = text
	}
	return command
}

// command returns a command with its help.
func command(name string, args cobra.PositionalArgs, complete cobra.CompletionFunc, run func(ctx context.Context, args []string) error) *cobra.Command {
	c := described(name)
	c.Args, c.ValidArgsFunction = args, complete
	c.RunE = func(c *cobra.Command, args []string) error { return run(c.Context(), args) }
	return c
}

// newCommand returns kubectl usher with all its commands.
func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	s := &session{flags: genericclioptions.NewConfigFlags(true), IOStreams: streams}
	root := described("kubectl-usher")
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl usher"}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	s.flags.AddFlags(root.PersistentFlags())
	group := func(title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: title, Title: title})
		for _, command := range commands {
			command.GroupID = title
		}
		root.AddCommand(commands...)
	}
	group("See and ask:", statusCommand(s), whyCommand(s), planCommand(s), historyCommand(s), diffCommand(s),
		registryCommand(s), doctorCommand(s), dashboardCommand(s))
	group("Take hold:", undoCommand(s), pauseCommand(s, "pause"), pauseCommand(s, "resume"), partitionCommand(s),
		s.changes(s.onCloneSet("restart", s.restart)), drainCommand(s), releaseCommand(s))
	root.AddCommand(convertCommand(s), versionCommand(s), optionsCommand(root))
	root.Version = version
	root.Flags().Bool("version", false, "print the plugin's version") // without -v, which is kubectl's for logs
	root.SetVersionTemplate("kubectl usher {{.Version}}\n")
	root.SetUsageTemplate(shortUsage(root.UsageTemplate()))
	s.completeFlags(root)
	return root
}

// optionsCommand lists kubectl's own flags, as kubectl options does.
func optionsCommand(root *cobra.Command) *cobra.Command {
	c := described("options")
	c.Args = cobra.NoArgs
	c.RunE = func(*cobra.Command, []string) error {
		put(root.OutOrStdout(), "These flags may be passed to any command:\n\n"+root.PersistentFlags().FlagUsages())
		return nil
	}
	return c
}

// shortUsage returns a usage template without the flags that all commands have.
func shortUsage(template string) string {
	before, rest, found := strings.Cut(template, "{{if .HasAvailableInheritedFlags}}")
	_, after, ended := strings.Cut(rest, "{{end}}")
	if !found || !ended {
		return template
	}
	before = strings.Replace(before, "{{if .HasAvailableLocalFlags}}", "{{if and .HasParent .HasAvailableLocalFlags}}", 1)
	return before + "\n\nkubectl usher options lists kubectl's flags, such as -n and --context, which work here too." + after
}

// version is the version of a release; the linker sets it.
var version = "dev"

// versions are the versions of the plugin, of Usher and of Kubernetes.
type versions struct {
	Plugin   string `json:"plugin"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Usher and Kubernetes are the versions in the cluster; empty if the user may not see them.
	Usher      []string `json:"usher,omitempty"`
	Kubernetes string   `json:"kubernetes,omitempty"`
	// noUsher says why Usher is empty.
	noUsher string
}

func versionCommand(s *session) *cobra.Command {
	return s.outputs(command("version", cobra.NoArgs, nil, func(ctx context.Context, _ []string) error {
		v := s.versions(ctx)
		return s.page().answer(v, func(p *page) {
			p.line(plain, "kubectl usher  %s (%s, %s)", strings.TrimSpace(v.Plugin+" "+v.Revision), v.Platform, v.Go)
			p.line(plain, "Usher          %s", cmp.Or(strings.Join(v.Usher, ", "), v.noUsher))
			p.line(plain, "Kubernetes     %s", cmp.Or(v.Kubernetes, "does not answer"))
		})
	}), "json", "yaml")
}

// versions asks the cluster for the versions that the user may see, and adds the plugin's own.
func (s *session) versions(ctx context.Context) versions {
	v := versions{Plugin: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, noUsher: "not looked at: no cluster answers"}
	if info, ok := debug.ReadBuildInfo(); ok {
		if built := list.Find(info.Settings, func(s *debug.BuildSetting) bool { return s.Key == "vcs.revision" }); built != nil {
			v.Revision = built.Value[:min(12, len(built.Value))]
		}
	}
	if s.connect() != nil {
		return v
	}
	if server, err := s.discovery.ServerVersion(); err == nil {
		v.Kubernetes = server.GitVersion
	}
	deployments, err := s.list(ctx, kindDeployment, usherLabels)
	switch {
	case apierrors.IsForbidden(err):
		v.noUsher = "not looked at: you may not list Deployments in all namespaces"
	case err == nil:
		v.noUsher = "not seen in the cluster"
	}
	v.Usher = list.Map(deployments, func(d metav1.Object) string { return d.GetLabels()["app.kubernetes.io/version"] })
	slices.Sort(v.Usher)
	v.Usher = slices.Compact(v.Usher)
	return v
}

// complain prints an error. All lines but the first are indented, so that text of others in it cannot
// look like a line of the plugin.
func complain(out io.Writer, err error) {
	put(out, "error: "+strings.ReplaceAll(printable.Text(err.Error()), "\n", "\n  ")+"\n")
}

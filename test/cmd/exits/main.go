// SPDX-License-Identifier: Apache-2.0

// Command exits measures how many requests a workload of any cluster loses on each way out: rollout, scale-in,
// deletion, eviction, drain of a node. Without a kubeconfig it rehearses on a development cluster, with Usher and
// without.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/exits"
	"github.com/usher-dev/usher/test/stage"
)

func main() { stage.Main("exits", false, command) }

// flagsOf are the flags of the command.
type flagsOf struct {
	kubeconfig, namespace, workload, listed, ways string
	rate, mayLose                                 int
	lag, slow, limit                              time.Duration
}

func command(flags *flag.FlagSet) func(context.Context) error {
	var f flagsOf
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig `file`; without it, everything is rehearsed on a development cluster")
	flags.StringVar(&f.namespace, "namespace", "default", "the workload's `namespace`")
	flags.StringVar(&f.workload, "workload", "", "the `workload`, as in deployment/web, statefulset/web or cloneset/web: its Pods are restarted, scaled, deleted, evicted and drained")
	flags.StringVar(&f.listed, "listed", "", "`SOURCE`: "+exits.ListedForms)
	flags.StringVar(&f.ways, "ways", "", "the `ways` to play, separated by commas; default all of\n"+exits.WayNames())
	flags.IntVar(&f.rate, "rate", 100, "requests per second")
	flags.DurationVar(&f.lag, "lag", time.Second, "how far the slowest caller's list is behind: Usher's drain.propagation has to be longer")
	flags.DurationVar(&f.slow, "slow", 0, "how long the longest requests take, if the application answers /slow?d=1500ms")
	flags.DurationVar(&f.limit, "limit", 5*time.Minute, "how long each way may take")
	flags.IntVar(&f.mayLose, "may-lose", -1, "fail if more requests than this `number` are lost; default: losses are no failure")
	return f.run
}

func (f *flagsOf) run(ctx context.Context) error {
	if f.kubeconfig == "" {
		return f.rehearse(ctx)
	}
	if f.workload == "" || f.listed == "" {
		return fmt.Errorf("%w: -kubeconfig needs -workload and -listed, see -help", stage.ErrUsage)
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	results, err := exits.Run(ctx, options)
	show("", results)
	if err == nil && f.mayLose >= 0 && exits.Lost(results) > f.mayLose {
		err = fmt.Errorf("%d requests were lost, %d may be", exits.Lost(results), f.mayLose)
	}
	return err
}

// options are those of a measurement in the cluster of the kubeconfig.
func (f *flagsOf) options() (o exits.Options, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return o, err
	}
	kube, err := checkout.NewClient(config)
	if err != nil {
		return o, err
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return o, err
	}
	listed, err := exits.NewListed(f.listed, kube, api, f.namespace)
	if err != nil {
		return o, err
	}
	lag := f.lag
	if lag == 0 {
		lag = -1
	}
	return exits.Options{
		Kube: kube, Namespace: f.namespace, Workload: f.workload, Listed: listed.Source, Several: listed.Several,
		Rate: f.rate, Lag: lag, Slow: f.slow, Ways: f.chosen(), Limit: f.limit, Out: os.Stdout,
	}, nil
}

// chosen are the names of the ways; none stands for all.
func (f *flagsOf) chosen() []string {
	if f.ways == "" {
		return nil
	}
	return strings.Split(f.ways, ",")
}

// show prints a table of results below a title.
func show(title string, results []exits.Result) {
	if len(results) > 0 {
		fmt.Println("\n" + title)
		fmt.Println(strings.Join(exits.Table(results).Lines(stage.StyleOf(os.Stdout)), "\n"))
	}
}

func (f *flagsOf) rehearse(ctx context.Context) error {
	outcomes, err := exits.Rehearsal{Ways: f.chosen(), Rate: f.rate, Out: os.Stdout}.Run(ctx)
	lost := 0
	for _, o := range outcomes {
		show(o.Title(), o.Results)
		if o.Usher {
			lost += exits.Lost(o.Results)
		}
	}
	if err == nil && lost > 0 {
		err = fmt.Errorf("%d requests were lost although Usher and its guard were there", lost)
	}
	return err
}

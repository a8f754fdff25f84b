// SPDX-License-Identifier: Apache-2.0

// Package exits measures how many requests a workload loses on each way out: it restarts, scales, deletes, evicts and
// drains the Pods of a Deployment, StatefulSet or CloneSet of any cluster, with Usher or without, while callers send
// requests to those Pods that a registry lists.
//
// ways.go has the ways, workload.go the state that each one ends with, listed.go where callers find the Pods.
// rehearse.go plays them on a development cluster, with Usher and without.
package exits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// Options configures a measurement.
type Options struct {
	// Kube acts and looks; whoever it is needs the rights that kubectl would need for the same.
	Kube client.WithWatch
	// Namespace is that of the workload, and Workload its kind and name, as in "deployment/web".
	Namespace, Workload string
	// Listed is where callers find the Pods; Several means that it lists one address for each Pod.
	Listed  traffic.Source
	Several bool
	// Rate is the number of requests per second; default 100.
	Rate int
	// Lag is how far the slowest caller's list is behind; default 1 s, negative for none. It stands for the time in
	// which callers, their caches or a load balancer learn of a change: Usher's drain.propagation has to be longer.
	Lag time.Duration
	// Slow is how long the longest requests take; 0 for none. They ask for /slow?d=DURATION, as the image of the
	// development cluster understands it.
	Slow time.Duration
	// Ways are the names of the ways to play; default all.
	Ways []string
	// Limit is how long one way may take; default 5 min.
	Limit time.Duration
	// Out receives what happens, and the table in the end.
	Out *os.File
}

const (
	defaultRate  = 100
	defaultLag   = time.Second
	defaultLimit = 5 * time.Minute
	// minimum is how many requests are sent on a way that is over sooner.
	minimum = 100
)

// Result is what came of one way.
type Result struct {
	// Way is its name. Skipped is why it was not played; empty if it was.
	Way, Skipped string
	// Requests were sent, of which Lost were refused, cut, late, or answered with an error. Reasons counts them.
	Requests, Lost int
	Reasons        map[string]int
	// Took is from the request to the API server until the workload is whole again.
	Took time.Duration
}

// run is one measurement.
type run struct {
	Options
	*workload
	client *traffic.Client

	mu sync.Mutex
	// reasons counts the lost requests by way and reason.
	reasons map[string]map[string]int
	playing string
}

// Run plays the ways, one after the other, and returns their results. The workload is as before in the end, but for its
// Pods; an error of a way ends the measurement, and the results before it are returned.
func Run(ctx context.Context, o Options) ([]Result, error) {
	o.Rate, o.Limit = cmp.Or(o.Rate, defaultRate), cmp.Or(o.Limit, defaultLimit)
	o.Lag = max(cmp.Or(o.Lag, defaultLag), 0)
	chosen, err := chosenWays(o.Ways)
	if err != nil {
		return nil, err
	}
	found, err := findWorkload(ctx, o.Kube, o.Namespace, o.Workload)
	if err != nil {
		return nil, err
	}
	r := &run{Options: o, workload: found, reasons: map[string]map[string]int{}}
	r.client = traffic.New(traffic.Options{
		Source: o.Listed, Rate: o.Rate, CacheDelay: o.Lag, SlowMin: o.Slow / 2, SlowMax: o.Slow, OnLost: r.noteLost,
	})
	sending, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	var failed error
	callers.Go(func() {
		if err := r.client.Run(sending); !errors.Is(err, context.Canceled) {
			failed = err
		}
	})
	results, err := r.playAll(ctx, chosen)
	if r.replicas != r.initial { // it was interrupted in between, or ways were left out
		err = errors.Join(err, r.scale(context.WithoutCancel(ctx), r.initial))
	}
	stop()
	callers.Wait()
	return r.count(results), errors.Join(err, failed)
}

// noteLost counts a lost request for the way that is played.
func (r *run) noteLost(loss traffic.Loss) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reasons[r.playing] == nil {
		r.reasons[r.playing] = map[string]int{}
	}
	r.reasons[r.playing][loss.Reason]++
}

// begin begins a way: from now on, requests count for it.
func (r *run) begin(name string) {
	r.mu.Lock()
	r.playing = name
	r.mu.Unlock()
	r.client.Section(name)
}

func (r *run) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Out, format+"\n", args...) // a failed write cannot be reported
}

// playAll plays the ways, each from a whole workload to a whole workload.
func (r *run) playAll(ctx context.Context, ways []way) (results []Result, err error) {
	r.say("Waiting for %s to be whole, and for callers to find its Pods.", r.Workload)
	if err := r.awaitWhole(ctx); err != nil {
		return nil, err
	}
	for _, w := range ways {
		if why := w.needs(r); why != "" {
			results = append(results, Result{Way: w.Name, Skipped: why})
			r.say("  %-12s not played: %s", w.Name, why)
			continue
		}
		r.begin(w.Name)
		began := time.Now()
		if err = w.play(ctx, r); err == nil {
			err = r.awaitWhole(ctx)
		}
		took := time.Since(began)
		if err == nil {
			err = r.awaitRequests(ctx, w.Name)
		}
		if err != nil {
			return results, fmt.Errorf("%s: %w", w.Name, err)
		}
		results = append(results, Result{Way: w.Name, Took: took})
		r.say("  %-12s %s", w.Name, stage.Seconds(took))
	}
	return results, nil
}

// awaitRequests waits until enough requests of a way were sent to say something about it.
func (r *run) awaitRequests(ctx context.Context, way string) error {
	return stage.Poll(ctx, r.Limit, fmt.Sprintf("%d requests", minimum), func(context.Context) (bool, error) {
		return r.sent(way).Sent >= minimum, nil
	})
}

// sent are the requests of a way so far.
func (r *run) sent(way string) traffic.Section {
	for _, section := range r.client.Report().Sections {
		if section.Name == way {
			return section
		}
	}
	return traffic.Section{}
}

// count adds the requests to the results.
func (r *run) count(results []Result) []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range results {
		section := r.sent(results[i].Way)
		results[i].Requests, results[i].Lost, results[i].Reasons = section.Sent, section.Lost, r.reasons[results[i].Way]
	}
	return results
}

// Lost counts the lost requests of all ways.
func Lost(results []Result) (lost int) {
	for _, r := range results {
		lost += r.Lost
	}
	return lost
}

// Table shows results.
func Table(results []Result) stage.Table {
	table := stage.Table{Columns: []stage.Column{
		{Title: "WAY OUT"}, {Title: "REQUESTS", Right: true}, {Title: "LOST", Right: true}, {Title: "TOOK", Right: true}, {Title: "WHY"},
	}}
	for _, r := range results {
		if r.Skipped != "" {
			table.Rows = append(table.Rows, stage.Cells(r.Way, "-", "-", "-", "not played: "+r.Skipped))
			continue
		}
		row := stage.Cells(r.Way, stage.Thousands(r.Requests), stage.Thousands(r.Lost), stage.Seconds(r.Took), stage.Counts(r.Reasons))
		if row[2].Paint = stage.Green; r.Lost > 0 {
			row[2].Paint = stage.Red
		}
		table.Rows = append(table.Rows, row)
	}
	return table
}

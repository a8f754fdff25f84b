// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// departure is how the Pods of the second node leave: since when no registry lists one of them, and when their
// containers ended.
type departure struct {
	began     time.Time
	addresses []string          // of the Pods
	logs      []string          // of their containers, as patterns of files
	totals    []traffic.Section // of the requests in each registry, when it began
	killed    time.Time
	stop      context.CancelFunc

	mu sync.Mutex
	// listed is how many of the Pods a service has in a registry, by the names of both.
	listed map[string]listing
}

// listing is how many of the Pods are listed, and since when; -1 if that is not known yet. back is how often some
// were listed again, failed why nobody follows any more.
type listing struct {
	n      int
	since  time.Time
	back   int
	failed error
}

// observe begins to follow how the second node's Pods leave, to the end of the story.
func (s *Scene) observe() {
	s.stopObserving()
	ctx, stop := context.WithCancel(s.ctx)
	d := &departure{began: time.Now(), stop: stop, listed: map[string]listing{}}
	for _, scene := range s.all() {
		for _, pod := range scene.state().Pods {
			if pod.Spec.NodeName == realnode.SecondNode {
				d.addresses = append(d.addresses, pod.Status.PodIP)
				d.logs = append(d.logs, fmt.Sprintf("/var/log/pods-2/%s_%s_%s/main/*", pod.Namespace, pod.Name, pod.UID))
			}
		}
	}
	for _, scene := range s.all() {
		for _, kind := range scene.story.Registries {
			name := scene.story.Name + " in " + string(kind)
			d.listed[name] = unknown
			go d.follow(ctx, name, scene.session.listed(scene.story, kind))
		}
	}
	for i := range s.story.Registries {
		d.totals = append(d.totals, s.total(i))
	}
	s.departure = d
	s.await("what each registry lists", func(State) string { return d.unread() })
}

// stopObserving ends an earlier observation.
func (s *Scene) stopObserving() {
	if s.departure != nil {
		s.departure.stop()
	}
}

// follow follows what a service has in a registry.
func (d *departure) follow(ctx context.Context, name string, source traffic.Source) {
	err := source.Follow(ctx, func(addresses []string) {
		hosts := list.Map(addresses, func(address string) string {
			host, _, _ := net.SplitHostPort(address)
			return host
		})
		n := len(list.Only(d.addresses, func(address string) bool { return slices.Contains(hosts, address) }))
		d.mu.Lock()
		defer d.mu.Unlock()
		d.listed[name] = d.listed[name].now(n, time.Now())
	})
	if ctx.Err() != nil {
		return // It ends with the observation.
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.listed[name]
	last.failed = cmp.Or(err, errors.New("it has ended"))
	d.listed[name] = last
}

// unknown is the listing of a registry that has not been read.
var unknown = listing{n: -1}

// now is the listing when so many are listed at a time.
func (l listing) now(n int, at time.Time) listing {
	switch {
	case n == l.n:
		return l
	case l.n >= 0 && n > l.n:
		l.back++
	}
	return listing{n: n, since: at, back: l.back}
}

// all returns what is listed.
func (d *departure) all() map[string]listing {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.listed)
}

// unread says which registry has not been read yet.
func (d *departure) unread() string {
	for name, l := range d.all() {
		if l.n < 0 {
			return name + " is not"
		}
	}
	return ""
}

// present says where Pods are listed.
func (d *departure) present() string {
	for name, l := range d.all() {
		if l.failed != nil {
			return fmt.Sprintf("%s cannot be followed: %v", name, l.failed)
		}
		if l.n != 0 {
			return fmt.Sprintf("%d are in %s", l.n, name)
		}
	}
	return ""
}

// text says when the registries had none of the Pods any more, and when the first container ended.
func (d *departure) text() string {
	parts, last := []string{}, map[string]time.Time{}
	for name, l := range d.all() {
		_, kind, _ := strings.Cut(name, " in ")
		if l.n > 0 {
			parts = append(parts, fmt.Sprintf("%d still are in %s", l.n, kind))
		}
		if l.back > 0 {
			parts = append(parts, fmt.Sprintf("back in %s %d times", kind, l.back))
		}
		if l.n == 0 && l.since.After(last[kind]) {
			last[kind] = l.since
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(last)) {
		parts = append(parts, fmt.Sprintf("out of %s after %s", kind, stage.Seconds(last[kind].Sub(d.began))))
	}
	if end, err := d.firstEnd(); err == nil {
		parts = append(parts, "the first one ended after "+stage.Seconds(end.Sub(d.began)))
	}
	return fmt.Sprintf("%d Pods: %s", len(d.addresses), strings.Join(parts, ", "))
}

// late says which registry had one of the Pods when the first of their containers ended.
func (d *departure) late() string {
	end, err := d.firstEnd()
	if err != nil {
		return err.Error()
	}
	for name, l := range d.all() {
		if l.failed != nil {
			return fmt.Sprintf("%s cannot be followed: %v", name, l.failed)
		}
		if l.n != 0 || !l.since.Before(end) {
			return fmt.Sprintf("%s had some at %s: %d since %s", name, end.Format(time.StampMilli), l.n, l.since.Format(time.StampMilli))
		}
	}
	return ""
}

// firstEnd returns when the first of the containers got SIGTERM, as their logs say, or was killed with its node.
func (d *departure) firstEnd() (first time.Time, err error) {
	first = d.killed
	for _, pattern := range d.logs {
		files, _ := filepath.Glob(pattern) // The pattern is well-formed.
		for _, file := range files {
			at, err := terminated(file)
			if err != nil {
				return first, err
			}
			if !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	if first.IsZero() {
		return first, errors.New("no container has ended")
	}
	return first, nil
}

// terminated returns when the web service of a log got SIGTERM; zero if it did not. The container
// runtime stamps each line.
func terminated(file string) (at time.Time, err error) {
	log, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return at, nil
	}
	if err != nil {
		return at, err
	}
	defer func() { _ = log.Close() }() // It is only read.
	return terminatedIn(log)
}

func terminatedIn(log io.Reader) (at time.Time, err error) {
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if stamp, line, _ := strings.Cut(lines.Text(), " "); strings.HasSuffix(line, " terminated") {
			return time.Parse(time.RFC3339Nano, stamp)
		}
	}
	return at, nil
}

// listed returns the source of what a registry lists for a story.
func (s *session) listed(story Story, kind Registry) traffic.Source {
	if kind == HAProxy {
		return haproxyServers(story.Name)
	}
	return s.source(story, kind)
}

// haproxyServers are the servers of a backend of HAProxy that get new requests.
type haproxyServers string

// haproxyPause is how often HAProxy is asked: it announces no changes.
const haproxyPause = 20 * time.Millisecond

// Follow implements traffic.Source.
func (h haproxyServers) Follow(ctx context.Context, report func(addresses []string)) error {
	return wait.PollUntilContextCancel(ctx, haproxyPause, true, func(ctx context.Context) (bool, error) {
		addresses, err := h.read(ctx)
		if err == nil {
			report(addresses)
		}
		return false, err
	})
}

func (h haproxyServers) read(ctx context.Context) (addresses []string, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(realnode.NodeAddress, strconv.Itoa(ports[HAProxy])))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // It was only read.
	if _, err := fmt.Fprintf(conn, "show servers state %s\n", string(h)); err != nil {
		return nil, err
	}
	addresses, ok := serversIn(conn)
	if !ok {
		return nil, fmt.Errorf("HAProxy says nothing about the servers of %s", string(h))
	}
	return addresses, nil
}

// serversIn reads an answer to "show servers state": the servers that get new requests; false if it has no table.
func serversIn(answer io.Reader) (addresses []string, ok bool) {
	var columns []string
	for lines := bufio.NewScanner(answer); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && fields[0] == "#" {
			columns = fields[1:]
			continue
		}
		value := func(column string) string {
			if i := slices.Index(columns, column); i >= 0 && i < len(fields) {
				return fields[i]
			}
			return ""
		}
		// Any bit of the administrative state takes a server out; the operational state 2 is one that runs.
		if value("srv_admin_state") == "0" && value("srv_op_state") == "2" {
			addresses = append(addresses, net.JoinHostPort(value("srv_addr"), value("srv_port")))
		}
	}
	return addresses, columns != nil
}

// observed returns what the story observes. The scenes of its other workloads observe nothing themselves.
func (s *Scene) observed() *departure {
	if s.main != nil {
		return s.main.observed()
	}
	if s.departure == nil {
		s.fatalf("nothing is observed")
	}
	return s.departure
}

// reportDeparture notes what was observed, and how many requests were lost meanwhile.
func (s *Scene) reportDeparture(text string) {
	d, lost := s.observed(), []string{}
	for i, kind := range s.story.Registries {
		now := s.total(i)
		lost = append(lost, fmt.Sprintf("%d of %d in %s", now.Lost-d.totals[i].Lost, now.Sent-d.totals[i].Sent, kind))
	}
	s.notes = append(s.notes, fmt.Sprintf("%s: %s; lost %s", text, d.text(), strings.Join(lost, ", ")))
}

// total counts what the callers of one registry have sent to all workloads of the story.
func (s *Scene) total(registry int) (sum traffic.Section) {
	for _, scene := range s.all() {
		one := scene.callers.clients[registry].Report().Total()
		sum.Sent, sum.Lost = sum.Sent+one.Sent, sum.Lost+one.Lost
	}
	return sum
}

// killNode ends the second node some time after the observation began.
func (s *Scene) killNode(after time.Duration) {
	s.check(stage.Pause(s.ctx, time.Until(s.observed().began.Add(after))))
	s.departure.killed = time.Now()
	s.check(s.session.node.KillSecond())
}

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"reflect"
	"testing"
	"time"
)

func TestChanges(t *testing.T) {
	normal := Pod{
		Name: "web-a", State: "Normal", Ready: true, Version: "v1", Address: "127.9.0.3:8080",
		Registered: true, RegisteredSince: after(0),
	}
	with := func(change func(*Pod)) *Pod {
		pod := normal
		change(&pod)
		return &pod
	}
	for _, c := range []struct {
		name          string
		before, after *Pod
		want          []string
	}{
		{"nothing", &normal, with(func(*Pod) {}), []string{}},
		{"neither", nil, nil, nil},
		{"new", nil, &Pod{Name: "web-a", State: "PreparingNormal"}, []string{"is created in PreparingNormal"}},
		{"new without a state", nil, &Pod{Name: "web-a"}, []string{"is created"}},
		{"gets a state", &Pod{Name: "web-a"}, &Pod{Name: "web-a", State: "PreparingNormal"}, []string{"→ PreparingNormal"}},
		{
			"up", &Pod{Name: "web-a", State: "PreparingNormal"}, with(func(p *Pod) { p.Registered = false; p.State = "PreparingNormal" }),
			[]string{"has the address 127.9.0.3:8080", "is ready", "runs v1"},
		},
		{
			"drained", with(func(p *Pod) { p.State, p.Registered, p.RegisteredSince = "PreparingUpdate", false, after(98) }),
			with(func(p *Pod) { p.State, p.Registered, p.RegisteredSince = "Updating", false, after(98) }),
			[]string{"PreparingUpdate → Updating  (left etcd 2.0s ago)"},
		},
		{
			"back", with(func(p *Pod) { p.State, p.RegisteredSince = "Updated", after(99.9) }),
			with(func(p *Pod) { p.RegisteredSince = after(99.9) }),
			[]string{"Updated → Normal  (in etcd for 0.1s)"},
		},
		{
			"chosen long after it was registered", &normal, with(func(p *Pod) { p.State = "PreparingUpdate" }),
			[]string{"Normal → PreparingUpdate"},
		},
		{
			"restarted", &normal, with(func(p *Pod) { p.Version, p.Restarts = "v2", 1 }),
			[]string{"runs v2", "has restarted its container (restarts: 1)"},
		},
		{"left", &normal, with(func(p *Pod) { p.Registered, p.RegisteredSince = false, after(100) }), []string{"left etcd"}},
		{"joined", with(func(p *Pod) { p.Registered = false }), &normal, []string{"joined etcd"}},
		{"not ready", &normal, with(func(p *Pod) { p.Ready = false }), []string{"is not ready"}},
		{"deleted while callers know it", &normal, with(func(p *Pod) { p.Leaving = true }), []string{"is deleted  (still in etcd)"}},
		{
			"deleted drained", with(func(p *Pod) { p.Registered, p.RegisteredSince = false, after(95) }),
			with(func(p *Pod) { p.Registered, p.RegisteredSince, p.Leaving = false, after(95), true }),
			[]string{"is deleted  (left etcd 5.0s ago)"},
		},
		{"waits", &normal, with(func(p *Pod) { p.Waits = "the registry" }), []string{"waits for the registry"}},
		{"waits no more", with(func(p *Pod) { p.Waits = "the registry" }), &normal, []string{}},
		{"gone", with(func(p *Pod) { p.Registered, p.RegisteredSince = false, after(94) }), nil, []string{"is gone  (left etcd 6.0s ago)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Changes(c.before, c.after, after(100)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLine(t *testing.T) {
	for _, c := range []struct {
		elapsed  time.Duration
		subject  string
		sentence string
		want     string
	}{
		{12_300 * time.Millisecond, "demo/web-x7k2p", "joined etcd", "  12.3s  demo/web-x7k2p              joined etcd"},
		{0, "", "begin", "   0.0s  begin"},
	} {
		if got := Line(c.elapsed, c.subject, c.sentence); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

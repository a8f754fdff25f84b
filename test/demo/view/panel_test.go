// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func after(seconds float64) time.Time {
	return started.Add(time.Duration(seconds * float64(time.Second)))
}

// rolling is a rollout in the middle of its second Pod, next to a set that is starting.
func rolling() State {
	return State{
		Now: after(83.4), Started: started,
		Title: "hooks on", Phase: "2/6 in-place update: web:v1 → web:v2",
		Sets: []Set{
			{
				Name: "web", Desired: 2, Updated: 1, Available: 1,
				Pods: []Pod{
					{
						Name: "web-9d2fa", State: "PreparingUpdate", Ready: true, Version: "v1", Address: "127.9.0.4:8080",
						RegisteredSince: after(81), Waits: "callers' caches to forget it", WaitsSince: after(81.3),
					},
					{
						Name: "web-x7k2p", State: "Normal", Ready: true, Version: "v2", Address: "127.9.0.3:8080",
						Registered: true, RegisteredSince: after(70), PerSecond: 498, Restarts: 1,
					},
				},
				Traffic: Traffic{Running: true, PerSecond: 500, Sent: 12345, InFlight: 23},
			},
			{
				Name: "prenormal", Desired: 3,
				Pods: []Pod{
					{Name: "prenormal-aaaaa"},
					{Name: "prenormal-bbbbb", State: "Normal", Leaving: true, Version: "v1", Address: "127.9.0.5:8080"},
				},
			},
		},
	}
}

// golden compares with a file written by hand.
func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	for i := range max(len(lines), len(want)) {
		got, expected := lineAt(lines, i), lineAt(want, i)
		if got != expected {
			t.Errorf("%s line %d:\n got %q\nwant %q", name, i+1, got, expected)
		}
	}
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(no such line)"
}

func TestPanel(t *testing.T) {
	lossy := rolling()
	lossy.Sets[0].Traffic.Lost = 1234
	lossy.Note = "the registry is stopped: nothing may be updated or deleted now"
	for _, c := range []struct {
		file  string
		state State
		style Style
	}{
		{"wide.txt", rolling(), Style{Width: 120, Height: 30}},
		{"narrow.txt", rolling(), Style{Width: 76, Height: 30}},
		{"low.txt", rolling(), Style{Width: 120, Height: 9}},
		{"lossy.txt", lossy, Style{Width: 120, Height: 30}},
		{"unbounded.txt", rolling(), Style{}},
	} {
		t.Run(c.file, func(t *testing.T) { golden(t, c.file, Render(c.state, c.style)) })
	}
}

func TestPanelFitsEveryTerminal(t *testing.T) {
	for columns := 1; columns <= 140; columns++ {
		for _, rows := range []int{1, 5, 8, 9, 12, 40} {
			lines := Render(rolling(), Style{Width: columns, Height: rows, Color: true})
			if least := 9; len(lines) > max(rows, least) {
				t.Fatalf("%dx%d: %d lines", columns, rows, len(lines))
			}
			for _, line := range lines {
				if columns >= 50 && visible(line) > columns {
					t.Fatalf("%dx%d: %d cells in %q", columns, rows, visible(line), line)
				}
			}
		}
	}
}

func TestColoursOnlyWhereTheyAreUnderstood(t *testing.T) {
	lossy := rolling()
	lossy.Sets[0].Traffic.Lost = 3
	if text := strings.Join(Render(lossy, Style{Width: 120}), "\n"); strings.Contains(text, "\x1b") {
		t.Errorf("escape sequences without colours: %q", text)
	}
	text := strings.Join(Render(lossy, Style{Width: 120, Color: true}), "\n")
	for _, want := range []string{"\x1b[1;31m3 lost\x1b[0m", "\x1b[32mNormal\x1b[0m", "\x1b[33mPreparingUpdate\x1b[0m"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(text, "\x1b[32m3 lost") {
		t.Error("lost requests are green")
	}
}

func TestEmptyStateHasAPanel(t *testing.T) {
	lines := Render(State{Now: started, Started: started, Title: "hooks off"}, Style{Width: 60, Height: 20})
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "hooks off") || !strings.HasSuffix(lines[0], "0:00") {
		t.Errorf("got %q", lines)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := Thousands(n); got != want {
			t.Errorf("Thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text  string
		cells int
		want  string
	}{
		{"four", 4, "four"}, {"fourth", 4, "fou…"}, {"a→b", 3, "a→b"}, {"a→bc", 3, "a→…"}, {"x", 0, ""}, {"xy", 1, "…"}, {"", 3, ""},
	} {
		if got := Cut(c.text, c.cells); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.text, c.cells, got, c.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

func decodeStrictly(t *testing.T, object map[string]any, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader([]byte(text(t, object))))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Errorf("%v: %v", object["kind"], err)
	}
}

func TestOutcome(t *testing.T) {
	report := func(lost int) traffic.Report {
		return traffic.Report{Sections: []traffic.Section{{Sent: 1200, Lost: lost, Fast: traffic.Latencies{time.Millisecond, 3 * time.Millisecond}}}}
	}
	cases := map[string]struct {
		story   Story
		lost    int
		failure error
		want    string
	}{
		"none lost":            {story: Story{}},
		"lost":                 {story: Story{}, lost: 2, want: "2 requests were lost"},
		"lost and measured":    {story: Story{Loss: LossMeasured}, lost: 2},
		"failed and lost more": {story: Story{}, lost: 2, failure: errors.New("broken"), want: "broken"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := outcomeOf(c.story, report(c.lost), time.Second, c.failure)
			if (c.want == "") != (o.Failure == "") || !strings.Contains(o.Failure, c.want) {
				t.Errorf("the failure is %q, want %q", o.Failure, c.want)
			}
			if o.Requests != 1200 || o.P99 != 3*time.Millisecond {
				t.Errorf("%d requests, p99 %s", o.Requests, o.P99)
			}
		})
	}
}

func outcomes() []Outcome {
	return []Outcome{
		{Name: "good", About: "goes well", Registry: Etcd, Requests: 1234567, P99: 1500 * time.Microsecond, Took: 12 * time.Second},
		{Name: "bad", About: "goes wrong", Registry: Consul, Requests: 10, Lost: 3, Failure: "3 requests were lost",
			Reasons: []traffic.ReasonCount{{Reason: "connection refused", Count: 3}}},
	}
}

func TestTable(t *testing.T) {
	shown := strings.Join(table(outcomes(), stage.Style{}), "\n")
	for _, want := range []string{"✓ good", "1,234,567", "1.5 ms", "12.0 s", "✗ bad", "lost: 3 × connection refused"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the table has no %q:\n%s", want, shown)
		}
	}
	if n := failed(outcomes()); n != 1 {
		t.Errorf("%d have failed, want 1", n)
	}
}

// may is a day.
var may = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// busy is a run during which others used a quarter of the processors.
var busy = load{took: 100 * time.Second, ours: 100 * time.Second, machine: 150 * time.Second, processors: 2}

func TestFootprint(t *testing.T) {
	f := Footprint{
		Image: 20 << 20, Program: 60 << 20,
		Installations: []Installation{{Way: "helm install", Ready: 5 * time.Second, StartReady: 2 * time.Second, StartLeading: 1500 * time.Millisecond}},
		Loaded:        Usage{During: 100 * time.Second, CPU: 5 * time.Second, Memory: 40 << 20, Peak: 50 << 20, Processes: 4},
	}
	text := f.markdown(may)
	for _, want := range []string{
		"Measured on 2026-05-01.", "| image | 20.0 MiB |", "| program in it | 60.0 MiB |", "| `helm install` to ready | 5.0 s |",
		"| process to leading, after `helm install` | 1.5 s |", "| process to ready, after `helm install` | 2.0 s |",
		"| loaded: CPU of all replicas | 5.0 % of a processor |", "4 processes", "| 40.0 MiB |", "| 50.0 MiB |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the footprint has no %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "idle") {
		t.Errorf("what was not measured is told:\n%s", text)
	}
	if shown := strings.Join(footprintTable(f, stage.Style{}), "\n"); !strings.Contains(shown, "20.0 MiB") {
		t.Errorf("the run shows\n%s", shown)
	}
}

// Both documents have the marks that a run writes between.
func TestMarks(t *testing.T) {
	for file, marks := range map[string][2]string{reportFile: {reportBegin, reportEnd}, footprintFile: {footprintBegin, footprintEnd}} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := splice(string(text), marks[0], marks[1], ""); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestReport(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, reportFile)
	old := []byte("before\n" + reportBegin + "\nold\n" + reportEnd + "\nafter\n")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, old, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(root, reportFile, reportBegin, reportEnd, markdown(outcomes()[:1], may, busy)); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = "before\n" + reportBegin + "\nPlayed on 2026-05-01. It took 1m40s; of the 2 processors other programs took 25 % meanwhile.\n\n" +
		"| Story | What happens | Registry | Requests | Lost | p99 | Time |\n|---|---|---|---:|---:|---:|---:|\n" +
		"| good | goes well | etcd | 1,234,567 | 0 | 1.5 ms | 12.0 s |\n" + reportEnd + "\nafter\n"
	if string(written) != want {
		t.Errorf("the report is\n%s\nwant\n%s", written, want)
	}
	if _, err := splice("no marks", reportBegin, reportEnd, ""); err == nil {
		t.Error("a report without marks is written")
	}
}

func TestOptions(t *testing.T) {
	stories := []Story{{Name: "one"}, {Name: "two"}}
	for name, o := range map[string]Options{
		"no such story":         {Stories: stories, Run: regexp.MustCompile("three")},
		"a report of some":      {Stories: stories, Run: regexp.MustCompile("one"), Report: true},
		"a report of a shell":   {Stories: stories, Shell: true, Report: true},
		"less than one at once": {Stories: stories, Parallel: -1},
		"less than no requests": {Stories: stories, Rate: -1},
	} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	o, err := Options{Stories: stories, Run: regexp.MustCompile("^t")}.withDefaults()
	if chosen := o.chosen(); err != nil || len(chosen) != 1 || chosen[0].Name != "two" || chosen[0].Registry != Etcd {
		t.Errorf("chosen are %+v, %v", chosen, err)
	}
}

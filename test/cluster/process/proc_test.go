// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// statLine is a /proc/PID/stat with 52 fields.
func statLine(pid int, command, state string, start uint64) string {
	line := strconv.Itoa(pid) + " (" + command + ") " + state
	for field := 4; field <= 52; field++ {
		value := strconv.Itoa(field)
		if field == 22 {
			value = strconv.FormatUint(start, 10)
		}
		line += " " + value
	}
	return line + "\n"
}

func fakeProc(t *testing.T, boot string, stats map[int]string) Table {
	t.Helper()
	root := t.TempDir()
	write := func(text string, parts ...string) {
		path := filepath.Join(append([]string{root}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(boot+"\n", "sys", "kernel", "random", "boot_id")
	for pid, stat := range stats {
		write(stat, strconv.Itoa(pid), "stat")
		write("900 300 200 1 0 400 0\n", strconv.Itoa(pid), "statm")
	}
	return Table{Root: root}
}

func TestParseStat(t *testing.T) {
	cases := map[string]struct {
		raw   string
		want  stat
		fails bool
	}{
		"plain":               {raw: statLine(7, "etcd", "S", 4711), want: stat{"S", 4711}},
		"spaces and brackets": {raw: statLine(7, "a) R (b 1 2", "R", 12), want: stat{"R", 12}},
		"zombie":              {raw: statLine(7, "etcd", "Z", 1), want: stat{"Z", 1}},
		"no command":          {raw: "7 S 1 2 3", fails: true},
		"too short":           {raw: "7 (etcd) S 1 2 3", fails: true},
		"no number":           {raw: "7 (etcd) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 x 23", fails: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat([]byte(c.raw))
			if (err != nil) != c.fails || got != c.want {
				t.Errorf("got %+v, %v; want %+v, failure %t", got, err, c.want, c.fails)
			}
		})
	}
}

func TestAlive(t *testing.T) {
	table := fakeProc(t, "boot-1", map[int]string{
		7: statLine(7, "etcd", "S", 100),
		8: statLine(8, "etcd", "Z", 100),
	})
	cases := map[string]struct {
		id   Identity
		want bool
	}{
		"the same":             {Identity{7, 100, "boot-1"}, true},
		"the number is reused": {Identity{7, 99, "boot-1"}, false},
		"another boot":         {Identity{7, 100, "boot-0"}, false},
		"gone":                 {Identity{9, 100, "boot-1"}, false},
		"a zombie":             {Identity{8, 100, "boot-1"}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := table.Alive(c.id); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
	if _, err := table.Identify(9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is not there: %v, want fs.ErrNotExist", err)
	}
}

func TestRSS(t *testing.T) {
	table := fakeProc(t, "boot-1", map[int]string{7: statLine(7, "etcd", "S", 100)})
	got, err := table.RSS(7)
	if err != nil || got != 300*int64(os.Getpagesize()) {
		t.Errorf("got %d, %v; want 300 pages", got, err)
	}
	if _, err := table.RSS(9); err == nil {
		t.Error("a process that is not there has a memory")
	}
	if real, err := (Table{}).RSS(os.Getpid()); err != nil || real < 1<<20 {
		t.Errorf("this test uses %d bytes, %v; want more than a MiB", real, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// terminal is a Screen's environment under the test's control.
type terminal struct {
	*Screen
	out     strings.Builder
	now     time.Time
	columns int
	live    bool
}

func newTerminal(live bool) *terminal {
	t := &terminal{now: started, columns: 80, live: live}
	t.Screen = &Screen{
		out:  &t.out,
		now:  func() time.Time { return t.now },
		size: func() (int, int, bool) { return t.columns, 24, t.live },
	}
	return t
}

func (t *terminal) wrote() string {
	text := t.out.String()
	t.out.Reset()
	return text
}

func TestWithoutATerminalOnlyTheLogIsWritten(t *testing.T) {
	term := newTerminal(false)
	term.Show(rolling())
	term.Log("one", "two")
	term.Show(rolling())
	term.Hide()
	if got := term.wrote(); got != "one\ntwo\n" {
		t.Errorf("wrote %q", got)
	}
}

func TestThePanelIsRedrawnAtMostFiveTimesASecond(t *testing.T) {
	term := newTerminal(true)
	draws := 0
	for range 100 { // ten seconds of a state every 100 ms
		term.Show(rolling())
		if term.wrote() != "" {
			draws++
		}
		term.now = term.now.Add(100 * time.Millisecond)
	}
	if draws < 45 || draws > 50 {
		t.Errorf("%d drawings in 10 s, want nearly 50", draws)
	}
}

func TestTheLogScrollsAboveThePanel(t *testing.T) {
	term := newTerminal(true)
	term.Show(rolling())
	first := term.wrote()
	if strings.Contains(first, "\x1b[J") {
		t.Errorf("the first drawing clears something: %q", first)
	}
	rows := strings.Count(first, "\n")
	term.now = term.now.Add(time.Second)
	term.Log("web-a joined etcd")
	second := term.wrote()
	if want := "\r\x1b[" + itoa(rows) + "A\x1b[Jweb-a joined etcd\n"; !strings.HasPrefix(second, want) {
		t.Errorf("second drawing begins %q, want %q", second[:min(len(second), 60)], want)
	}
	term.Log("too soon")
	if got := term.wrote(); got != "" {
		t.Errorf("drew again at once: %q", got)
	}
	term.Hide()
	last := term.wrote()
	if !strings.HasSuffix(last, "\x1b[Jtoo soon\n") {
		t.Errorf("Hide wrote %q, want the panel cleared and the log complete", last)
	}
}

func itoa(n int) string {
	if n >= 10 {
		return itoa(n/10) + itoa(n%10)
	}
	return string(rune('0' + n))
}

// Lines that wrapped when the terminal got narrower take more rows.
func TestANarrowerTerminalIsClearedWhole(t *testing.T) {
	if got := height([]string{"1234567890", "", "\x1b[32m12345\x1b[0m"}, 5); got != 4 {
		t.Errorf("height %d, want 2+1+1", got)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestABrokenOutputIsRemembered(t *testing.T) {
	term := newTerminal(false)
	term.Screen.out = broken{}
	term.Log("one")
	term.Log("two")
	if term.Err() == nil || !strings.Contains(term.Err().Error(), "broken pipe") {
		t.Errorf("Err() = %v", term.Err())
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	screen := NewScreen(file, func(string) string { return "" }, time.Now)
	if screen.Live() || screen.Style() != (Style{}) {
		t.Errorf("a file has a panel: %+v", screen.Style())
	}
}

// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"
	"time"
)

func at(seconds float64) time.Time {
	return time.Unix(0, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func TestDisplay(t *testing.T) {
	out := &strings.Builder{}
	tell, end := Show(out)
	tell(Event{Detail: "Building."})
	tell(Event{Task: "etcd", State: Waiting, At: at(0)})
	tell(Event{Task: "api", State: Waiting, At: at(0)})
	tell(Event{Task: "etcd", State: Compiling, At: at(1)})
	tell(Event{Task: "etcd", State: Done, Detail: "ready on port 1", At: at(4.52)})
	tell(Event{Task: "api", State: Starting, At: at(21)})
	tell(Event{Task: "api", State: Failed, At: at(22)})
	end()
	tell(Event{Detail: "too late"})
	Sink(nil).Tell(Event{Task: "nobody listens"})
	want := "Building.\netcd: ready on port 1, 3.5s\napi: failed, 1s\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

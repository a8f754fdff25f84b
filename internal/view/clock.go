// SPDX-License-Identifier: Apache-2.0

package view

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Clock writes all times for people: as ages, like kubectl, or, if Absolute, as the API writes times.
type Clock struct {
	Now      time.Time
	Absolute bool
}

// Age returns how long ago something was; "-" if that is unknown.
func (c Clock) Age(at time.Time) string {
	switch {
	case at.IsZero():
		return "-"
	case c.Absolute:
		return absolute(at)
	}
	return Lasted(at, c.Now)
}

// Since returns a text such as "since 5m".
func (c Clock) Since(at time.Time) string { return "since " + c.Age(at) }

// Ago returns a text such as "5m ago".
func (c Clock) Ago(at time.Time) string {
	if c.Absolute {
		return "at " + absolute(at)
	}
	return Lasted(at, c.Now) + " ago"
}

// In returns a text such as "in 5m"; for a time that has passed, "5m ago".
func (c Clock) In(at time.Time) string {
	if c.Absolute || at.Before(c.Now) {
		return c.Ago(at)
	}
	return "in " + Lasted(c.Now, at)
}

// ToGo returns a text such as "5m to go".
func (c Clock) ToGo(at time.Time) string {
	if c.Absolute {
		return "until " + absolute(at)
	}
	return Lasted(c.Now, at) + " to go"
}

// Lasted returns the time between two times.
func Lasted(from, to time.Time) string { return duration.HumanDuration(to.Sub(from)) }

func absolute(at time.Time) string { return at.UTC().Format(time.RFC3339) }

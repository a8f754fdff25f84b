// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/list"
)

// This file is about how many writes are under way at a time, and an API server that accepts fewer for
// a while.

// The rules for the width.
const (
	ruleBounds   = "the width stays within its bounds"
	ruleUnderWay = "no more writes are under way than the width"
	ruleNarrower = "the width is smaller within two passes of the API server's trouble"
	ruleWider    = "the width grows back after the API server's trouble"
)

// least is the smallest width, and tight a width with which the queue of a slow server is short. After
// fewWrites writes of a rollout, the width has not grown back yet.
const least, tight, fewWrites = 4, 20, 200

// trouble is what is wrong with the API server; "" means nothing.
type trouble string

const (
	refusing trouble = "refuses writes"
	slow     trouble = "is slow"
	away     trouble = "is away"
)

// strain is how a process reacts to the API server's trouble.
type strain struct {
	control cloneset.Width
	// underWay counts the writes under way; widest bounds them, the width before the first of them.
	underWay, widest int
	// returning are the errands that put Pods back into service outside passes, and mostBack bounds
	// them: the largest width since there was none.
	returning map[*errand]bool
	mostBack  int
	// before is the largest width that results from writes before the trouble, and after the largest
	// width at the end of a pass since the trouble ended. ended counts the writes that were sent during
	// the trouble and have ended since the last pass, and passes counts the passes with at least before
	// of these.
	before, after, ended, passes int
}

// checked is a width that checks its bounds.
type checked struct {
	cloneset.Width
	process *Process
}

// Now returns the width.
func (w *checked) Now() int {
	now, most := w.Width.Now(), max(w.process.config.Parallel, 1)
	if now > most || now < min(most, least) {
		w.process.World.fail(ruleBounds, "it is %d, of at most %d", now, most)
	}
	return now
}

// each makes parallel calls of the controller, as errands.
func (p *Process) each(limit func() int, times int, do func(int)) {
	if p.config.Parallel <= 1 {
		for i := range times {
			do(i)
		}
		return
	}
	most := limit
	if p.config.Eager {
		most = func() int { return 2 * limit() }
	}
	doing := 0
	for i := range times {
		for doing >= most() {
			p.World.step()
		}
		doing++
		p.World.errand(func() { do(i); doing-- })
	}
	for doing > 0 {
		p.World.step()
	}
}

// background makes an async call of the controller, as an errand that may outlast its pass. Its writes
// are judged by the knowledge of the process in the latest pass that has decided.
func (p *Process) background(do func()) (wait func()) {
	done, of := false, p.latest
	p.World.after(0, func() {
		p.World.errandIn(func(goOn func()) {
			now := p.pass
			p.pass = of
			goOn()
			p.pass = now
		}, func() {
			errand := p.World.doing
			if len(p.returning) == 0 {
				p.mostBack = 0
			}
			p.returning[errand] = true
			do()
			delete(p.returning, errand)
			done = true
		})
	})
	return func() {
		for !done {
			p.World.step()
		}
	}
}

// begins counts a write that is sent; end ends it. Writes of returns are counted apart.
func (p *Process) begins() (end func()) {
	s, sent := &p.strain, p.trouble
	ended := func() {
		if sent == p.trouble {
			s.ended++
		} else if p.trouble != "" {
			s.before = max(s.before, s.control.Now())
		}
	}
	if s.returning[p.World.doing] {
		s.mostBack = max(s.mostBack, s.control.Now())
		if len(s.returning) > s.mostBack {
			p.World.fail(ruleUnderWay, "there are %d outside passes, and the width is %d", len(s.returning), s.mostBack)
		}
		return ended
	}
	if s.underWay == 0 {
		s.widest = 0
	}
	s.widest = max(s.widest, s.control.Now())
	if s.underWay++; s.underWay > s.widest {
		p.World.fail(ruleUnderWay, "there are %d, and the width is %d", s.underWay, s.widest)
	}
	return func() { s.underWay--; ended() }
}

// arrives takes a write to the server, where it waits in the queue. If the server is away, the write
// fails at once; if it refuses, client-go repeats the write ten times.
func (p *Process) arrives() error {
	for tries := 0; ; tries++ {
		if p.trouble == away {
			return errors.New("connection refused")
		}
		if p.travel(); p.dead {
			return errDead
		}
		if p.trouble != refusing {
			break
		}
		if tries == p.config.Tries {
			return apierrors.NewTooManyRequests("try again", 1)
		}
		p.World.pass(time.Second)
	}
	if p.config.Service > 0 {
		p.queues()
	}
	if p.dead {
		return errDead
	}
	return nil
}

// queues waits until the server has carried out all earlier writes, and this one.
func (p *Process) queues() {
	service := p.config.Service
	if p.trouble == slow {
		service *= 40
	}
	p.idleFrom = list.Latest(p.idleFrom, p.World.now()).Add(service)
	p.World.pass(p.idleFrom.Sub(p.World.now()))
}

// troubled begins the API server's trouble, or ends it.
func (s *Simulation) troubled(by trouble) {
	s.World.say("story", "the API server's trouble: %q", by)
	s.trouble = by
	for _, p := range s.processes {
		if p.after, p.ended, p.passes = 0, 0, 0; by != "" {
			p.before = p.control.Now()
		}
	}
}

// adapts checks after a pass that the width has shrunk if the server is in trouble.
func (p *Process) adapts() {
	if p.trouble == "" {
		p.after = max(p.after, p.control.Now())
	}
	enough := map[trouble]int{refusing: least, slow: tight}[p.trouble]
	if enough == 0 || p.before <= enough || p.ended < p.before {
		return
	}
	p.ended = 0
	if p.passes++; p.passes == 2 && p.control.Now() >= p.before {
		p.World.fail(ruleNarrower, "the server %s, and the width is %d, after %d", p.trouble, p.control.Now(), p.before)
	}
}

// Wide builds a run in which a set has so many Pods that they wait for the API server. Its images
// change every minute; with the second change, the server's trouble begins.
func Wide(seed uint64, change func(*Config)) *Simulation {
	w, config := newWorld(seed^0x31de), Calm()
	p := &config.Process
	config.Seed, p.Parallel, p.Service = seed, 64, 500*time.Microsecond
	p.Speed, p.Tries = pick(w, 4*time.Millisecond, 20*time.Millisecond), pick(w, 0, 10)
	if change != nil {
		change(&config)
	}
	s := New(config, NewSet("replicas 48; inPlace; unavailable 80%"))
	for minute := range 5 {
		s.World.after(time.Duration(minute+1)*time.Minute, func() { s.change(fmt.Sprint("image app:", minute+2)) })
	}
	begin := 2*time.Minute + w.between(-time.Second, time.Second)
	by := pick(w, refusing, slow, away)
	s.World.after(begin, func() { s.troubled(by) })
	s.World.after(begin+w.between(10*time.Second, 2*time.Minute), func() { s.troubled("") })
	s.plannedEnd = 6 * time.Minute
	s.World.after(s.plannedEnd, func() {
		if p := s.processes[0]; p.ended > fewWrites && p.after < p.before*3/4 {
			s.World.fail(ruleWider, "it was at most %d, and %d before", p.after, p.before)
		}
	})
	return s
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
)

// role is a process's role in a measurement.
type role int

const (
	roleUsher role = iota
	roleAPIServer
	roleEtcd
	roleOthers
	roleHarness
	roleRegistry
)

// times are CPU times at one moment.
type times struct {
	byRole  map[role]time.Duration
	machine time.Duration
}

// meter reads the CPU times of processes, by process ID.
type meter map[int]role

func (m meter) read(table process.Table) (times, error) {
	t := times{byRole: map[role]time.Duration{}}
	for pid, role := range m {
		spent, err := table.CPU(pid)
		if err != nil {
			return t, err
		}
		t.byRole[role] += spent
	}
	var err error
	t.machine, err = table.MachineCPU()
	return t, err
}

// since is what was spent since an earlier reading.
func (t times) since(before times) CPU {
	spent := func(r role) float64 { return (t.byRole[r] - before.byRole[r]).Seconds() }
	c := CPU{
		Usher: spent(roleUsher), APIServer: spent(roleAPIServer), Etcd: spent(roleEtcd),
		Others: spent(roleOthers), Harness: spent(roleHarness), Registry: spent(roleRegistry),
	}
	ours := c.Usher + c.APIServer + c.Etcd + c.Others + c.Harness + c.Registry
	// The kernel accounts for the two separately: a small difference means none.
	c.Elsewhere = max((t.machine-before.machine).Seconds()-ours, 0)
	return c
}

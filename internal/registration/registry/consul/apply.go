// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

const (
	// maxTxnOps is Consul's limit of operations in a transaction; newer servers allow
	// more.
	maxTxnOps = 64
	// maxTxnBytes is the maximum size of a transaction, well below Consul's default
	// limit of 512 KiB (txn_max_req_len).
	maxTxnBytes = 384 << 10
)

// operation is one operation of a transaction: what it is about, with its verb and its object.
type operation map[string]map[string]any

// step is a change with the operations that make it.
type step struct {
	change registry.Change
	ops    []operation
	bytes  int
}

// Apply implements registry.Connector. It compares the changes with a list that it
// reads first. Agents make overrides, see agents.go, and transactions all else.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	overrides := list.Only(changes, func(c registry.Change) bool { return c.Op.Overrides() })
	if len(overrides) == 0 {
		return r.transact(ctx, service, changes)
	}
	if others := list.Only(changes, func(c registry.Change) bool { return !c.Op.Overrides() }); len(others) > 0 {
		return errors.Join(r.transact(ctx, service, others), r.override(ctx, service, overrides))
	}
	return r.override(ctx, service, overrides)
}

// transact makes changes of the catalog. The transactions test the service's index against the list.
func (r *Registry) transact(ctx context.Context, service string, changes []registry.Change) error {
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, error) {
		instances, err := r.read(ctx, service)
		if err != nil {
			return nil, err
		}
		entry := func(i instance) registry.Entry { return i.entry(service) }
		steps, refused := registry.Decide(instances, entry, changes, func(change registry.Change, there *instance) (step, error) {
			ops, err := r.operations(service, change, cmp.Or(there, &instance{}))
			return step{change: change, ops: ops, bytes: len(encode.JSON(ops))}, err
		})
		again, err := r.commitAll(ctx, steps)
		return again, errors.Join(refused, err)
	})
}

// operations returns the operations of a change. there is empty if no such instance
// exists.
func (r *Registry) operations(name string, change registry.Change, there *instance) ([]operation, error) {
	nodeName := NodeName(name, change.Entry.ID)
	if change.Op == registry.Remove {
		return []operation{
			{"Service": {"Verb": "delete-cas", "Node": nodeName,
				"Service": service{ID: change.Entry.ID, Service: name, ModifyIndex: there.Service.ModifyIndex}}},
			{"Node": {"Verb": "delete", "Node": node{Node: nodeName, Datacenter: r.datacenter}}},
		}, nil
	}
	wanted, err := encoded(name, change.Entry)
	if err != nil {
		return nil, err
	}
	// Consul does not accept a weight of 0, for which a check that fails stands.
	status := passing
	if change.Entry.Weight == 0 {
		status = critical
	}
	// In Consul, too, a service that does not exist has the index 0.
	wanted.ModifyIndex = there.Service.ModifyIndex
	ops := []operation{
		{"Node": {"Verb": "set", "Node": node{Node: nodeName, Address: change.Entry.Address, Datacenter: r.datacenter,
			Meta: map[string]string{"usher-service": name, "usher-entry": change.Entry.ID}}}},
		{"Service": {"Verb": "cas", "Node": nodeName, "Service": wanted}},
		{"Check": {"Verb": "set", "Check": check{Node: nodeName, CheckID: checkID, Name: "Usher",
			Notes: "Passing as long as Usher lists the Pod, critical while it holds it back.", Status: status,
			ServiceID: change.Entry.ID, ServiceName: name}}},
	}
	// A check that someone else added to the node could hide it from callers for ever.
	for _, c := range there.Checks {
		if c.CheckID != checkID {
			ops = append(ops, operation{"Check": {"Verb": "delete", "Check": check{
				Node: nodeName, CheckID: c.CheckID, ServiceID: c.ServiceID, ServiceName: c.ServiceName}}})
		}
	}
	return ops, nil
}

// commitAll sends the steps in the largest transactions that Consul accepts, and
// returns the changes to retry.
func (r *Registry) commitAll(ctx context.Context, steps []step) (again []registry.Change, err error) {
	var errs []error
	for len(steps) > 0 {
		n := fit(steps)
		stale, err := r.commit(ctx, steps[:n])
		again, errs, steps = append(again, stale...), append(errs, err), steps[n:]
		if _, failed := registry.ChangeErrors(err); failed != nil {
			break
		}
	}
	return again, errors.Join(errs...)
}

// fit returns how many of the steps go into one transaction, at least one.
func fit(steps []step) int {
	ops, bytes := 0, 0
	for i, s := range steps {
		ops += len(s.ops)
		bytes += s.bytes
		if i > 0 && (ops > maxTxnOps || bytes > maxTxnBytes) {
			return i
		}
	}
	return len(steps)
}

// commit sends one transaction, which is all or nothing.
func (r *Registry) commit(ctx context.Context, batch []step) (again []registry.Change, err error) {
	var ops []operation
	var owner []int // owner maps each operation to its step.
	for i, s := range batch {
		ops = append(ops, s.ops...)
		owner = append(owner, slices.Repeat([]int{i}, len(s.ops))...)
	}
	answer, err := r.call(ctx, http.MethodPut, "/v1/txn", nil, ops)
	switch {
	case err != nil:
		return nil, err
	case answer.Code == http.StatusOK:
		return nil, nil
	case answer.Code != http.StatusConflict:
		return nil, answer.Refusal()
	}
	reasons, err := reasonsOf(answer, owner)
	if err != nil {
		return nil, err
	}
	var refused []error
	for i, s := range batch {
		if why := reasons[i]; why != nil {
			refused = append(refused, s.change.Refused(why))
			continue
		}
		again = append(again, s.change)
	}
	return again, errors.Join(refused...)
}

// reasonsOf returns why steps can never be made, by step. A step that was outdated, or
// that failed only with the others, has none.
func reasonsOf(a *rest.Answer, owner []int) (map[int]error, error) {
	var said struct {
		Errors []struct {
			OpIndex int
			What    string
		}
	}
	if err := a.Decode("Consul", &said); err != nil {
		return nil, err
	}
	reasons := map[int]error{}
	for _, e := range said.Errors {
		if e.OpIndex < 0 || e.OpIndex >= len(owner) || strings.Contains(e.What, "index is stale") {
			continue
		}
		if step := owner[e.OpIndex]; reasons[step] == nil {
			reasons[step] = registry.Permanent(fmt.Errorf("refused by Consul: %s", a.Excerpt(e.What)))
		}
	}
	return reasons, nil
}

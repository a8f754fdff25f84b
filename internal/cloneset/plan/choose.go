// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"sync"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// choose selects the Pods that should have the update revision: at most the old Pods above
// the partition, and at most as many as updated Pods are missing, in the user's order.
// While paused it selects none, so that a Pod waiting for its update returns to service.
func (p *pass) choose() {
	p.tallyRevisions()
	if p.ClaimsRefused != "" {
		p.problem(ProblemClaims, "%s", p.ClaimsRefused)
		p.wakeAt(p.ClaimsRefusedUntil)
	}
	if p.UpdateRefused != "" {
		p.problem(ProblemTemplate, "%s", p.UpdateRefused)
		p.wakeAt(p.RefusedUntil)
		return
	}
	if p.Spec.Method == apps.UpdateOnDelete || p.Spec.Paused {
		return
	}
	need := min(p.old-p.Spec.partition(), p.Spec.Replicas-p.Spec.partition()-p.updated)
	if need <= 0 {
		return
	}
	candidates := make([]*podState, 0, p.old)
	for _, v := range p.pods {
		if !v.isUpdated && !v.toBeDeleted() && p.updatable(v) {
			candidates = append(candidates, v)
		}
	}
	p.queue = p.orderForUpdate(candidates)
	p.queue = p.queue[:min(need, len(p.queue))]
	for _, v := range p.queue {
		v.chosen = true
	}
}

func (p *pass) tallyRevisions() {
	for _, v := range p.pods {
		switch {
		case v.toBeDeleted():
		case v.isUpdated:
			p.updated++
		default:
			p.old++
		}
	}
}

// updatable reports whether an old Pod can reach the update revision by the user's
// method. If it cannot, updatable records why and leaves the Pod alone.
func (p *pass) updatable(v *podState) bool {
	if p.Spec.Method == apps.UpdateReCreate {
		return true
	}
	change, err := p.change(v)
	switch {
	case err == nil:
		p.checkPriority(change)
		return true
	case errors.Is(err, errUnreadable):
		p.problem(ProblemRevision, "ControllerRevision %s cannot be read, so Pod %s stays as it is: delete the Pod so that it is recreated",
			v.revision, v.pod.Name)
		return false
	case p.Spec.Method == apps.UpdateInPlaceIfPossible:
		return true
	case errors.Is(err, errGone):
		p.problem(ProblemNotInPlace,
			"updateStrategy.type is InPlaceOnly, but the ControllerRevision %q of Pod %s is gone: delete the Pod so that it is recreated",
			v.revision, v.pod.Name)
	default:
		p.problem(ProblemNotInPlace, "updateStrategy.type is InPlaceOnly, but %v: undo that change, or set the type to InPlaceIfPossible", err)
	}
	return false
}

// checkPriority reports an unreadable launch priority. It delays nothing: fixing it takes
// new Pods.
func (p *pass) checkPriority(change *inplace.Change) {
	if change.Unranked != "" {
		p.problem(ProblemPriority,
			"%s of container %s in spec.template is not a whole number and counts as 0: give it a value such as \"10\" with the next change that recreates the Pods",
			apps.EnvContainerPriority, change.Unranked)
	}
}

var (
	errUnreadable = errors.New("revision cannot be read")
	errGone       = errors.New("revision is gone")
)

// change is how the Pod reaches the update revision in place.
func (p *pass) change(v *podState) (*inplace.Change, error) {
	if v.pending {
		return inplace.Pending(v.pod, p.Update.Template), nil
	}
	if p.changes[v.hash] == nil {
		p.changes[v.hash] = sync.OnceValues(func() (*inplace.Change, error) { return p.Change(v.hash) })
	}
	return p.changes[v.hash]()
}

// Change is how a Pod of the revision with that hash reaches the update revision in place,
// or why it cannot.
func (s *Snapshot) Change(hash string) (*inplace.Change, error) {
	switch from := s.Revisions[hash]; {
	case from == nil:
		return nil, errGone
	case from.Template == nil:
		return nil, errUnreadable
	default:
		change, err := inplace.Diff(from.Template, s.Update.Template)
		if err == nil && s.NoResize {
			err = change.WithoutResize()
		}
		return change, err
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

// release deletes the Pods that their preDelete hook no longer holds.
func (p *pass) release() {
	for _, v := range p.pods {
		if v.fixed || !v.preparesDelete() || v.holds(p.Spec.Hooks.PreDelete) {
			continue
		}
		if p.counted(v) {
			p.ledger.drop(v)
		}
		v.leaving = false
		p.delete(v, Action{Reason: ReasonHookReleased, Claims: p.claimsOf(v)})
	}
}

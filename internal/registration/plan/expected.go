// SPDX-License-Identifier: Apache-2.0

package plan

// Expected is the entry of a Pod that a Registration selects, as it should be in each of the
// Registration's registries.
type Expected struct {
	// Pod is the Pod's name, ID that of the entry.
	Pod, ID string
	Address string
	Port    int32
	// Hidden means that callers should not get it.
	Hidden bool
	// Listed means that the entry should be there. If not, Why says why not.
	Listed bool
	Why    string
}

// Expect returns the entries that Registrations want, by Registration and Pod. It is made of
// the objects alone: no registry is asked.
func Expect(snapshot Snapshot) []Expected {
	ix := newIndex(snapshot)
	var all []Expected
	for _, r := range ix.registrations {
		ix.keepSilent(r)
		for _, p := range r.pods {
			entry, want := ix.entry(r, p), ix.desiredOf(r, p)
			all = append(all, Expected{
				Pod: p.Name, ID: p.id, Address: entry.Address,
				Port: entry.Port, Listed: want != absent, Hidden: want == outOfService, Why: p.unfit(r),
			})
		}
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package registry

import usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"

// Settings are what a kind reads of a Registry's spec.
type Settings struct {
	// Secret holds the credentials, nil for none.
	Secret *usherv1alpha1.SecretReference
	// Root is where services are, for kinds where that can change while the
	// Registry stays: what was written under the old one is then removed. Empty
	// for the others.
	Root string
	// Connect makes a connector, and connects to nothing. root is Root or an earlier
	// one; secret has those of the kind's keys that the Secret has. Errors are
	// permanent and name the field or the Secret's key.
	Connect func(root string, secret map[string][]byte) (Connector, error)
}

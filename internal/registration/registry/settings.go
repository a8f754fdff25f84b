// SPDX-License-Identifier: Apache-2.0

package registry

import usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"

// Settings are what a kind reads from a Registry's spec.
type Settings struct {
	// Secret names the credentials, nil for none.
	Secret *usherv1alpha1.SecretReference
	// Root is where services are kept, for kinds where that can change during the life
	// of a Registry. Usher then removes the entries under the old root. Empty for other
	// kinds.
	Root string
	// Own means that services are kept in the Registration's own namespace: whoever may write
	// that may write these services, too.
	Own bool
	// Fold returns what the registry makes of a service's name: services whose names fold into
	// one are one. Nil for registries that tell all names apart.
	Fold func(service string) string
	// Obeyed reports whether callers obey or execute a pair of metadata, or one tag under the
	// key tags, rather than take it for data. Nil if they obey none.
	Obeyed func(key, value string) bool
	// Connect makes a connector but does not connect. root is Root or an earlier value
	// of it. secret has those of the kind's keys that exist in the Secret. Errors are
	// permanent and name the field or the Secret's key.
	Connect func(root string, secret map[string][]byte) (Connector, error)
}

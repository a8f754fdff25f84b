// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

// OwnKey reports whether a label or finalizer belongs to Usher, such as web.usher.dev/drained, and so means
// nothing to anybody else. Whoever edits a CloneSet or a Registration chooses all other keys of hooks: a policy
// may keep users from one, so Usher writes them where policies on Pods see them.
func OwnKey(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return key == Finalizer || key == LabelGuarded || key == LabelInService || strings.HasSuffix(domain+"/", HookDomain)
}

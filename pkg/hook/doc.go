// SPDX-License-Identifier: Apache-2.0

// Package hook is for writing your own hook operator: it calls your function at each gate
// of a CloneSet Pod's life, and lets the Pod continue once the function has reported
// success.
//
//	err := hook.New("traffic").
//		OnCreated(hook.Label("example.com/newly-create"), register).
//		OnPreUpdate(hook.Label("example.com/unready-blocker-inplace"), failOver).
//		OnUpdated(hook.Label("example.com/unready-blocker-inplace"), register).
//		OnPreDelete(hook.Label("example.com/unready-blocker-delete"), deregister).
//		SetupWithManager(mgr)
//
// A function may be called several times for one gate: after it failed, after the
// operator restarted, and if the release could not be written because the Pod had changed
// meanwhile. It must be idempotent, and should return nil only after it has read its
// result back from wherever it writes to.
//
// Hooks work with both Usher's CloneSet controller and OpenKruise's. If you only need a
// registry, you need no code: see Registry and Registration.
package hook

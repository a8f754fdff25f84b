// SPDX-License-Identifier: Apache-2.0

// Package hook is for those who write a hook operator of their own: it calls a
// function of yours at each gate of a CloneSet Pod's life, and lets the Pod go
// on once the function has said that all is done.
//
//	err := hook.New("traffic").
//		OnCreated(hook.Label("example.com/newly-create"), register).
//		OnPreUpdate(hook.Label("example.com/unready-blocker-inplace"), failOver).
//		OnUpdated(hook.Label("example.com/unready-blocker-inplace"), register).
//		OnPreDelete(hook.Label("example.com/unready-blocker-delete"), deregister).
//		SetupWithManager(mgr)
//
// A function may be called several times for one gate: after it failed, after
// the operator was restarted, and when the release could not be written because
// the Pod had changed meanwhile. It has to be idempotent, and it should return
// nil only after it has read back from wherever it writes to that it is so.
//
// Hooks work with Usher's CloneSet controller as with OpenKruise's. Those who
// only need a registry need no code: see Registry and Registration.
package hook

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

func TestSeveral(t *testing.T) {
	for one, several := range map[string]string{
		"is ready, and callers do not find it: Service web selects it": "are ready, and callers do not find them: Service web selects it",
		"is deleted, and stays until etcd no longer lists it":          "are deleted, and stay until etcd no longer lists them",
		"leaves etcd before it is deleted, as alice asked":             "leave etcd before they are deleted, as alice asked",
		"has left etcd; callers may still use it":                      "have left etcd; callers may still use them",
		"has left etcd; Usher does not answer":                         "have left etcd; Usher does not answer",
		"is drained, and waits for alice to delete it":                 "are drained, and wait for alice to delete them",
		"waits for its container main: ErrImagePull":                   "wait for their container main: ErrImagePull",
		"is terminating, and node n1 may be silent":                    "are terminating, and node n1 may be silent",
		"has no readiness gate, so nothing takes it out of Service web before it ends: add": "have no readiness gate, so nothing takes " +
			"them out of Service web before they end: add",
		"": "",
	} {
		checktest.Same(t, one, several, Several(one))
	}
}

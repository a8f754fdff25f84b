// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// greedy records as many Registrations of a namespace as the Registry takes, with names of so many
// characters.
func greedy(users []usherv1alpha1.RegistryUser, namespace string, length int) []usherv1alpha1.RegistryUser {
	for n := 0; ; n++ {
		next := usherv1alpha1.RegistryUser{
			Namespace: namespace, Registration: fmt.Sprintf("%0*d", length, n), Prefix: "services", Service: strings.Repeat("s", length),
		}
		if !HasRoom(users, next) {
			return users
		}
		users = append(users, next)
	}
}

// TestNewcomersAreRecorded: however many Registrations the namespaces before it have made, a namespace
// that has nothing yet is recorded, and the API server takes the whole.
func TestNewcomersAreRecorded(t *testing.T) {
	const etcdTakes, rest = 3 << 19, 128 << 10 // 1.5 MiB; what the object has besides
	for _, namespaces := range []int{8, 1000} {
		for _, length := range []int{3, 20, 253} {
			t.Run(fmt.Sprintf("%d namespaces, names of %d characters", namespaces, length), func(t *testing.T) {
				var users []usherv1alpha1.RegistryUser
				for n := range namespaces {
					users = greedy(users, fmt.Sprintf("tenant-%d", n), length)
				}
				newcomer := usherv1alpha1.RegistryUser{
					Namespace: strings.Repeat("n", 63), Registration: strings.Repeat("r", 253), Prefix: "services", Service: strings.Repeat("s", 253),
				}
				checktest.Same(t, "there is room for a newcomer", true, HasRoom(users, newcomer))
				if size := len(checktest.Must(json.Marshal(append(users, newcomer)))(t)); size > etcdTakes-rest {
					t.Errorf("status.users takes %d bytes", size)
				}
			})
		}
	}
}

// TestSharesOfUsers: one namespace may record a thousand Registrations, and one that has its share gets no
// more, however much room there is.
func TestSharesOfUsers(t *testing.T) {
	users := greedy(nil, "tenant", 20)
	if len(users) < 1000 || len(users) > 1200 {
		t.Errorf("one namespace may record %d Registrations", len(users))
	}
	checktest.Same(t, "what it may add", len(users), len(greedy(users, "tenant", 20)))
}

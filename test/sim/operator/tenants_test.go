// SPDX-License-Identifier: Apache-2.0

package operator

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/test/model"
)

// tenants are namespaces of others, each with one ready Pod. Both claim the same service, which
// only one of them can have, and the one of this namespace.
var tenants = []string{"left", "right"}

// spoils is the service that both claim.
const spoils = "spoils"

//go:embed testdata/tenants.yaml
var ofTenants string

// settleTenants creates them, if the run has any.
func (s *simulation) settleTenants() {
	if !s.features.tenants {
		return
	}
	for _, object := range objectsOfTenants() {
		s.make(object)
		if _, ok := object.(*corev1.Pod); !ok {
			continue
		}
		model.Change(s.server, "kubelet", client.ObjectKeyFromObject(object), "status", func(pod *corev1.Pod) {
			pod.Status.PodIP = "192.0.2.7"
			model.SetCondition(pod, corev1.ContainersReady, true, s.clock.Now())
			model.SetCondition(pod, corev1.PodReady, true, s.clock.Now())
		})
	}
}

func (s *simulation) passOfTenants() {
	if s.features.tenants {
		for _, tenant := range tenants {
			s.refresh()
			s.passOver(tenant)
		}
	}
}

// scribbles are what a tenant may write into an annotation of Usher's.
var scribbles = map[string][]string{
	usher.AnnotationRegistrations: {"a/b", "..", ",", "nowhere", "nginx", strings.Repeat("n,", 60_000) + "n"},
	usher.AnnotationDrain: {"{", "[]", "7", `{"gate":7}`, `{"gate":"requested","began":"0000-01-01T00:00:00Z","until":"9999-12-31T23:59:59Z"}`,
		`{"gate":"preDelete","gone":{"":"0000-01-01T00:00:00Z"},"until":"8999-12-31T23:59:59Z","at":"0000-01-01T00:00:00Z"}`},
	usher.AnnotationDeletionRequest: {"{", "[]", `{"by":7}`, `{"at":"9999-12-31T23:59:59Z","since":"0000-01-01T00:00:00Z"}`},
}

// scribble has a tenant write what it likes into an annotation of its Pod.
func (s *simulation) scribble(*corev1.Pod) {
	name := pick(s, tenants...)
	key := pick(s, slices.Sorted(maps.Keys(scribbles))...)
	text := pick(s, scribbles[key]...)
	s.log("%s: writes %s: %.40s", name, key, text)
	model.Change(s.server, name, client.ObjectKey{Namespace: name, Name: name}, "", func(pod *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, text)
	})
}

// registrations are those of this namespace.
func (s *simulation) registrations() []*usher.Registration {
	return slices.DeleteFunc(model.List[*usher.Registration](s.server.Objects), func(r *usher.Registration) bool { return r.Namespace != namespace })
}

// judgeOwners checks that nobody gets an entry into a service that is another's, by its rule or
// by the entries in it.
func (c *connector) judgeOwners(name string, changes []registry.Change) {
	for _, change := range changes {
		by := change.Entry.Owner.Namespace
		if change.Op != registry.Put {
			continue
		}
		if name == service && by != namespace {
			c.process.fail("%s puts %s into %s, which is another's", by, change.Entry.ID, name)
		}
		for _, e := range c.Entries(name) {
			if owner := e.Owner.Namespace; name == spoils && owner != by {
				c.process.fail("%s puts %s into %s, which is of namespace %s", by, change.Entry.ID, name, owner)
			}
		}
	}
}

// checkOwned checks that each registry lists one tenant where both want to be, and that no pass over a tenant
// fails, whatever it has written.
func (s *simulation) checkOwned() {
	for _, tenant := range tenants {
		if err := s.ended[tenant]; err != nil {
			s.fail("the last pass over %s: %v", tenant, err)
		}
	}
	for _, name := range registries {
		if have := len(s.stores[name].Entries(spoils)); s.features.tenants && have != 1 {
			s.fail("%s lists %d entries in %s, want one", name, have, spoils)
		}
	}
}

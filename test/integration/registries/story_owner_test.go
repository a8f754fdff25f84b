// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// TestStoryTakenService is an attack: a Registration of another namespace names the service of
// a running one, with all the weight that there is. It gets in when a rule shares the service,
// and nothing leaves when a rule closes it again.
func TestStoryTakenService(t *testing.T) {
	s := newStory(t)
	s.serving("aaaaa", "10.0.0.1")

	other := &env{Scene: shared.Begin(t)}
	thief := &story{env: other, set: other.cloneSet("lifecycle.yaml")}
	thief.register(s.registry.Name, "spec: {instance: {service: "+s.Namespace+", weight: 65535}}")
	pod := thief.ready("bbbbb", "10.0.0.2")
	thief.condition(usherv1alpha1.ConditionReady, "False", "ServiceTaken: ", "belongs to namespace "+s.Namespace, "shared: true")
	thief.registered(pod, "False", "belongs to namespace "+s.Namespace)
	thief.Event(thief.registration, "ServiceTaken", "add to spec.services of the Registry")
	s.serving("ccccc", "10.0.0.3") // the owner is not disturbed
	s.lists("10.0.0.1:80", "10.0.0.3:80")

	rule := func(namespaces, shared string) {
		s.Change(s.registry, `spec: {services: [{names: [%s], shared: %s, namespaces: {matchExpressions: [
			{key: kubernetes.io/metadata.name, operator: In, values: [%s]}]}}]}`, s.Namespace, shared, namespaces)
	}
	rule(fmt.Sprintf("%s, %s", s.Namespace, thief.Namespace), "true")
	thief.hasLabel(pod, keyCreated, "false")
	s.lists("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")

	rule(s.Namespace, "false")
	late := thief.ready("ddddd", "10.0.0.4")
	thief.registered(late, "False", "does not let namespace "+thief.Namespace)
	s.lists("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
}

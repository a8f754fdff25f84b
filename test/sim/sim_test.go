// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

func TestCreateAndUpdateInPlaceWithHooks(t *testing.T) {
	set := Demo(3).Type(apps.UpdateInPlaceIfPossible).Unavailable(intstr.FromInt32(1)).Hooks(LabelHooks()).Build()
	s := New(Calm(), set)
	s.World.runUntil(epoch.Add(time.Minute))
	s.Edit("rolls out app:2", Image("app:2"))
	if v := s.Rest(); v != nil {
		t.Fatalf("%v\n%s", v, s.World.Story())
	}
	t.Log("\n" + s.World.Story())
}

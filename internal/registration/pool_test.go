// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

func TestBackOff(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	p := newPool(nil, nil, clock)
	broken := errors.New("broken")
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if have, _ := p.failed("discovery", broken, time.Second); have != want*time.Second {
			t.Errorf("back-off %d is %s, want %ds", i, have, want)
		}
	}
	until, err := p.down("discovery")
	if !errors.Is(err, broken) || !until.Equal(epoch.Add(31*time.Second)) {
		t.Errorf("it is down until %s with %v", until, err)
	}
	if !p.recovered("discovery") || p.recovered("discovery") {
		t.Error("an outage ends once")
	}
	if _, err := p.down("discovery"); err != nil {
		t.Errorf("after that it is down with %v", err)
	}
	if have, _ := p.failed("discovery", broken, 0); have != maxBackOff {
		t.Errorf("it failed again at once; the back-off is %s, want %s", have, maxBackOff)
	}
	clock.SetTime(epoch.Add(time.Hour))
	if have, _ := p.failed("discovery", broken, 0); have != minBackOff {
		t.Errorf("it failed again after an hour; the back-off is %s, want %s", have, minBackOff)
	}
}

// TestSecretsAreFollowed makes a new connector when the credentials change.
func TestSecretsAreFollowed(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	object := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{Name: "secured", UID: "secured"},
		Spec: usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{
			CredentialsSecret: &usherv1alpha1.SecretReference{Namespace: namespace, Name: "rotated"},
		}},
	}
	var seen []string
	p := newPool(api, func(_ *usherv1alpha1.Registry, _ string, secret map[string][]byte) (registry.Connector, error) {
		seen = append(seen, string(secret["password"]))
		return memory.New(), nil
	}, clocktesting.NewFakePassiveClock(epoch))
	if _, err := p.get(t.Context(), object, "", true); !errors.Is(err, registry.ErrPermanent) {
		t.Errorf("without the Secret: %v, want a permanent error", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rotated"},
		Data: map[string][]byte{"password": []byte("old")}}
	if err := api.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := p.get(t.Context(), object, "", true); err != nil {
			t.Fatal(err)
		}
	}
	secret.Data["password"] = []byte("new")
	if err := api.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for _, fresh := range []bool{false, true} {
		if _, err := p.get(t.Context(), object, "", fresh); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 2 || seen[0] != "old" || seen[1] != "new" {
		t.Errorf("connectors were made with %v, want one with each password", seen)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// A start fails if a component does not start, and in a directory that has files of others or is in
// use.
func TestFailedStart(t *testing.T) {
	dir := t.TempDir()
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: dir, ExtraArgs: cluster.ExtraArgs{build.APIServer: {"--no-such-flag"}}})
	var exit *process.ExitError
	if !errors.As(err, &exit) || exit.Name != build.APIServer || !strings.Contains(err.Error(), "no-such-flag") {
		t.Fatalf("error is %v, want the API server's with its last lines", err)
	}
	other := t.TempDir()
	checktest.NoError(t, os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o600))
	_, err = cluster.Start(t.Context(), cluster.Options{Dir: other})
	checktest.Says(t, "a directory with other files", err, "thesis.txt")
}

// TestHA: with three members of etcd and two API servers the API outlives a member that is lost, a leader that moves,
// and an API server that is killed or drained. An API server whose member of etcd lags answers what was, until the
// client asks for a version.
func TestHA(t *testing.T) {
	c := checktest.Must(cluster.Start(t.Context(), cluster.Options{
		Dir: filepath.Join(t.TempDir(), "cluster"), HA: &cluster.HA{RoundTrip: 2 * time.Millisecond},
	}))(t)
	t.Cleanup(func() { checktest.NoError(t, c.Stop(context.WithoutCancel(t.Context()))) })
	at := func(host string) corev1client.ConfigMapInterface {
		config := c.RESTConfig()
		config.Host = host
		return kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	}
	maps := at(c.Server())
	create := func(in corev1client.ConfigMapInterface, name string) {
		t.Helper()
		registrytest.Until(t, name+" to be created", func() bool {
			_, err := in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return err == nil || apierrors.IsAlreadyExists(err)
		})
	}
	checktest.Same(t, "what there is", 5, len(c.Members())+len(c.APIServers()))
	for _, member := range c.Members() {
		checktest.NoError(t, c.MoveLeader(t.Context(), member))
		checktest.Same(t, "the leader", member, checktest.Must(c.Leader(t.Context()))(t))
	}
	for name, end := range map[string]func(string) error{
		c.Members()[2]: c.Kill, c.APIServers()[0]: c.Kill,
		c.APIServers()[1]: func(name string) error { return c.Drain(t.Context(), name) },
	} {
		checktest.NoError(t, end(name))
		create(maps, "without-"+name)
		checktest.NoError(t, c.Restart(t.Context(), name))
	}
	leads, lags := at("https://"+c.ServerAddresses()[0]), at("https://"+c.ServerAddresses()[1])
	checktest.NoError(t, c.Lag(t.Context(), c.Members()[1], 3*time.Second))
	create(leads, "new")
	cached := func() bool {
		_, err := lags.Get(t.Context(), "new", metav1.GetOptions{ResourceVersion: "0"})
		return err == nil
	}
	if cached() {
		t.Error("an API server whose member of etcd lags shows an object at once")
	}
	if _, err := lags.Get(t.Context(), "new", metav1.GetOptions{}); err != nil {
		t.Errorf("asked for what is, it answers %v", err)
	}
	checktest.NoError(t, c.Lag(t.Context(), c.Members()[1], 0))
	registrytest.Until(t, "its cache to have caught up", cached)
}

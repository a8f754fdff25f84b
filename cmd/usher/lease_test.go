// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestFence: once a manager has ended by itself, its controllers reach the API server no more, but for the lease. If
// somebody has asked the process to end, they finish what they have begun.
func TestFence(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()
	for name, want := range map[string]error{"asked to end": nil, "ended by itself": errFenced} {
		process, asked := context.WithCancel(t.Context())
		defer asked()
		f := &fence{asked: process}
		client := checktest.Must(rest.HTTPClientFor(f.around(&rest.Config{Host: api.URL})))(t)
		call := func(path string) error {
			request := checktest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL+path, nil))(t)
			answer, err := client.Do(request)
			if err == nil {
				err = answer.Body.Close()
			}
			return err
		}
		const pod = "/api/v1/namespaces/leases/pods/web"
		const lease = "/apis/coordination.k8s.io/v1/namespaces/usher/leases/usher"
		checktest.NoError(t, call(pod))
		manager, ends := context.WithCancel(t.Context())
		if want == nil {
			asked()
		}
		ends()
		checktest.NoError(t, f.Start(manager))
		if err := call(pod); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		checktest.NoError(t, call(lease))
	}
}

// TestStay: the guard stays after the loss of the lease, and only then.
func TestStay(t *testing.T) {
	for ended, want := range map[error]time.Duration{
		nil: 0, errors.New("etcd was restored"): 0, errors.New(lostLease): leaveTime,
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			stay(t.Context(), ended)
			checktest.Same(t, "how long the guard stays", want, time.Since(began))
			asked, end := context.WithCancel(t.Context())
			end()
			stay(asked, ended)
			checktest.Same(t, "how long if the process is asked to end", want, time.Since(began))
		})
	}
}

// lock is a lease that can be had once, and not be renewed.
type lock struct {
	resourcelock.Interface
	updates atomic.Int64
}

func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{}, nil, nil
}

func (l *lock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	if l.updates.Add(1) > 1 {
		return errors.New("etcd does not answer")
	}
	return nil
}

func (l *lock) RecordEvent(string) {}
func (l *lock) Identity() string   { return "it" }
func (l *lock) Describe() string   { return "the lease" }

// TestLostLease: it is the error of controller-runtime, which does not export it.
func TestLostLease(t *testing.T) {
	lease, deadline, retry := 300*time.Millisecond, 200*time.Millisecond, 20*time.Millisecond
	mgr := checktest.Must(ctrl.NewManager(&rest.Config{}, ctrl.Options{
		LeaderElection: true, LeaderElectionResourceLockInterface: &lock{},
		LeaseDuration: &lease, RenewDeadline: &deadline, RetryPeriod: &retry,
		Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
	}))(t)
	err := mgr.Start(t.Context())
	if err == nil {
		t.Fatal("it ended without an error")
	}
	checktest.Same(t, "the error", lostLease, err.Error())
}

// TestStayAsProbed: the guard stays until three readiness probes of the chart have failed, and two seconds more.
func TestStayAsProbed(t *testing.T) {
	chart := string(checktest.Must(os.ReadFile("../../charts/usher/templates/deployment.yaml"))(t))
	found := regexp.MustCompile(`readinessProbe:\n.*\n +periodSeconds: (\d+)\n +(\w+)`).FindStringSubmatch(chart)
	if found == nil || found[2] != "livenessProbe" {
		t.Fatalf("the chart's readiness probe: %q", found)
	}
	seconds := checktest.Must(strconv.Atoi(found[1]))(t)
	if least := 3*time.Duration(seconds)*time.Second + 2*time.Second; leaveTime < least {
		t.Errorf("it stays for %s, less than %s", leaveTime, least)
	}
}

// SPDX-License-Identifier: Apache-2.0

package scene

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/guard"
	"github.com/usher-dev/usher/internal/guard/endpoint"
	"github.com/usher-dev/usher/internal/guard/keeper"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/servers/run"
)

// StartUsher runs both halves in a leader that knows nothing of the guard, the second half with these options; the guard
// in a replica that does not lead; and what makes its certificate, with the rights for that alone. The checkout is at root.
// It waits until API servers can call the guard, and returns the guard's host and port.
func (p *Plane) StartUsher(
	ctx context.Context, root string, service endpoint.Service, options registration.Options,
) (door string, err error) {
	ports, err := run.FreePorts(ctx, 1)
	if err != nil {
		return "", err
	}
	if _, err := checkout.InstallGuard(ctx, p, root, "usher", ports[0]); err != nil {
		return "", err
	}
	p.halves = func() (context.CancelFunc, error) {
		ctx, crash := context.WithCancel(ctx)
		return crash, p.startHalves(ctx, service, options)
	}
	p.crash, err = p.halves()
	if err := errors.Join(err, checkout.AskPatiently(ctx, p), p.startGuard(ctx, service, ports[0])); err != nil {
		return "", err
	}
	door = fmt.Sprintf("127.0.0.1:%d", ports[0])
	return door, wait.PollUntilContextTimeout(ctx, Poll, time.Minute, true, func(ctx context.Context) (bool, error) {
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", door)
		if err != nil {
			return false, nil // It has no certificate yet.
		}
		return true, conn.Close()
	})
}

// RestartUsher ends both halves as a crash does, and starts them anew: they lead when the lease of those before has run
// out. The guard goes on.
func (p *Plane) RestartUsher() (err error) {
	p.crash()
	p.crash, err = p.halves()
	return err
}

// election has one replica lead.
func election(service endpoint.Service) ctrl.Options {
	return ctrl.Options{LeaderElection: true, LeaderElectionID: "usher", LeaderElectionNamespace: service.Namespace}
}

// standby is a replica that waits for the lease. It tries again after hours only: it has no halves, so if it led,
// nobody would after RestartUsher.
func standby(service endpoint.Service) ctrl.Options {
	o := election(service)
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = new(9*time.Hour), new(8*time.Hour), new(6*time.Hour)
	return o
}

func (p *Plane) startHalves(ctx context.Context, service endpoint.Service, options registration.Options) error {
	options.Registerer, options.Finish = prometheus.NewRegistry(), true
	var leads <-chan struct{}
	ended, err := p.Manage(ctx, p.RESTConfig(), election(service), func(ctx context.Context, mgr ctrl.Manager) error {
		leads = mgr.Elected()
		return errors.Join(
			cloneset.Setup(ctx, mgr, cloneset.Options{}),
			registration.Setup(ctx, mgr, options))
	})
	if err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-leads:
		return nil
	}
}

// startGuard runs what makes the guard's certificate, and the guard.
func (p *Plane) startGuard(ctx context.Context, service endpoint.Service, port int) error {
	config := p.RESTConfig()
	config.Impersonate.UserName = checkout.CertificateUser
	_, err := p.Manage(ctx, config, ctrl.Options{}, func(_ context.Context, mgr ctrl.Manager) error { return keeper.Setup(mgr, service) })
	if err != nil {
		return err
	}
	_, err = p.Manage(ctx, p.RESTConfig(), standby(service), func(ctx context.Context, mgr ctrl.Manager) error {
		return guard.Setup(ctx, mgr, guard.Options{Service: service, Port: port})
	})
	return err
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/cluster/pki"
)

// AdminGroup is the group that may do everything.
const AdminGroup = "system:masters"

// identity holds the certificates and keys of one cluster.
type identity struct {
	authority *pki.Authority
	admin     pki.Pair
}

// serverNames are the names by which programs reach the API server: the loopback
// interface, and what in-cluster clients expect.
func serverNames() []string {
	return []string{
		loopback, "::1", "localhost", "10.96.0.1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
}

// makeIdentity creates all keys and certificates of a new cluster and writes those that
// components read from files.
func makeIdentity(l layout, now time.Time) (*identity, error) {
	authority, err := pki.NewAuthority("usher-devcluster", now)
	if err != nil {
		return nil, err
	}
	admin, err := authority.Client("admin", now, AdminGroup)
	if err != nil {
		return nil, err
	}
	if err := writeServerKeys(l, authority, now); err != nil {
		return nil, err
	}
	public, private, err := pki.SigningKey()
	if err != nil {
		return nil, err
	}
	return &identity{authority: authority, admin: admin},
		writePair(l.pki("sa.pub"), l.pki("sa.key"), pki.Pair{Cert: public, Key: private})
}

func writeServerKeys(l layout, authority *pki.Authority, now time.Time) error {
	own, err := authority.Pair()
	if err != nil {
		return err
	}
	server, err := authority.Server("kube-apiserver", now, serverNames()...)
	if err != nil {
		return err
	}
	components, err := authority.Server("control-plane", now, loopback, "::1", "localhost")
	if err != nil {
		return err
	}
	if err := writePair(l.pki("ca.crt"), l.pki("ca.key"), own); err != nil {
		return err
	}
	if err := writePair(l.pki("apiserver.crt"), l.pki("apiserver.key"), server); err != nil {
		return err
	}
	return writePair(l.pki("components.crt"), l.pki("components.key"), components)
}

func writePair(certPath, keyPath string, pair pki.Pair) error {
	if err := writeFile(certPath, pair.Cert, 0o644); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	if err := writeFile(keyPath, pair.Key, 0o600); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	return nil
}

// writeConfigs writes what the components read apart from keys. It needs the API
// server's address and therefore runs again when the port changes.
func (id *identity) writeConfigs(l layout, server string, now time.Time) error {
	if err := writeKubeconfig(l.adminKubeconfig(), server, "admin", id.authority.PEM(), id.admin); err != nil {
		return err
	}
	for _, component := range []string{"kube-controller-manager", "kube-scheduler"} {
		user := "system:" + component
		client, err := id.authority.Client(user, now)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(l.config(component+".kubeconfig"), server, user, id.authority.PEM(), client); err != nil {
			return err
		}
	}
	scheduler, err := schedulerConfig(l)
	if err != nil {
		return err
	}
	if err := writeFile(l.config("kube-scheduler.yaml"), scheduler, 0o600); err != nil {
		return fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	if err := writeFile(l.config("audit-policy.yaml"), []byte(auditPolicy), 0o644); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	return nil
}

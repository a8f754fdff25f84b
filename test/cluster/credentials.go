// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/usher-dev/usher/internal/checktest/pki"
)

// contextName is the only context in each kubeconfig that this package writes.
const contextName = "usher-devcluster"

// identity holds the certificates and keys of one cluster.
type identity struct {
	authority *pki.Authority
	admin     pki.Pair
}

// newIdentity creates all keys and certificates of a new cluster and writes those that
// components read from files. One that begins with a snapshot has the authority, and the key of service accounts, of
// the cluster that it was made of.
func newIdentity(l layout, snapshot string, now time.Time) (*identity, error) {
	authority, tokens, err := signers(snapshot, now)
	if err != nil {
		return nil, err
	}
	admin, adminErr := authority.Client("admin", now, "system:masters")
	// The names by which programs reach the API server: the loopback interface, and what
	// in-cluster clients expect.
	server, serverErr := authority.Server("kube-apiserver", now, loopback, "::1", "localhost", "10.96.0.1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	components, componentsErr := authority.Server("control-plane", now, loopback, "::1", "localhost")
	return &identity{authority: authority, admin: admin}, errors.Join(adminErr, serverErr, componentsErr,
		writePair(l, "ca", authority.Pair()), writePair(l, "apiserver", server), writePair(l, "components", components),
		writeFile(l.pki("sa.key"), tokens, 0o600))
}

// signers are what signs certificates, and the key that signs tokens.
func signers(snapshot string, now time.Time) (authority *pki.Authority, tokens []byte, err error) {
	if snapshot == "" {
		authority, err = pki.NewAuthority("usher-devcluster", now)
		tokens, tokensErr := keyutil.MakeEllipticPrivateKeyPEM()
		return authority, tokens, errors.Join(err, tokensErr)
	}
	from := layout{dir: snapshot}
	cert, noCert := os.ReadFile(from.pki("ca.crt"))
	key, noKey := os.ReadFile(from.pki("ca.key"))
	tokens, noTokens := os.ReadFile(from.pki("sa.key"))
	if err := errors.Join(noCert, noKey, noTokens); err != nil {
		return nil, nil, fmt.Errorf("read the keys of the snapshot: %w", err)
	}
	authority, err = pki.ReadAuthority(pki.Pair{Cert: cert, Key: key})
	return authority, tokens, err
}

func writePair(l layout, name string, pair pki.Pair) error {
	return errors.Join(writeFile(l.pki(name+".crt"), pair.Cert, 0o644), writeFile(l.pki(name+".key"), pair.Key, 0o600))
}

// writeKubeconfigs writes those of the administrator and of the components.
func (id *identity) writeKubeconfigs(l layout, server string, now time.Time) error {
	errs := []error{id.writeKubeconfig(l.adminKubeconfig(), server, "admin", id.admin)}
	for _, component := range []string{"kube-controller-manager", "kube-scheduler"} {
		errs = append(errs, id.writeUser(l.config(component+".kubeconfig"), server, "system:"+component, now))
	}
	return errors.Join(errs...)
}

// writeUser signs a client certificate for a user and writes a kubeconfig with it.
func (id *identity) writeUser(path, server, user string, now time.Time, groups ...string) error {
	client, err := id.authority.Client(user, now, groups...)
	if err != nil {
		return err
	}
	return id.writeKubeconfig(path, server, user, client)
}

// writeKubeconfig writes a self-contained kubeconfig that only its owner can read.
func (id *identity) writeKubeconfig(path, server, user string, client pki.Pair) error {
	config := api.NewConfig()
	config.Clusters[contextName] = &api.Cluster{Server: server, CertificateAuthorityData: id.authority.PEM()}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: client.Cert, ClientKeyData: client.Key}
	config.Contexts[contextName] = &api.Context{Cluster: contextName, AuthInfo: user}
	config.CurrentContext = contextName
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig of %s: %w", user, err)
	}
	return writeFile(path, text, 0o600)
}

// Kubeconfig returns the path of the administrator's kubeconfig, for kubectl.
func (c *Cluster) Kubeconfig() string { return c.layout.adminKubeconfig() }

// UserKubeconfig creates a kubeconfig with a client certificate for a user, who has
// only the rights that RBAC grants to the name and the groups. It returns the file's
// path.
func (c *Cluster) UserKubeconfig(user string, groups ...string) (string, error) {
	path := c.layout.path("kubeconfigs", url.PathEscape(user))
	return path, c.identity.writeUser(path, c.Server(), user, time.Now(), groups...)
}

// RESTConfig returns a new administrator client configuration without a rate limit (QPS
// -1): the tests set the pace.
func (c *Cluster) RESTConfig() *rest.Config {
	return &rest.Config{
		Host: c.Server(), QPS: -1, Burst: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.identity.authority.PEM(), CertData: c.identity.admin.Cert, KeyData: c.identity.admin.Key},
	}
}

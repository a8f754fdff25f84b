// SPDX-License-Identifier: Apache-2.0

package origin

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// maxAnswer bounds what is read of an API server's answer, in bytes.
const maxAnswer = 64 << 10

// NewLook returns a Look at the API servers of a configuration: through a balancer, each look may reach another one.
func NewLook(config *rest.Config) (Look, error) {
	config = rest.CopyConfig(config)
	// client-go shares the connections of configurations that it can compare, and it cannot compare functions.
	config.Proxy = http.ProxyFromEnvironment
	asked, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("set up the client that asks API servers who they are: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	url := base.JoinPath("api").String()
	return func(ctx context.Context) (Sight, error) {
		utilnet.CloseIdleConnectionsFor(asked.Transport)
		servers, err := askServers(ctx, asked, url)
		if err != nil {
			return Sight{}, err
		}
		authorities, err := fingerprints(config)
		return Sight{servers, authorities}, err
	}, nil
}

// askServers asks an API server for the addresses that it gives as its own: it takes them from its flags, not from etcd.
func askServers(ctx context.Context, asked *http.Client, url string) ([]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	answer, err := asked.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /api: %s", answer.Status)
	}
	var versions metav1.APIVersions
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&versions); err != nil {
		return nil, fmt.Errorf("GET /api: %w", err)
	}
	var servers []string
	for _, one := range versions.ServerAddressByClientCIDRs {
		if one.ServerAddress != "" {
			servers = append(servers, one.ServerAddress)
		}
	}
	return servers, nil
}

// fingerprints are those of the keys that may sign an API server's certificate. They are read each time, because
// authorities are replaced under a running Pod. None is known if the machine's own authorities are trusted.
func fingerprints(config *rest.Config) (all []string, err error) {
	bundle := config.CAData
	if len(bundle) == 0 && config.CAFile != "" {
		if bundle, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("read the API server's authorities: %w", err)
		}
	}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		authority, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read the API server's authorities: %w", err)
		}
		sum := sha256.Sum256(authority.RawSubjectPublicKeyInfo)
		all = append(all, hex.EncodeToString(sum[:8]))
	}
	return all, nil
}

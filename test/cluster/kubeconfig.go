// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/test/cluster/pki"
)

// contextName is the only context in each kubeconfig that this package writes.
const contextName = "usher-devcluster"

// writeKubeconfig writes a self-contained kubeconfig that only its owner can read.
func writeKubeconfig(path, server, user string, ca []byte, client pki.Pair) error {
	config := api.NewConfig()
	config.Clusters[contextName] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: client.Cert, ClientKeyData: client.Key}
	config.Contexts[contextName] = &api.Context{Cluster: contextName, AuthInfo: user}
	config.CurrentContext = contextName
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig of %s: %w", user, err)
	}
	if err := writeFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return nil
}

// restConfig has no rate limit of its own (QPS -1): the tests set the pace.
func restConfig(server string, ca []byte, client pki.Pair) *rest.Config {
	return &rest.Config{
		Host:  server,
		QPS:   -1,
		Burst: -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: ca, CertData: client.Cert, KeyData: client.Key,
		},
	}
}

// IssueKubeconfig signs a client certificate for a user of the cluster in dir and
// writes a kubeconfig with it below dir. The user has only the rights that RBAC grants
// to the name and the groups. It works from any process that may read dir, while the
// cluster runs.
func IssueKubeconfig(dir, server, user string, now time.Time, groups ...string) (string, error) {
	l := layout{dir: dir}
	authority, err := loadAuthority(l)
	if err != nil {
		return "", err
	}
	client, err := authority.Client(user, now, groups...)
	if err != nil {
		return "", err
	}
	path := l.path("kubeconfigs", userFile(user, groups))
	return path, writeKubeconfig(path, server, user, authority.PEM(), client)
}

// plainRunes are the characters of a user's name that its file name keeps.
const plainRunes = "-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// userFile is a file name for a user: readable, and different for each user and set of
// groups, although file names allow fewer characters than users do.
func userFile(user string, groups []string) string {
	readable := strings.Map(func(r rune) rune {
		if strings.ContainsRune(plainRunes, r) {
			return r
		}
		return '_'
	}, user)
	if readable == user && len(groups) == 0 && len(user) < 100 {
		return user + ".kubeconfig"
	}
	sum := sha256.Sum256([]byte(user + "\x00" + strings.Join(groups, "\x00")))
	return readable[:min(len(readable), 100)] + "-" + hex.EncodeToString(sum[:4]) + ".kubeconfig"
}

func loadAuthority(l layout) (*pki.Authority, error) {
	cert, certErr := os.ReadFile(l.pki("ca.crt"))
	key, keyErr := os.ReadFile(l.pki("ca.key"))
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority (is %s the cluster's folder?): %w", filepath.Clean(l.dir), err)
	}
	return pki.LoadAuthority(pki.Pair{Cert: cert, Key: key})
}

// schedulerConfig is the scheduler's configuration file: the request rate has no flag;
// its default is 50 a second.
func schedulerConfig(l layout) ([]byte, error) {
	text, err := yaml.Marshal(map[string]any{
		"apiVersion":     "kubescheduler.config.k8s.io/v1",
		"kind":           "KubeSchedulerConfiguration",
		"leaderElection": map[string]any{"leaderElect": false},
		"clientConnection": map[string]any{
			"kubeconfig": l.config("kube-scheduler.kubeconfig"), "qps": 5000, "burst": 10000,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the scheduler's configuration: %w", err)
	}
	return text, nil
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// probeTimeout bounds one health request to a component.
const probeTimeout = 2 * time.Second

// Component describes one running component. It is plain data: another process can read
// it from a file and probe the component.
type Component struct {
	// Name is the binary's name, for instance "etcd".
	Name string `json:"name"`
	// Process is the running process.
	Process process.Identity `json:"process"`
	// Port is its port on 127.0.0.1.
	Port int `json:"port"`
	// Started is when it was started.
	Started time.Time `json:"started"`
	// Log is the path of its log.
	Log string `json:"log"`
}

// healthURL is a component's health endpoint.
func healthURL(name string, port int) string {
	switch name {
	case build.Etcd:
		return "http://" + hostPort(port) + "/health"
	case build.ControllerManager:
		return "https://" + hostPort(port) + "/healthz"
	default:
		return "https://" + hostPort(port) + "/readyz"
	}
}

// Prober checks the health of components.
type Prober struct{ client *http.Client }

// NewProber creates a Prober that trusts the certificate authority ca (PEM).
func NewProber(ca []byte) (*Prober, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's certificate authority is no PEM certificate")
	}
	return &Prober{client: newClient(pool)}, nil
}

// ProberFor creates a Prober for the cluster in a directory.
func ProberFor(dir string) (*Prober, error) {
	ca, err := os.ReadFile(layout{dir: dir}.pki("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority: %w", err)
	}
	return NewProber(ca)
}

func newClient(pool *x509.CertPool) *http.Client {
	return &http.Client{Timeout: probeTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		// A kept-alive connection to a component that has ended would be tried first.
		DisableKeepAlives: true,
	}}
}

// Healthy returns nil if the component reports that it is ready, or its answer.
func (p *Prober) Healthy(ctx context.Context, name string, port int) error {
	return get(ctx, p.client, healthURL(name, port))
}

// get returns nil if a URL answers 200.
func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Readers of the audit log recognize our requests by this name.
	req.Header.Set("User-Agent", "usher-devcluster")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<10))
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, resp.Status, essence(string(text)))
	}
	return nil
}

// essence keeps the failures of a readyz answer, which has one check per line: [+] for
// passed and [-] for failed.
func essence(text string) string {
	failed := []string{}
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			failed = append(failed, rest)
		}
	}
	if len(failed) > 0 {
		return strings.Join(failed, "; ")
	}
	return strings.Join(strings.Fields(text), " ")
}

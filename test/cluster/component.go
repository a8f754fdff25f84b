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

// probeTimeout bounds one question to a component.
const probeTimeout = 2 * time.Second

// Component is what is known of one running component. It is plain data: it can
// be written to a file and be probed by another process.
type Component struct {
	// Name is the binary's name, for instance "etcd".
	Name string `json:"name"`
	// Process is the running process.
	Process process.Identity `json:"process"`
	// Port is where it listens on 127.0.0.1.
	Port int `json:"port"`
	// Started is when it was started.
	Started time.Time `json:"started"`
	// Log is the path of its log.
	Log string `json:"log"`
}

// healthURL is where a component tells how it is.
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

// Prober asks components how they are.
type Prober struct{ client *http.Client }

// NewProber makes a Prober that trusts the certificate authority ca (PEM).
func NewProber(ca []byte) (*Prober, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's certificate authority is no PEM certificate")
	}
	return &Prober{client: newClient(pool)}, nil
}

// ProberFor makes a Prober for the cluster in a folder.
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
		// A connection kept to a component that has ended would be tried first.
		DisableKeepAlives: true,
	}}
}

// Healthy returns nil when the component says that it is ready, or its answer.
func (p *Prober) Healthy(ctx context.Context, name string, port int) error {
	return get(ctx, p.client, healthURL(name, port))
}

// get returns nil when a URL answers 200.
func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Who counts requests in an audit log tells ours by this name.
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

// essence keeps what is wrong of a readyz answer, which lists each check on a
// line, good ones with [+] and failed ones with [-].
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

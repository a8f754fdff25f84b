// SPDX-License-Identifier: Apache-2.0

// Package consul keeps entries in Consul's catalog. Each entry has a node of its
// own that no agent runs on, with one service and one passing check: what is
// written to an agent's own node is undone by that agent.
//
// Nothing runs the check, so that it stays passing until the entry is removed,
// node and all, in one transaction.
package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registry"
	"github.com/usher-dev/usher/internal/registry/credentials"
)

// KeyToken is the key of the ACL token in the credentials Secret. For https it
// may hold credentials.KeyCA, KeyCertificate and KeyPrivateKey as well.
const KeyToken = "token"

const (
	headerToken = "X-Consul-Token"
	// headerFiltered says that the token may not read all that there is. Servers
	// before 1.11 do not send it.
	headerFiltered = "X-Consul-Results-Filtered-By-ACLs"
	// maxResponse bounds what is read of an answer, in bytes: about 30,000 entries.
	maxResponse = 64 << 20
	// maxMessage bounds how much of an answer an error repeats, in bytes.
	maxMessage = 256
	// pingService is a name that Ping asks for; nothing is registered by it.
	pingService = "usher-ping"
)

// Options say where Consul is.
type Options struct {
	// Address is the URL of an agent or server, without a path.
	Address string
	// Datacenter is where entries go, that of the agent if empty.
	Datacenter string
	// Secret holds the credentials by the keys above; it may be nil.
	Secret map[string][]byte
}

// Registry implements registry.Connector.
type Registry struct {
	base       string
	datacenter string
	token      string
	client     *http.Client
	transport  *http.Transport
}

var _ registry.Connector = (*Registry)(nil)

// New checks the options and connects to nothing. Errors are permanent and name
// the field or the Secret's key.
func New(options Options) (*Registry, error) {
	base, err := url.Parse(options.Address)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, registry.Permanent(errors.New("consul.address is no http or https address: write http://host:8500"))
	}
	if base.User != nil {
		// Errors repeat the address.
		return nil, registry.Permanent(errors.New("consul.address holds credentials: put them into the credentials Secret"))
	}
	token := strings.TrimSpace(string(options.Secret[KeyToken]))
	if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, registry.Permanent(fmt.Errorf(
			"the credentials Secret's %s holds characters that no token has: put the token's secret id there", KeyToken))
	}
	config, err := credentials.TLS(options.Secret)
	if err != nil {
		return nil, registry.Permanent(err)
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
		TLSClientConfig:     config,
		ForceAttemptHTTP2:   true,
	}
	return &Registry{
		base: strings.TrimRight(options.Address, "/"), datacenter: options.Datacenter, token: token, transport: transport,
		client: &http.Client{
			Transport: transport,
			// A redirect would send the token to whom the user never named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Ping implements registry.Connector. It needs a leader, as a List does.
func (r *Registry) Ping(ctx context.Context) error {
	_, err := r.read(ctx, pingService)
	return err
}

// List implements registry.Connector. The read is consistent: the leader asks
// its followers whether it still is one. An entry whose checks do not pass, so
// that callers do not use it, has the weight 0. The ID of an entry that is not
// on a node of Usher's is <service id>@<node>.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	instances, err := r.read(ctx, service)
	if err != nil {
		return nil, err
	}
	entries := make([]registry.Entry, 0, len(instances))
	for _, i := range instances {
		entries = append(entries, i.entry(service))
	}
	sortByID(entries)
	return entries, nil
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	r.transport.CloseIdleConnections()
	return nil
}

// read returns the service's instances. It fails rather than return some of
// them: who cannot see an entry would think that it is gone.
func (r *Registry) read(ctx context.Context, service string) ([]instance, error) {
	if err := r.mayBeFiltered(ctx); err != nil {
		return nil, err
	}
	answer, err := r.call(ctx, http.MethodGet, "/v1/health/service/"+url.PathEscape(service), "consistent", nil)
	if err != nil {
		return nil, err
	}
	if answer.code != http.StatusOK {
		return nil, r.failure(answer)
	}
	if answer.header.Get(headerFiltered) == "true" {
		return nil, registry.Permanent(fmt.Errorf("the ACL token may not read every node and instance of service %s: "+
			`give it the rules service %q { policy = "write" }, node_prefix "usher-" { policy = "write" } `+
			`and node_prefix "" { policy = "read" }`, service, service))
	}
	var instances []instance
	if err := decode(answer, &instances); err != nil {
		return nil, err
	}
	if instances == nil {
		// Consul writes [] for none: null is another server's word.
		return nil, registry.Permanent(fmt.Errorf("%s answered without a list: it is no Consul", answer.path))
	}
	return instances, nil
}

// mayBeFiltered refuses to list without a token where Consul has ACLs: it would
// leave entries out of its answer, and not say so to somebody unknown.
func (r *Registry) mayBeFiltered(ctx context.Context) error {
	if r.token != "" {
		return nil
	}
	answer, err := r.call(ctx, http.MethodGet, "/v1/acl/token/self", "", nil)
	switch {
	case err != nil:
		return err
	case answer.code == http.StatusUnauthorized && strings.Contains(string(answer.body), "ACL support disabled"):
		return nil
	case answer.code == http.StatusOK, answer.code == http.StatusForbidden:
		return registry.Permanent(fmt.Errorf(
			"there are ACLs, which hide entries: put a token into the key %s of the credentials Secret", KeyToken))
	}
	return r.failure(answer)
}

// answer is what Consul said.
type answer struct {
	path   string
	code   int
	header http.Header
	body   []byte
}

func (r *Registry) call(ctx context.Context, method, path, flag string, question any) (*answer, error) {
	query := url.Values{}
	if r.datacenter != "" {
		query.Set("dc", r.datacenter)
	}
	if flag != "" {
		query.Set(flag, "")
	}
	var body io.Reader // Consul complains of a GET that has one.
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return nil, registry.Permanent(fmt.Errorf("encode the request: %w", err))
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, r.base+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("consul.address: %w", err))
	}
	if r.token != "" {
		request.Header.Set(headerToken, r.token)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, registry.Transient(err)
	}
	defer func() { _ = response.Body.Close() }() // Nothing is lost: it was read or is not wanted.
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return nil, registry.Transient(fmt.Errorf("read the answer: %w", err))
	}
	if len(data) > maxResponse {
		return nil, registry.Permanent(fmt.Errorf("%s%s answered with more than %d bytes", r.base, path, maxResponse))
	}
	return &answer{path: r.base + path, code: response.StatusCode, header: response.Header, body: data}, nil
}

func decode(a *answer, into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return registry.Permanent(fmt.Errorf("%s answered with something else than Consul does: %w", a.path, err))
	}
	return nil
}

// failure types an answer that is none.
func (r *Registry) failure(a *answer) error {
	err := fmt.Errorf("%s answered %d %s: %s", a.path, a.code, http.StatusText(a.code), r.shorten(string(a.body)))
	switch {
	case a.code == http.StatusRequestTimeout, a.code == http.StatusTooManyRequests, a.code >= 500:
		return registry.Transient(err)
	case a.code == http.StatusForbidden, a.code == http.StatusUnauthorized:
		return registry.Permanent(fmt.Errorf("%w; check the key %s of the credentials Secret", err, KeyToken))
	}
	return registry.Permanent(err)
}

// shorten makes text fit for an error; a token that Consul repeats is left out.
func (r *Registry) shorten(text string) string {
	if r.token != "" {
		text = strings.ReplaceAll(text, r.token, "<the token>")
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

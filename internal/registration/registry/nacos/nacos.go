// SPDX-License-Identifier: Apache-2.0

// Package nacos keeps entries as persistent instances of Nacos 3, through its admin
// API. They need no heartbeats.
//
// Nacos has no compare-and-set: if another writer changes our instance between a list
// and a write, that change is lost. Nacos lists an instance only half a second after a
// write, so Apply waits until the list shows what it wrote.
package nacos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.NacosRegistry) *registry.Settings {
	return &registry.Settings{
		Secret: s.CredentialsSecret,
		Root:   cmp.Or(s.NamespaceID, "public") + "/" + cmp.Or(s.Group, "DEFAULT_GROUP") + "/" + cmp.Or(s.Cluster, "DEFAULT"),
		// Nacos itself and its clients obey these keys.
		Obeyed: func(key, _ string) bool { return strings.HasPrefix(key, "preserved.") },
		Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(s.Address, root, secret)
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	root     []string // namespace, group and cluster
	username string
	password string
	now      func() time.Time
	*rest.Client

	login atomic.Pointer[login]
}

// New checks what it gets but does not connect. The address is the URL of a server, to which /nacos
// is appended; the root is namespace/group/cluster, since Nacos lists one cluster at a time. The
// secret has keys of package credentials, all optional, or is nil. Errors are permanent and name
// the field or the Secret's key.
func New(address, root string, secret map[string][]byte) (*Registry, error) {
	username, password := credentials.Login(secret)
	if (username == "") != (password == "") {
		return nil, registry.Permanent(fmt.Errorf(
			"the credentials Secret has only one of %s and %s: put in both, or none", credentials.KeyUsername, credentials.KeyPassword))
	}
	client, err := rest.New(rest.Options{
		Field: "nacos.address", Example: "http://host:8848", Address: address,
		Secret: secret,
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}},
		Hint:   credentials.LoginHint + ", and that the user is an admin",
	})
	if err != nil {
		return nil, err
	}
	parts := strings.Split(root, "/")
	if len(parts) != 3 {
		return nil, registry.Permanent(fmt.Errorf("%q is none of namespace/group/cluster", root))
	}
	return &Registry{Client: client, root: parts, username: username, password: password, now: time.Now}, nil
}

// Ping implements registry.Connector. It logs in if there are credentials, and asks for
// a service that does not exist.
func (r *Registry) Ping(ctx context.Context) error {
	_, err := r.read(ctx, pingService)
	return err
}

// List implements registry.Connector. It returns what callers get from the same server;
// other members of a cluster may be slightly behind. An entry that Nacos hides from
// callers, because it is disabled or because Nacos's own check of its port fails, has
// the weight 0. An entry that is not Usher's has the ID <address>:<port>. Instances in
// other clusters of the service are not listed.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	instances, err := r.read(ctx, service)
	return registry.Listed(identify(instances), err, listed.asEntry)
}

// read returns the service's instances.
func (r *Registry) read(ctx context.Context, service string) ([]instance, error) {
	instances, err := r.ask(ctx, service)
	if err == nil || !errors.Is(err, errNotFound) {
		return instances, err
	}
	// A server that has not loaded its data yet does not know the service either.
	var said any
	if err := r.call(ctx, http.MethodGet, "/nacos/v3/admin/core/state/readiness", nil, &said); err != nil {
		return nil, registry.Transient(fmt.Errorf("the server is not ready: %w", err))
	}
	if instances, err = r.ask(ctx, service); errors.Is(err, errNotFound) {
		return nil, nil
	}
	return instances, err
}

func (r *Registry) ask(ctx context.Context, service string) ([]instance, error) {
	var instances []instance
	if err := r.call(ctx, http.MethodGet, pathInstance+"/list", r.where(service), &instances); err != nil {
		return nil, err
	}
	if instances == nil {
		// Nacos writes [] for none; null comes from another kind of server.
		return nil, registry.Permanent(fmt.Errorf("%s/list answered without a list: check that nacos.address is the one of a Nacos 3", r.URL(pathInstance)))
	}
	return instances, nil
}

// where identifies the service.
func (r *Registry) where(service string) url.Values {
	return url.Values{
		"namespaceId": {r.root[0]}, "groupName": {r.root[1]}, "clusterName": {r.root[2]},
		"serviceName": {service},
	}
}

const (
	pathInstance = "/nacos/v3/admin/ns/instance"
	pathLogin    = "/nacos/v3/auth/user/login"
	// pingService is the name that Ping asks for. Nothing is registered under it.
	pingService = "usher-ping"
	// loginShare sets when a login is renewed: when 1/loginShare of its lifetime is
	// left.
	loginShare = 10
)

// errNotFound means that Nacos knows no such service, or no such cluster of it.
var errNotFound = errors.New("there is no such service")

// login is an access token.
type login struct {
	token string
	until time.Time
}

// result wraps every answer of the API.
type result struct {
	Code    *int
	Message string
	Data    json.RawMessage
}

// call makes a request and decodes its data. If the server no longer knows the login,
// for example after a restart with another key, call logs in again once.
func (r *Registry) call(ctx context.Context, method, path string, form url.Values, into any) error {
	for refused := ""; ; {
		token, err := r.token(ctx, refused)
		if err != nil {
			return err
		}
		answer, err := r.send(ctx, method, path, form, token)
		if err != nil {
			return err
		}
		if answer.Denied() && token != "" && refused == "" {
			refused = token
			continue
		}
		return decode(answer, into)
	}
}

// send makes one request.
func (r *Registry) send(ctx context.Context, method, path string, form url.Values, token string) (*rest.Answer, error) {
	q := rest.Question{Method: method, Path: path, Header: http.Header{}}
	if method == http.MethodPost || method == http.MethodPut {
		q.Body = []byte(form.Encode())
	} else {
		q.Query = form
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	return r.Send(ctx, q)
}

// decode decodes an answer, or returns an error that describes the problem.
func decode(answer *rest.Answer, into any) error {
	var said result
	err := json.Unmarshal(answer.Body, &said)
	isNacos := err == nil && said.Code != nil
	switch {
	case answer.Code == http.StatusNotFound && isNacos && strings.Contains(string(said.Data), "is not found"):
		return errNotFound
	case answer.Code != http.StatusOK:
		return failure(answer)
	case !isNacos:
		return registry.Permanent(fmt.Errorf("%s did not answer like Nacos 3: check nacos.address: %s", answer.Where, answer.Excerpt(string(answer.Body))))
	case *said.Code != 0:
		return registry.Permanent(fmt.Errorf("%s answered: %s", answer.Where, answer.Excerpt(string(answer.Body))))
	}
	return answer.DecodePart(said.Data, "Nacos 3", into)
}

// failure types an unusable answer.
func failure(answer *rest.Answer) error {
	err := answer.Refusal()
	if answer.Code == http.StatusGone || answer.Code == http.StatusNotFound {
		err = fmt.Errorf("%w; Nacos 3.0 or newer is needed", err)
	}
	return err
}

// token logs in unless a login is still valid, and not the one that the server has refused. It
// is empty without credentials.
func (r *Registry) token(ctx context.Context, refused string) (string, error) {
	if r.username == "" {
		return "", nil
	}
	have, now := r.login.Load(), r.now()
	if have != nil && have.token != refused && now.Before(have.until) {
		return have.token, nil
	}
	answer, err := r.send(ctx, http.MethodPost, pathLogin, url.Values{
		credentials.KeyUsername: {r.username}, credentials.KeyPassword: {r.password}}, "")
	if err != nil {
		return "", err
	}
	if answer.Code == http.StatusInternalServerError {
		return "", registry.Transient(fmt.Errorf("%w; some servers answer a wrong password in this way: check the keys %s and %s of the "+
			"credentials Secret", failure(answer), credentials.KeyUsername, credentials.KeyPassword))
	}
	if answer.Code != http.StatusOK {
		return "", failure(answer)
	}
	var said struct {
		AccessToken string
		TokenTTL    int64 // In seconds.
	}
	if err := json.Unmarshal(answer.Body, &said); err != nil || said.AccessToken == "" {
		return "", registry.Permanent(fmt.Errorf("%s answered without an access token: check nacos.address", answer.Where))
	}
	life := time.Duration(said.TokenTTL) * time.Second
	r.login.Store(&login{token: said.AccessToken, until: now.Add(life - life/loginShare)})
	return said.AccessToken, nil
}

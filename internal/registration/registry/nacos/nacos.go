// SPDX-License-Identifier: Apache-2.0

// Package nacos keeps entries as persistent instances of Nacos 2 or 3, through the API that
// the server has for administrators. They need no heartbeats.
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
	// api is the one that the server has, nil before it is known.
	api atomic.Pointer[api]
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
	if err := r.ready(ctx); err != nil {
		return nil, registry.Transient(fmt.Errorf("the server is not ready: %w", err))
	}
	if instances, err = r.ask(ctx, service); errors.Is(err, errNotFound) {
		return nil, nil
	}
	return instances, err
}

func (r *Registry) ask(ctx context.Context, service string) ([]instance, error) {
	a, data, err := r.call(ctx, http.MethodGet, func(a *api) (string, url.Values) {
		return a.list, a.where(r.root, service)
	})
	if err != nil {
		return nil, err
	}
	return a.instances(data, r.URL(a.list))
}

func (r *Registry) ready(ctx context.Context) error {
	a, data, err := r.call(ctx, http.MethodGet, func(a *api) (string, url.Values) { return a.ready, nil })
	if err == nil && !a.isReady(data) {
		err = fmt.Errorf("it answered %s", registry.Excerpt(string(data)))
	}
	return err
}

const (
	// pingService is the name that Ping asks for. Nothing is registered under it.
	pingService = "usher-ping"
	// loginShare sets when a login is renewed: when 1/loginShare of its lifetime is
	// left.
	loginShare = 10
)

// login is an access token.
type login struct {
	token string
	until time.Time
}

// request returns the path and the parameters of a request of an API.
type request func(*api) (path string, form url.Values)

// call makes a request, and returns the API that the server has, with the data of the answer. If the server does
// not know the path any more, its version may have changed: call probes it, and repeats the request once.
func (r *Registry) call(ctx context.Context, method string, request request) (*api, json.RawMessage, error) {
	a, data, err := r.callKnown(ctx, method, request)
	if errors.Is(err, errOther) {
		r.api.Store(nil)
		return r.callKnown(ctx, method, request)
	}
	return a, data, err
}

// callKnown is call for a server whose version has not changed. If the server no longer knows the login, for
// example after a restart with another key, callKnown logs in again once.
func (r *Registry) callKnown(ctx context.Context, method string, request request) (*api, json.RawMessage, error) {
	a, err := r.known(ctx)
	if err != nil {
		return nil, nil, err
	}
	path, form := request(a)
	for refused := ""; ; {
		token, err := r.token(ctx, a, refused)
		if err != nil {
			return nil, nil, err
		}
		answer, err := r.send(ctx, method, path, form, token)
		if err != nil {
			return nil, nil, err
		}
		if answer.Denied() && token != "" && refused == "" {
			refused = token
			continue
		}
		data, err := a.open(answer)
		return a, data, err
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

// token logs in unless a login is still valid, and not the one that the server has refused. It
// is empty without credentials.
func (r *Registry) token(ctx context.Context, a *api, refused string) (string, error) {
	if r.username == "" {
		return "", nil
	}
	have, now := r.login.Load(), r.now()
	if have != nil && have.token != refused && now.Before(have.until) {
		return have.token, nil
	}
	answer, err := r.send(ctx, http.MethodPost, a.login, url.Values{
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

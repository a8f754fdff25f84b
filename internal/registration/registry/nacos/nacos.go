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
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// Options locate Nacos.
type Options struct {
	// Address is the URL of a server, without a path; /nacos is appended.
	Address string
	// Root is where entries are kept, as namespace/group/cluster. Nacos lists one cluster at a
	// time. Default: public/DEFAULT_GROUP/DEFAULT.
	Root string
	// Secret holds the keys of package credentials, all optional. It may be nil.
	Secret map[string][]byte
	// Now is the clock that measures the end of a login. Default: time.Now.
	Now func() time.Time
}

func rootOf(namespace, group, cluster string) string {
	return cmp.Or(namespace, "public") + "/" + cmp.Or(group, "DEFAULT_GROUP") + "/" + cmp.Or(cluster, "DEFAULT")
}

// FromSpec reads the kind's field from a Registry's spec.
func FromSpec(spec *usherv1alpha1.RegistrySpec, _ string) *registry.Settings {
	s := spec.Nacos
	if s == nil {
		return nil
	}
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: rootOf(s.NamespaceID, s.Group, s.Cluster),
		// Nacos itself and its clients obey these keys.
		Obeyed: func(key, _ string) bool { return strings.HasPrefix(key, "preserved.") },
		Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(Options{Address: s.Address, Root: root, Secret: secret})
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	root     []string // namespace, group and cluster
	username string
	password string
	now      func() time.Time
	client   *rest.Client

	mu    sync.Mutex
	login login
}

// New checks the options but does not connect. Errors are permanent and name the field
// or the Secret's key.
func New(options Options) (*Registry, error) {
	username, password := credentials.Login(options.Secret)
	if (username == "") != (password == "") {
		return nil, registry.Permanent(fmt.Errorf(
			"the credentials Secret has only one of %s and %s: put in both, or none", credentials.KeyUsername, credentials.KeyPassword))
	}
	client, err := rest.New(rest.Options{
		Field: "nacos.address", Example: "http://host:8848", Address: options.Address,
		Secret: options.Secret, Idle: parallel, Hidden: []string{password},
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}},
		Hint:   credentials.LoginHint + ", and that the user is an admin",
	})
	if err != nil {
		return nil, err
	}
	root := strings.Split(cmp.Or(options.Root, rootOf("", "", "")), "/")
	if len(root) != 3 {
		return nil, registry.Permanent(fmt.Errorf("%q is none of namespace/group/cluster", options.Root))
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Registry{
		client: client, root: root, username: username, password: password, now: options.Now,
	}, nil
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
	if err != nil {
		return nil, err
	}
	return registry.Entries(identify(instances), listed.asEntry), nil
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	r.client.Close()
	return nil
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
		return nil, registry.Permanent(fmt.Errorf("%s/list answered without a list: check that nacos.address is the one of a Nacos 3", r.client.URL(pathInstance)))
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

// SPDX-License-Identifier: Apache-2.0

// Package kinds holds the one table of all kinds of registry. docs/add-a-registry.md
// explains how to add one.
package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/dns"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/internal/registration/registry/eureka"
	"github.com/usher-dev/usher/internal/registration/registry/haproxy"
	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/internal/registration/registry/service"
	"github.com/usher-dev/usher/internal/registration/registry/webhook"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/internal/registration/registry/zookeeper"
)

// Kind is a row of the table.
type Kind struct {
	// Name is the name of the kind's field in the spec of a Registry.
	Name string
	// Keys are the keys of the credentials Secret that the connector reads. It receives
	// no others.
	Keys []string
	// HoldsBack reports whether the connector can keep an entry and hide it from
	// callers, as onInPlaceUpdate: FailOver requires. Other connectors never get an
	// entry of weight 0.
	HoldsBack bool
	// Gated means that Kubernetes lists the Pods while they are Ready: Usher writes no
	// entries, and turns the Pods' readiness gate instead.
	Gated bool
	// Read reads the kind's field, and returns nil if it is not set. namespace is the
	// Registration's.
	Read func(spec *usherv1alpha1.RegistrySpec, namespace string) *registry.Settings
}

// Cluster is where kinds keep entries if they need no server other than Kubernetes.
type Cluster struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	// Writer writes to the API server.
	Writer client.Writer
	// XDS is what this process serves over xDS, nil if it serves nothing.
	XDS *xds.Store
}

type keys = []string

// table has one row for each kind, sorted by name: Name, Keys, HoldsBack,
// Gated, Read.
func table(in Cluster) []Kind {
	login := credentials.LoginKeys()
	tls := func(others ...string) keys { return slices.Concat(others, credentials.TLSKeys()) }
	return []Kind{
		{"consul", tls(consul.KeyToken), true, false, consul.FromSpec},
		{"dns", keys{dns.KeyName, dns.KeySecret, dns.KeyAlgorithm}, false, false, dns.FromSpec},
		{"endpointSlice", nil, false, false, endpointslice.FromSpec(in.Reader, in.Writer)},
		{"etcd", tls(login...), false, false, etcd.FromSpec},
		{"eureka", tls(login...), true, false, eureka.FromSpec},
		{"haproxy", tls(), true, false, haproxy.FromSpec},
		{"nacos", tls(login...), true, false, nacos.FromSpec},
		{"service", nil, true, true, service.FromSpec(in.Reader)},
		{"webhook", keys{webhook.KeyHMAC, webhook.KeyCA}, false, false, webhook.FromSpec},
		{"xds", nil, true, false, xds.FromSpec(in.Reader, in.Writer, in.XDS)},
		{"zookeeper", login, false, false, zookeeper.FromSpec},
	}
}

// facts is the table for callers that make no connection.
var facts = table(Cluster{})

// Of returns the kind of a Registry and its settings for a Registration in the
// namespace. Both are zero if the Registry sets no kind.
func Of(r *usherv1alpha1.Registry, namespace string) (Kind, registry.Settings) {
	return find(facts, r, namespace)
}

func find(rows []Kind, r *usherv1alpha1.Registry, namespace string) (Kind, registry.Settings) {
	for _, row := range rows {
		if settings := row.Read(&r.Spec, namespace); settings != nil {
			return row, *settings
		}
	}
	return Kind{}, registry.Settings{}
}

// Connect returns a function that makes a connector for a Registry of any kind. root is
// where the Registry keeps its services: Settings.Root or an earlier value of it.
// secret is nil if the Registry names no Secret.
func Connect(in Cluster) func(r *usherv1alpha1.Registry, root string, secret map[string][]byte) (registry.Connector, error) {
	rows := table(in)
	return func(r *usherv1alpha1.Registry, root string, secret map[string][]byte) (registry.Connector, error) {
		kind, settings := find(rows, r, "")
		if kind.Name == "" {
			return nil, registry.Permanent(fmt.Errorf("registry %s sets no kind: set one of %s", r.Name, fields(rows)))
		}
		connector, err := settings.Connect(root, only(secret, kind.Keys))
		if err != nil || settings.Obeyed == nil {
			return connector, err
		}
		return cautious{connector, settings.Obeyed, r.Spec.AllowedMetadata}, nil
	}
}

// only returns the part of a Secret that has the keys.
func only(secret map[string][]byte, keys keys) map[string][]byte {
	part := maps.Clone(secret)
	maps.DeleteFunc(part, func(key string, _ []byte) bool { return !slices.Contains(keys, key) })
	return part
}

// fields lists the fields of all kinds, for messages.
func fields(rows []Kind) string {
	var all []string
	for _, row := range rows {
		all = append(all, "spec."+row.Name)
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " and " + all[last]
}

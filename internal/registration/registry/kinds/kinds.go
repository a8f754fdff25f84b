// SPDX-License-Identifier: Apache-2.0

// Package kinds holds the one table of all kinds of registry. docs/add-a-registry.md
// explains how to add one.
package kinds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/awscloudmap"
	"github.com/usher-dev/usher/internal/registration/registry/awstargetgroup"
	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/dns"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/internal/registration/registry/eureka"
	"github.com/usher-dev/usher/internal/registration/registry/gcpneg"
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
	// Follows means that somebody else writes the entries, such as a cloud's controller that follows a
	// Service: Usher only lists them. The connector is made by registry.Follower.
	Follows bool
	// Overrides reports whether the connector carries out TakeOut and BringBack, as registeredBy: Application
	// requires. Other connectors never get these.
	Overrides bool
	// Counts means that List has the Connections of entries on their way out, as drain.until.connections requires.
	Counts bool
	// Inside means that the entries are kept in this cluster, or by this process: no other cluster has any there.
	Inside bool
	// settings are those of a Registry of the kind, nil for one of another kind.
	settings *registry.Settings
}

// Cluster is where kinds keep entries if they need no server other than Kubernetes.
type Cluster struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	// Writer writes to the API server.
	Writer client.Writer
	// AWS and CloudMap are this process's clients of AWS, nil for new ones.
	AWS      *awstargetgroup.Clients
	CloudMap *awscloudmap.Clients
	// GCP are this process's clients of Google Cloud, nil for new ones.
	GCP *gcpneg.Clients
	// XDS is what this process serves over xDS, nil if it serves nothing.
	XDS *xds.Store
}

type keys = []string

// table has one row for each kind, sorted by name, with the settings of a Registry for Registrations of a namespace.
func table(in Cluster, spec *usherv1alpha1.RegistrySpec, namespace string) []Kind {
	login := credentials.LoginKeys()
	tls := func(others ...string) keys { return slices.Concat(others, credentials.TLSKeys()) }
	managed := spec.AWSTargetGroup != nil && spec.AWSTargetGroup.Manage
	return []Kind{
		{Name: "awsCloudMap", Keys: awsapi.Keys(), HoldsBack: true, settings: of(spec.AWSCloudMap, awscloudmap.FromSpec(in.CloudMap))},
		{
			Name: "awsTargetGroup", Keys: awsapi.Keys(), HoldsBack: !managed, Follows: !managed,
			settings: of(spec.AWSTargetGroup, awstargetgroup.FromSpec(in.Reader, in.AWS, namespace)),
		},
		{
			Name: "consul", Keys: tls(consul.KeyToken, consul.KeyAgentToken), HoldsBack: true,
			Overrides: spec.Consul != nil && spec.Consul.Agents != nil, settings: of(spec.Consul, consul.FromSpec),
		},
		{Name: "dns", Keys: keys{dns.KeyName, dns.KeySecret, dns.KeyAlgorithm}, settings: of(spec.DNS, dns.FromSpec)},
		{Name: "endpointSlice", Inside: true, settings: of(spec.EndpointSlice, endpointslice.FromSpec(in.Reader, in.Writer, namespace))},
		{Name: "etcd", Keys: tls(login...), settings: of(spec.Etcd, etcd.FromSpec(spec.Timeout))},
		{Name: "eureka", Keys: tls(login...), HoldsBack: true, Overrides: true, settings: of(spec.Eureka, eureka.FromSpec)},
		{
			Name: "gcpNEG", Keys: gcpneg.Keys(), HoldsBack: true, Follows: true,
			settings: of(spec.GCPNEG, gcpneg.FromSpec(in.Reader, in.GCP, namespace)),
		},
		{Name: "haproxy", Keys: tls(), HoldsBack: true, Counts: true, settings: of(spec.HAProxy, haproxy.FromSpec)},
		{Name: "nacos", Keys: tls(login...), HoldsBack: true, Overrides: true, settings: of(spec.Nacos, nacos.FromSpec)},
		{Name: "service", HoldsBack: true, Gated: true, Inside: true, settings: of(spec.Service, service.FromSpec(in.Reader, namespace))},
		{Name: "webhook", Keys: keys{webhook.KeyHMAC, credentials.KeyCA}, settings: of(spec.Webhook, webhook.FromSpec)},
		{Name: "xds", HoldsBack: true, Inside: true, settings: of(spec.XDS, xds.FromSpec(in.Reader, in.Writer, in.XDS, namespace))},
		{Name: "zookeeper", Keys: tls(login...), settings: of(spec.ZooKeeper, zookeeper.FromSpec)},
	}
}

// of is nil if the field is not set.
func of[S any](field *S, from func(*S) *registry.Settings) *registry.Settings {
	if field == nil {
		return nil
	}
	return from(field)
}

// Of returns the kind of a Registry and its settings for a Registration in the
// namespace. Both are zero if the Registry sets no kind.
func Of(r *usherv1alpha1.Registry, namespace string) (Kind, registry.Settings) {
	return find(table(Cluster{}, &r.Spec, namespace))
}

func find(rows []Kind) (Kind, registry.Settings) {
	kind := ptr.Deref(list.Find(rows, func(row *Kind) bool { return row.settings != nil }), Kind{})
	return kind, ptr.Deref(kind.settings, registry.Settings{})
}

// Connect returns a function that makes a connector for a Registry of any kind. root is
// where the Registry keeps its services: Settings.Root or an earlier value of it.
// secret is nil if the Registry names no Secret.
func Connect(in Cluster) func(r *usherv1alpha1.Registry, root string, secret map[string][]byte) (registry.Connector, error) {
	return func(r *usherv1alpha1.Registry, root string, secret map[string][]byte) (registry.Connector, error) {
		rows := table(in, &r.Spec, "")
		kind, settings := find(rows)
		if kind.Name == "" {
			return nil, registry.Permanent(fmt.Errorf("registry %s sets no kind: set one of %s", r.Name, fields(rows)))
		}
		secret = only(secret, kind.Keys)
		if settings.Secret != nil {
			if err := lacks(secret, kind); err != nil {
				return nil, registry.Permanent(fmt.Errorf("the Secret %s/%s, which spec.%s.credentialsSecret names, %w",
					settings.Secret.Namespace, settings.Secret.Name, kind.Name, err))
			}
		}
		connector, err := settings.Connect(root, secret)
		if err != nil || settings.Obeyed == nil {
			return connector, err
		}
		return cautious{connector, settings.Obeyed, r.Spec.AllowedMetadata}, nil
	}
}

// lacks says what a Secret lacks that a Registry names: without credentials, or with a part of them, the
// registry would take Usher for anybody, and some answers for Usher's.
func lacks(secret map[string][]byte, kind Kind) error {
	filled := func(key string) bool { return len(bytes.TrimSpace(secret[key])) > 0 }
	for _, key := range kind.Keys {
		if _, there := secret[key]; there && !filled(key) && !slices.Contains(credentials.TLSKeys(), key) {
			return fmt.Errorf("has an empty key %s: put the value there, or remove the key", key)
		}
	}
	switch {
	case !slices.ContainsFunc(kind.Keys, filled):
		return fmt.Errorf("has none of the keys %s: put the credentials there, or remove credentialsSecret", strings.Join(kind.Keys, ", "))
	case filled(credentials.KeyCertificate) != filled(credentials.KeyPrivateKey):
		return fmt.Errorf("has only one of the keys %s and %s: put in both, or none", credentials.KeyCertificate, credentials.KeyPrivateKey)
	}
	return nil
}

// only returns the part of a Secret that has the keys.
func only(secret map[string][]byte, keys keys) map[string][]byte {
	part := maps.Clone(secret)
	maps.DeleteFunc(part, func(key string, _ []byte) bool { return !slices.Contains(keys, key) })
	return part
}

// fields lists the fields of all kinds, for messages.
func fields(rows []Kind) string {
	all := list.Map(rows, func(row Kind) string { return "spec." + row.Name })
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " and " + all[last]
}

// cautious is a connector that refuses metadata which callers would obey or execute, unless
// the Registry allows it: who may write a Registration is not trusted with the callers.
type cautious struct {
	registry.Connector
	obeyed  func(key, value string) bool
	allowed []string
}

// Apply implements registry.Connector.
func (c cautious) Apply(ctx context.Context, service string, changes []registry.Change) error {
	var harmless []registry.Change
	var refused []error
	for _, change := range changes {
		if err := c.check(change); err != nil {
			refused = append(refused, change.Refused(registry.Permanent(err)))
			continue
		}
		harmless = append(harmless, change)
	}
	if len(harmless) > 0 {
		refused = append(refused, c.Connector.Apply(ctx, service, harmless))
	}
	return errors.Join(refused...)
}

func (c cautious) check(change registry.Change) error {
	if change.Op != registry.Put {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(change.Entry.Metadata)) {
		values := []string{change.Entry.Metadata[key]}
		if key == registry.MetaTags {
			values = strings.Split(values[0], ",")
		}
		for _, value := range values {
			pair := key + "=" + value
			if c.obeyed(key, value) && !slices.Contains(c.allowed, key) && !slices.Contains(c.allowed, pair) {
				return fmt.Errorf("instance.metadata or instance.tags has %q, which callers of this registry obey rather than read: "+
					"remove it, or have it listed in spec.allowedMetadata of the Registry, with its value or as %q", registry.Excerpt(pair), key)
			}
		}
	}
	return nil
}

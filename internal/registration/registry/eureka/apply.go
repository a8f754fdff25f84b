// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// Apply implements registry.Connector. It compares each change with the current
// instance, read past Eureka's cache.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	errs := registry.Each(ctx, len(changes), parallel, func(n int) error { return r.one(ctx, service, changes[n]) })
	var refused []error
	var other error // One stands for all: a server that is down fails every change.
	for n, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, rest.ErrDenied), errors.Is(err, registry.ErrTransient):
			other = cmp.Or(other, err)
		default:
			refused = append(refused, changes[n].Refused(err))
		}
	}
	return errors.Join(append(refused, other)...)
}

func (r *Registry) one(ctx context.Context, service string, c registry.Change) error {
	app := application(service)
	// Also if nothing is left to do or the change is refused: it may have been computed
	// from an old list.
	r.written.Store([2]string{app, c.Entry.ID}, nil)
	there, err := r.actual(ctx, app, c.Entry.ID)
	if err != nil {
		return err
	}
	var have *registry.Entry
	if there != nil {
		have = new(there.entry())
	}
	needed, err := c.Check(have)
	if err != nil {
		return err
	}
	switch {
	case !needed:
		return nil
	case c.Op == registry.TakeOut:
		return r.write(ctx, http.MethodPut, pathOf(app, c.Entry.ID, "status")+"?value="+outOfService, nil)
	case c.Op == registry.BringBack:
		// Without a value, Eureka asks the application for its status, by the answer to its next heartbeat.
		return r.write(ctx, http.MethodDelete, pathOf(app, c.Entry.ID, "status"), nil)
	case c.Op == registry.Remove:
		return r.write(ctx, http.MethodDelete, pathOf(app, c.Entry.ID), nil)
	case c.Entry.Weight == 0 && there != nil:
		// Eureka keeps an instance's status through a registration.
		return r.write(ctx, http.MethodPut, pathOf(app, c.Entry.ID, "status")+"?value="+outOfService, nil)
	}
	return r.put(ctx, service, c.Entry, there)
}

// put registers the instance, and reverts a status that someone else set: Eureka keeps
// a status through a registration.
func (r *Registry) put(ctx context.Context, service string, e registry.Entry, there *instance) error {
	dirty := r.clock.Now().UnixMilli()
	if there != nil {
		// Eureka ignores a registration older than what it has.
		dirty = max(dirty, int64(there.LastDirtyTimestamp)+1)
	}
	want, err := encode(service, e, r.lease, dirty)
	if err != nil {
		return err
	}
	app := application(service)
	err = r.write(ctx, http.MethodPost, pathOf(app), map[string]instance{"instance": want})
	if err != nil || there == nil || there.Status == up && (there.OverriddenStatus == unknown || there.OverriddenStatus == "") {
		return err
	}
	return r.write(ctx, http.MethodDelete, pathOf(app, e.ID, "status")+"?value="+up, nil)
}

// Metadata keys that Usher writes in addition to the owner. metaID repeats the
// instance's own ID: metadata copied to another instance has the wrong one, which shows
// that the copy is not Usher's.
const (
	metaID = registry.MetaPrefix + "id"
	// metaWeight is where Spring Cloud's load balancers look for a weight.
	metaWeight = "weight"
)

const up, unknown, outOfService = "UP", "UNKNOWN", "OUT_OF_SERVICE"

// metaKey matches keys that are also names in XML, which some clients read.
var metaKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// number is written as a number but also read from a string: the form depends on the
// server's version.
type number int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	value, err := strconv.ParseInt(string(bytes.Trim(data, `"`)), 10, 64)
	*n = number(value)
	return err
}

// several is a list. Servers before 1.4 omit the brackets around a single element.
type several []instance

// UnmarshalJSON implements json.Unmarshaler.
func (s *several) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return json.Unmarshal(data, (*[]instance)(s))
	}
	var one instance
	err := json.Unmarshal(data, &one)
	*s = several{one}
	return err
}

type port struct {
	Number  number `json:"$"`
	Enabled string `json:"@enabled"`
}

// instance is an instance in Eureka's form, with only the fields that matter here.
type instance struct {
	InstanceID         string            `json:"instanceId,omitempty"`
	App                string            `json:"app"`
	HostName           string            `json:"hostName"`
	IPAddr             string            `json:"ipAddr"`
	VIPAddress         string            `json:"vipAddress,omitempty"`
	Status             string            `json:"status"`
	OverriddenStatus   string            `json:"overriddenStatus,omitempty"`
	Port               port              `json:"port"`
	SecurePort         port              `json:"securePort"`
	DataCenterInfo     any               `json:"dataCenterInfo"`
	LeaseInfo          any               `json:"leaseInfo"`
	Metadata           map[string]string `json:"metadata,omitempty"`
	LastDirtyTimestamp number            `json:"lastDirtyTimestamp"`
	// Coordinating is for Eureka's own servers, but servers expect the field.
	Coordinating string `json:"isCoordinatingDiscoveryServer,omitempty"`
}

// id returns the ID, or the host name if an old client gave no ID.
func (i instance) id() string { return cmp.Or(i.InstanceID, i.HostName) }

// entry converts the instance to an entry.
func (i instance) entry() registry.Entry {
	e := registry.Entry{ID: i.id(), Address: i.IPAddr, Port: int32(i.Port.Number), Weight: 1, Version: i.version()}
	if i.Port.Enabled == "false" {
		e.Port = int32(i.SecurePort.Number)
	}
	ours := i.Metadata[metaID] == i.id() && registry.MarkedOwner(i.Metadata).PodUID != ""
	e.SetMarkedMetadata(i.Metadata, func(key string) bool { return strings.HasPrefix(key, "@") || ours && key == metaWeight })
	if ours {
		e.Owner, e.Weight = registry.MarkedOwner(i.Metadata), weight(i.Metadata)
	}
	if i.Status != up {
		e.Weight = 0
	}
	if !ours {
		e.Override, e.Hidden = i.overridden(), i.hidden()
	}
	return e
}

// overridden reports whether an overridden status keeps callers away. Eureka does not tell who set it.
func (i instance) overridden() bool {
	return i.OverriddenStatus != "" && i.OverriddenStatus != unknown && i.OverriddenStatus != up
}

// hidden is why callers do not get the instance; empty if they do. While an application says that it is down or
// starting, Eureka lists that and not the overridden status.
func (i instance) hidden() string {
	switch i.Status {
	case up:
		return ""
	case unknown:
		return "its status is UNKNOWN: Eureka asks the application for it at its next heartbeat"
	}
	return "its status is " + registry.Excerpt(i.Status)
}

// weight reads what encode wrote. A value that is no number becomes 0, which differs
// from every wanted weight.
func weight(meta map[string]string) int32 {
	weight, err := strconv.ParseInt(meta[metaWeight], 10, 32)
	if err != nil {
		return 0
	}
	return int32(weight)
}

// version changes with every registration, status and metadata, but not with renewals.
func (i instance) version() string {
	// Maps are printed in the order of their keys.
	return registry.Digest(fmt.Appendf(nil, "%d %q %t %q %d %d %q",
		i.LastDirtyTimestamp, i.Status, i.overridden(), i.IPAddr, i.Port.Number, i.SecurePort.Number, i.Metadata))
}

// host is an address as the host of a URL: clients make one of the host name and the port as they are.
func host(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// encode converts an entry to an instance. Errors are permanent.
func encode(service string, e registry.Entry, lease time.Duration, dirty int64) (instance, error) {
	meta, err := e.MarkedMetadata(func(key, _ string) error {
		switch {
		case key == metaWeight:
			return fmt.Errorf("the key %q is instance.weight: set that", key)
		case !metaKey.MatchString(key):
			return fmt.Errorf("the key %q is not a name in XML: use letters, digits, dots, dashes and underscores", key)
		}
		return nil
	})
	if err != nil {
		return instance{}, err
	}
	meta[metaID], meta[metaWeight] = e.ID, strconv.Itoa(int(max(e.Weight, 1)))
	return instance{
		InstanceID: e.ID, App: application(service), HostName: host(e.Address), IPAddr: e.Address, VIPAddress: service,
		Status: up, OverriddenStatus: unknown,
		Port: port{Number: number(e.Port), Enabled: "true"}, SecurePort: port{Number: 443, Enabled: "false"},
		DataCenterInfo: map[string]string{"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
		LeaseInfo:      map[string]any{"renewalIntervalInSecs": RenewInterval / time.Second, "durationInSecs": lease / time.Second},
		Metadata:       meta, LastDirtyTimestamp: number(dirty), Coordinating: "false",
	}, nil
}

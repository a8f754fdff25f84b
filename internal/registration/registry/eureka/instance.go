// SPDX-License-Identifier: Apache-2.0

package eureka

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Keys of an instance's metadata that Usher writes beside the owner. metaID repeats
// the instance's own: metadata that was copied to another one says by it that it is
// not Usher's.
const (
	metaID = registry.MetaPrefix + "id"
	// metaWeight is where load balancers of Spring Cloud look for a weight.
	metaWeight = "weight"
)

const (
	up           = "UP"
	unknown      = "UNKNOWN"
	outOfService = "OUT_OF_SERVICE"
)

// metaKey is what is a name in XML, too, which is how some clients read.
var metaKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// number is written as one, and read from a string as well: it depends on the
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

// several is a list; servers of before 1.4 leave the brackets out around one.
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

type leaseInfo struct {
	RenewalIntervalInSecs number `json:"renewalIntervalInSecs"`
	DurationInSecs        number `json:"durationInSecs"`
}

type dataCenterInfo struct {
	Class string `json:"@class"`
	Name  string `json:"name"`
}

// instance is one as Eureka has it, as far as it concerns us.
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
	DataCenterInfo     dataCenterInfo    `json:"dataCenterInfo"`
	LeaseInfo          leaseInfo         `json:"leaseInfo"`
	Metadata           map[string]string `json:"metadata,omitempty"`
	LastDirtyTimestamp number            `json:"lastDirtyTimestamp"`
	// Coordinating is for Eureka's own servers; they want to see the field.
	Coordinating string `json:"isCoordinatingDiscoveryServer,omitempty"`
}

// id is the host's name where clients of old gave none.
func (i instance) id() string {
	if i.InstanceID == "" {
		return i.HostName
	}
	return i.InstanceID
}

// entry translates.
func (i instance) entry() registry.Entry {
	e := registry.Entry{ID: i.id(), Address: i.IPAddr, Port: int32(i.Port.Number), Weight: 1, Version: i.version()}
	if i.Port.Enabled == "false" {
		e.Port = int32(i.SecurePort.Number)
	}
	ours := i.Metadata[metaID] == i.id() && registry.MarkedOwner(i.Metadata).PodUID != ""
	for key, value := range i.Metadata {
		if strings.HasPrefix(key, registry.MetaPrefix) || strings.HasPrefix(key, "@") || ours && key == metaWeight {
			continue
		}
		if e.Metadata == nil {
			e.Metadata = map[string]string{}
		}
		e.Metadata[key] = value
	}
	if ours {
		e.Owner, e.Weight = registry.MarkedOwner(i.Metadata), weight(i.Metadata)
	}
	if i.Status != up {
		e.Weight = 0
	}
	return e
}

// weight reads what encode wrote. One that is no number becomes 0, which is not as it
// should be, whatever that is.
func weight(meta map[string]string) int32 {
	weight, err := strconv.ParseInt(meta[metaWeight], 10, 32)
	if err != nil {
		return 0
	}
	return int32(weight)
}

// version changes with every registration, status and metadata; renewals leave
// it alone.
func (i instance) version() string {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%d %q %q %d %d", i.LastDirtyTimestamp, i.Status, i.IPAddr, i.Port.Number, i.SecurePort.Number)
	for _, key := range slices.Sorted(maps.Keys(i.Metadata)) {
		_, _ = fmt.Fprintf(sum, " %q=%q", key, i.Metadata[key])
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// encode is the instance that an entry becomes. Errors are permanent.
func encode(service string, e registry.Entry, lease time.Duration, dirty int64) (instance, error) {
	meta := make(map[string]string, len(e.Metadata)+7)
	for key, value := range e.Metadata {
		switch {
		case strings.HasPrefix(key, registry.MetaPrefix):
			return instance{}, registry.Permanent(fmt.Errorf("instance.metadata: the key %q begins as Usher's own do: use another", key))
		case key == metaWeight:
			return instance{}, registry.Permanent(fmt.Errorf("instance.metadata: the key %q is instance.weight: set that", key))
		case !metaKey.MatchString(key):
			return instance{}, registry.Permanent(fmt.Errorf(
				"instance.metadata: the key %q is no name in XML: use letters, digits, dots, dashes and underscores", key))
		}
		meta[key] = value
	}
	meta[metaID], meta[metaWeight] = e.ID, strconv.Itoa(int(max(e.Weight, 1)))
	e.Owner.Mark(meta)
	return instance{
		InstanceID: e.ID, App: application(service), HostName: e.Address, IPAddr: e.Address, VIPAddress: service,
		Status: up, OverriddenStatus: unknown,
		Port: port{Number: number(e.Port), Enabled: "true"}, SecurePort: port{Number: 443, Enabled: "false"},
		DataCenterInfo: dataCenterInfo{Class: "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", Name: "MyOwn"},
		LeaseInfo: leaseInfo{
			RenewalIntervalInSecs: number(RenewInterval / time.Second), DurationInSecs: number(lease / time.Second)},
		Metadata: meta, LastDirtyTimestamp: number(dirty), Coordinating: "false",
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// api is one of the APIs that Nacos has had for administrators. Only they list what callers do not get.
type api struct {
	// probe is a path that only servers with this API answer, whoever asks.
	probe string
	// The paths of logins, of the server's readiness, of an instance to write, and of a service's instances.
	login, ready, instance, list string
	// isReady tells whether an answer of that path means that the server has loaded its data.
	isReady func(data json.RawMessage) bool
	// where returns the parameters for a service, below namespace, group and cluster.
	where func(root []string, service string) url.Values
	// open returns the data of an answer. Errors are errNotFound, or are those of a connector.
	open func(*rest.Answer) (json.RawMessage, error)
	// instances reads the data of a list, which is that of an address.
	instances func(data json.RawMessage, address string) ([]instance, error)
}

// errNotFound means that Nacos knows no such service, or no such cluster of it.
var errNotFound = errors.New("there is no such service")

// notFound is in what all versions say about a service that they do not know.
const notFound = "is not found"

// admin3 is the admin API of Nacos 3. It wraps each answer.
var admin3 = api{
	probe: "/nacos/v3/admin/core/state/readiness",
	login: "/nacos/v3/auth/user/login", ready: "/nacos/v3/admin/core/state/readiness",
	isReady:  func(json.RawMessage) bool { return true },
	instance: "/nacos/v3/admin/ns/instance", list: "/nacos/v3/admin/ns/instance/list",
	where: func(root []string, service string) url.Values {
		return url.Values{
			"namespaceId": {root[0]}, "groupName": {root[1]}, "clusterName": {root[2]},
			"serviceName": {service},
		}
	},
	open: func(answer *rest.Answer) (json.RawMessage, error) {
		said, isWrapped := unwrap(answer)
		switch {
		case answer.Code == http.StatusNotFound && isWrapped && strings.Contains(string(said.Data), notFound):
			return nil, errNotFound
		case answer.Code != http.StatusOK:
			return nil, failure(answer)
		case !isWrapped:
			return nil, registry.Permanent(fmt.Errorf("%s did not answer like Nacos 3: check nacos.address: %s",
				answer.Where, answer.Excerpt(string(answer.Body))))
		case *said.Code != 0:
			return nil, registry.Permanent(fmt.Errorf("%s answered: %s", answer.Where, answer.Excerpt(string(answer.Body))))
		}
		return said.Data, nil
	},
	instances: func(data json.RawMessage, address string) ([]instance, error) {
		var instances []instance
		return checked(&instances, json.Unmarshal(data, &instances), address)
	},
}

// open1 is the open API of Nacos 1 and 2, with what their console asks for. Lists come in pages; writes ignore the page.
var open1 = api{
	probe: "/nacos/v1/ns/operator/switches",
	login: "/nacos/v1/auth/login", ready: "/nacos/v1/ns/operator/metrics",
	isReady: func(data json.RawMessage) bool {
		var said struct{ Status string }
		return json.Unmarshal(data, &said) == nil && said.Status == "UP"
	},
	instance: "/nacos/v1/ns/instance", list: "/nacos/v1/ns/catalog/instances",
	where: func(root []string, service string) url.Values {
		return url.Values{
			"namespaceId": {root[0]}, "groupName": {root[1]}, "clusterName": {root[2]},
			"serviceName": {root[1] + "@@" + service},
			"pageNo":      {"1"}, "pageSize": {strconv.Itoa(math.MaxInt32)},
		}
	},
	open: func(answer *rest.Answer) (json.RawMessage, error) {
		switch {
		case answer.Code == http.StatusNotFound && strings.Contains(string(answer.Body), notFound):
			return nil, errNotFound
		case answer.Code != http.StatusOK:
			return nil, failure(answer)
		}
		return answer.Body, nil
	},
	instances: func(data json.RawMessage, address string) ([]instance, error) {
		var page struct {
			List  []instance
			Count int
		}
		instances, err := checked(&page.List, json.Unmarshal(data, &page), address)
		if err == nil && page.Count != len(instances) {
			err = registry.Transient(fmt.Errorf("%s listed %d of %d instances", address, len(instances), page.Count))
		}
		return instances, err
	},
}

// recognized returns the API of the server that gave an answer to a probe, nil if that is not an answer of Nacos.
func recognized(answer *rest.Answer) (*api, error) {
	if isOther(answer) || answer.Denied() {
		return nil, nil
	}
	var said struct {
		Name               string
		HealthCheckEnabled *bool
	}
	_, isWrapped := unwrap(answer)
	switch err := json.Unmarshal(answer.Body, &said); {
	case isWrapped:
		return &admin3, nil
	case err != nil || said.HealthCheckEnabled == nil:
		return nil, nil
	case said.Name == "R-NACOS":
		return nil, errRNacos
	}
	return &open1, nil
}

// errRNacos is about another server that has the API of Nacos 2.
var errRNacos = registry.Permanent(errors.New("nacos.address is that of an r-nacos, which does not list " +
	"disabled instances, so that Usher cannot read them back: use Nacos 2 or 3"))

// result wraps every answer of the admin API.
type result struct {
	Code    *int
	Message string
	Data    json.RawMessage
}

func unwrap(answer *rest.Answer) (said result, isWrapped bool) {
	err := json.Unmarshal(answer.Body, &said)
	return said, err == nil && said.Code != nil
}

// checked returns a list that was read. Nacos writes [] for none; null comes from another kind of server.
func checked(instances *[]instance, err error, address string) ([]instance, error) {
	if err != nil || *instances == nil {
		return nil, registry.Permanent(fmt.Errorf(
			"%s answered without a list: check that nacos.address is the one of a Nacos 2 or 3", address))
	}
	return *instances, nil
}

// errOther means that the server is none of Nacos, or of another version than it was.
var errOther = errors.New("it has to be Nacos 2 or 3")

// isOther tells whether the server does not have what it was asked for.
func isOther(answer *rest.Answer) bool {
	return answer.Code == http.StatusNotFound || answer.Code == http.StatusGone
}

// failure types an unusable answer.
func failure(answer *rest.Answer) error {
	err := answer.Refusal()
	if isOther(answer) {
		err = fmt.Errorf("%w; %w", err, errOther)
	}
	return err
}

// known returns the API that the server has. It asks the server, unless that is known.
func (r *Registry) known(ctx context.Context) (*api, error) {
	if a := r.api.Load(); a != nil {
		return a, nil
	}
	var denied, others error
	for _, path := range []string{admin3.probe, open1.probe} {
		answer, err := r.send(ctx, http.MethodGet, path, nil, "")
		if err != nil {
			return nil, err
		}
		if a, err := recognized(answer); a != nil || err != nil {
			r.api.Store(a)
			return a, err
		}
		switch err := answer.Refusal(); {
		case errors.Is(err, registry.ErrTransient):
			return nil, err
		case answer.Denied():
			denied = err
		default:
			others = errors.Join(others, err)
		}
	}
	if denied != nil { // Something before Nacos denied it: Nacos itself answers probes without a login.
		return nil, denied
	}
	return nil, registry.Permanent(fmt.Errorf("there is no Nacos 2 or 3: check nacos.address: %w", others))
}

// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	// The types of templates.json.
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// templates are the resources of each service except its endpoints, by type, for a service
// that is called NAME.
//
//go:embed templates.json
var templates []byte

var templateOf = sync.OnceValues(func() (byType map[string]json.RawMessage, err error) {
	return byType, json.Unmarshal(templates, &byType)
})

// fixed makes a resource of any type except endpoints. It follows from the name alone,
// so a client can ask for a service before it has an instance.
func fixed(typeURL, name string) (resource, error) {
	byType, err := templateOf()
	if err != nil {
		return resource{}, fmt.Errorf("read the templates: %w", err)
	}
	data := &anypb.Any{}
	if err := protojson.Unmarshal(bytes.ReplaceAll(byType[typeURL], []byte("NAME"), []byte(name)), data); err != nil {
		return resource{}, fmt.Errorf("encode %s of %s: %w", typeURL, name, err)
	}
	return resource{data: data, version: registry.Digest(data.Value)}, nil
}

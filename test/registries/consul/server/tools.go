// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package server pins the Consul that the connector is tested with: the newest one
// whose modules can all be verified against Go's checksum database.
package server

import _ "github.com/hashicorp/consul"

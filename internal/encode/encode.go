// SPDX-License-Identifier: Apache-2.0

// Package encode turns values into JSON.
package encode

import (
	"encoding/json"
	"fmt"
)

// JSON encodes strings, numbers, times, and maps, lists and structs of them, which always succeeds.
// Anything else is a bug: it panics, and the caller of the connector or controller turns that into an
// error.
func JSON(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Errorf("encode %T: %w", value, err))
	}
	return data
}

// SPDX-License-Identifier: Apache-2.0

package toys

import (
	"testing"

	"example.com/project/test/integration/scene"
)

var words = scene.Words([]scene.Word{
	{Name: "make", Args: "TOY", Does: "makes a toy, " +
		"and paints it", Run: func(*testing.T, string) {}},
	{Name: "sleep", Does: "does nothing", Run: func(*testing.T, string) {}},
})

// SPDX-License-Identifier: Apache-2.0

package registration

import "time"

const namespace = "demo"

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

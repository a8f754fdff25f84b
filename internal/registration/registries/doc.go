// SPDX-License-Identifier: Apache-2.0

// Package registries is what a process knows of the registries themselves, whoever asks them: their connectors, when each
// last answered, how long one that failed is left alone, and how many changes and listings it takes now.
//
// A Pool is shared by all passes and by the Prober, and is safe for concurrent use. No pass waits for a registry that is
// down: Down says so at once, and the Prober finds out when it answers again.
package registries

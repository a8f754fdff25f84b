// SPDX-License-Identifier: Apache-2.0

// Package collectors is what both halves do with Prometheus alike.
package collectors

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers a collector, or takes over the one that an earlier controller of
// this process has registered.
func Register[C prometheus.Collector](registerer prometheus.Registerer, collector *C) error {
	err := registerer.Register(*collector)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			*collector = existing
			return nil
		}
	}
	return err
}

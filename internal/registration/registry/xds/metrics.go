// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the server's Prometheus metrics.
type metrics struct {
	streams   prometheus.Gauge
	responses prometheus.Counter
	refusals  prometheus.Counter
}

// newMetrics registers the metrics.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "usher_xds_streams",
			Help: "Clients of xDS that are connected to this replica.",
		}),
		responses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "usher_xds_responses_total",
			Help: "Answers that were sent to clients of xDS.",
		}),
		refusals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "usher_xds_refusals_total",
			Help: "Answers that clients of xDS refused.",
		}),
	}
	return m, errors.Join(registerer.Register(m.streams), registerer.Register(m.responses), registerer.Register(m.refusals))
}

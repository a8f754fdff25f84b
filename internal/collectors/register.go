// SPDX-License-Identifier: Apache-2.0

// Package collectors has what both halves need of Prometheus.
package collectors

import (
	"errors"
	"sync"

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

// Left is a collector of the metrics of objects as their last passes left them, by the object's key.
type Left[K comparable] struct {
	kinds []*prometheus.Desc

	mu      sync.Mutex
	metrics map[K]func(to chan<- prometheus.Metric)
}

// NewLeft returns a Left for the described metrics.
func NewLeft[K comparable](kinds ...*prometheus.Desc) *Left[K] {
	return &Left[K]{kinds: kinds, metrics: map[K]func(chan<- prometheus.Metric){}}
}

// Put replaces the metrics of an object. They are sent at each scrape.
func (l *Left[K]) Put(key K, metrics func(to chan<- prometheus.Metric)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.metrics[key] = metrics
}

// Forget drops the metrics of an object that is gone.
func (l *Left[K]) Forget(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.metrics, key)
}

// Describe implements prometheus.Collector.
func (l *Left[K]) Describe(to chan<- *prometheus.Desc) {
	for _, kind := range l.kinds {
		to <- kind
	}
}

// Collect implements prometheus.Collector.
func (l *Left[K]) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, send := range l.metrics {
		send(to)
	}
}

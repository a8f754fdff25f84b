// SPDX-License-Identifier: Apache-2.0

// Package list has what package slices lacks.
package list

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Map returns the result of f for each element; nil if there is none.
func Map[S, T any](all []S, f func(S) T) []T {
	out := slices.Grow([]T(nil), len(all))
	for _, one := range all {
		out = append(out, f(one))
	}
	return out
}

// Only returns the elements to keep, in a slice of their own; nil if there are none.
func Only[T any](all []T, keep func(T) bool) []T {
	var out []T
	for _, one := range all {
		if keep(one) {
			out = append(out, one)
		}
	}
	return out
}

// Find returns a pointer to the first element that fits; nil if none does.
func Find[T any](all []T, fits func(*T) bool) *T {
	for i := range all {
		if fits(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// Pointers returns pointers to the elements.
func Pointers[T any](all []T) []*T {
	out := make([]*T, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// By returns the elements by their keys; of several with the same key, the last one.
func By[K comparable, T any](all []T, key func(T) K) map[K]T {
	out := make(map[K]T, len(all))
	for _, one := range all {
		out[key(one)] = one
	}
	return out
}

// Earliest returns the first of some times; zero ones do not count.
func Earliest(times ...time.Time) (first time.Time) {
	for _, at := range times {
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	return first
}

// Latest returns the last of some times.
func Latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// Some lists names for people: the first ones, and how many more there are.
func Some(all []string, most int) string {
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}

// Plural returns the plural of a kind, such as "Registries".
func Plural(kind string) string {
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		return stem + "ies"
	}
	return kind + "s"
}

// Count returns a number with a kind for people, such as "1 Pod" and "2 Registries".
func Count(n int, kind string) string {
	if n == 1 {
		return "1 " + kind
	}
	return fmt.Sprintf("%d %s", n, Plural(kind))
}

// SPDX-License-Identifier: Apache-2.0

// Package kube reads and compares objects of the API, interprets answers to writes, and names objects
// in logs, for both halves.
package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// List reads objects, which must not be changed, in name order. what names them in errors.
func List[T client.Object](ctx context.Context, from client.Reader, what string, list client.ObjectList, options ...client.ListOption) ([]T, error) {
	if err := from.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	all := slices.Grow([]T(nil), meta.LenList(list))
	err := meta.EachListItem(list, func(item runtime.Object) error {
		all = append(all, item.(T))
		return nil
	})
	slices.SortFunc(all, ByName[T])
	return all, err
}

// ByName compares names.
func ByName[T client.Object](a, b T) int { return strings.Compare(a.GetName(), b.GetName()) }

// Newer reports whether a is a later version of the object than b.
func Newer(a, b client.Object) bool { return Later(a.GetResourceVersion(), b.GetResourceVersion()) }

// Later reports whether a resource version is later than another; false if one of them is no version.
func Later(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// Logger makes the logger of a controller, with the object of a request under that key.
func Logger(mgr ctrl.Manager, name, key string) func(*ctrl.Request) logr.Logger {
	return func(request *ctrl.Request) logr.Logger {
		logger := mgr.GetLogger().WithName(name)
		if request != nil {
			logger = logger.WithValues(key, strings.TrimPrefix(request.String(), "/")) // without a namespace
		}
		return logger
	}
}

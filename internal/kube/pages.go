// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A list is decoded as a whole, and other users decide how large its objects are. So if only a part of
// each object is kept, lists are read in pages: the larger the objects, the smaller the pages.

const (
	// firstPage is the number of objects in the first page, lastPage the most in any page.
	firstPage, lastPage = 16, 500
	// pageBytes is the intended size of a page: larger objects arrive one by one.
	pageBytes = 4 << 20
)

// NextPage returns how many objects to ask for in the next page, after a page with so many objects and
// bytes; 0 objects mean that there was no page yet.
func NextPage(objects, bytes int) int64 {
	if objects == 0 {
		return firstPage
	}
	return int64(max(1, min(lastPage, 4*objects, pageBytes*objects/max(bytes, 1))))
}

// sized is an object that knows its size on the wire.
type sized interface{ Size() int }

// sizeOf returns the size of a decoded object; 0 if unknown.
func sizeOf(object runtime.Object) int {
	if s, ok := object.(sized); ok {
		return s.Size()
	}
	return 0
}

// ListKept reads objects from the API server in pages and returns, in name order, the result of keep
// for each. If keep returns false, the object is left out.
func ListKept[T client.Object](
	ctx context.Context, from client.Reader, what string, empty client.ObjectList, keep func(T) (T, bool), options ...client.ListOption,
) (all []T, err error) {
	objects, bytes, token := 0, 0, ""
	for {
		page := empty.DeepCopyObject().(client.ObjectList)
		if err := from.List(ctx, page, append(slices.Clone(options), client.Limit(NextPage(objects, bytes)), client.Continue(token))...); err != nil {
			return nil, fmt.Errorf("list %s: %w", what, err)
		}
		objects, bytes = meta.LenList(page), 0
		err := meta.EachListItem(page, func(item runtime.Object) error {
			bytes += sizeOf(item)
			if kept, yes := keep(item.(T)); yes {
				all = append(all, kept)
			}
			return nil
		})
		if token = page.GetContinue(); err != nil || token == "" {
			slices.SortFunc(all, ByName[T])
			return all, err
		}
	}
}

// Pages turns a list call into one that reads pages, and returns the result of keep for each object. It
// asks for the latest version: the API server makes no pages of older ones.
func Pages(
	list func(context.Context, metav1.ListOptions) (runtime.Object, error), keep func(runtime.Object) runtime.Object,
) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		options.ResourceVersion, options.ResourceVersionMatch, options.Continue = "", "", ""
		var kept []runtime.Object
		for objects, bytes := 0, 0; ; {
			options.Limit = NextPage(objects, bytes)
			page, err := list(ctx, options)
			if err != nil {
				return nil, err
			}
			objects, bytes = meta.LenList(page), 0
			if err := meta.EachListItem(page, func(item runtime.Object) error {
				bytes += sizeOf(item)
				kept = append(kept, keep(item))
				return nil
			}); err != nil {
				return nil, err
			}
			about, err := meta.ListAccessor(page)
			if err != nil {
				return nil, err
			}
			if options.Continue = about.GetContinue(); options.Continue == "" {
				return page, meta.SetList(page, kept)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/checktest"
)

// paged is an API server with Pods. It counts the pages, and the bytes of the largest one.
type paged struct {
	client.Reader
	pods           []corev1.Pod
	largest, pages int
}

func (p *paged) page(options metav1.ListOptions) *corev1.PodList {
	from, _ := strconv.Atoi(options.Continue) // 0 for the first one
	to := min(from+int(options.Limit), len(p.pods))
	page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: p.pods[from:to]}
	if to < len(p.pods) {
		page.Continue = strconv.Itoa(to)
	}
	p.pages, p.largest = p.pages+1, max(p.largest, page.Size())
	return page
}

func (p *paged) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	p.page(metav1.ListOptions{Limit: o.Limit, Continue: o.Continue}).DeepCopyInto(into.(*corev1.PodList))
	return nil
}

// TestPages: lists of large objects arrive in pages of some megabytes, and lists of small objects in
// few pages. No object is lost, and only the kept part of each remains.
func TestPages(t *testing.T) {
	for _, test := range []struct{ pods, bytes, largest, pages int }{
		{200, 1_200_000, firstPage * 1_300_000, 80}, {3000, 5_000, 2 * pageBytes, 12}, {0, 0, 64, 1}, {20, 10 << 20, firstPage * 11 << 20, 6},
	} {
		server := &paged{}
		for i := range test.pods {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%05d", i)}}
			pod.Spec.NodeName = strings.Repeat("n", test.bytes)
			server.pods = append(server.pods, pod)
		}
		name := func(pod *corev1.Pod) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}} }
		check := func(got []*corev1.Pod) {
			checktest.Same(t, "Pods", test.pods, len(got))
			for i, pod := range got {
				checktest.Same(t, "Pod", name(&server.pods[i]), pod)
			}
			if server.largest > test.largest || server.pages > test.pages {
				t.Errorf("%d Pods of %d bytes: %d pages of %d bytes at most, want %d of %d", test.pods, test.bytes, server.pages, server.largest, test.pages, test.largest)
			}
			server.pages = 0
		}
		check(checktest.Must(ListKept(t.Context(), client.Reader(server), "Pods", &corev1.PodList{}, func(pod *corev1.Pod) (*corev1.Pod, bool) {
			return name(pod), true
		}))(t))
		list := Pages(func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion != "" {
				t.Errorf("a page of version %q, which has none", options.ResourceVersion)
			}
			return server.page(options), nil
		}, func(object runtime.Object) runtime.Object { return name(object.(*corev1.Pod)) })
		all := checktest.Must(list(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 500}))(t).(*corev1.PodList)
		got := make([]*corev1.Pod, len(all.Items))
		for i := range all.Items {
			got[i] = &all.Items[i]
		}
		check(got)
		checktest.Same(t, "version and rest", "7", all.ResourceVersion+all.Continue)
	}
}

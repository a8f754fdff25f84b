// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type answer = Answer[*corev1.Pod]

// pod is a Pod of an owner; "" for none.
func pod(owner, name, version string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Name: owner, UID: types.UID(owner), Controller: new(true)}}
	}
	return p
}

// shown lists Pods as "name version".
func shown(pods []*corev1.Pod) string {
	return strings.Join(list.Map(pods, func(pod *corev1.Pod) string { return pod.Name + " " + pod.ResourceVersion }), ", ")
}

// TestMerge: what a pass sees of answers that the cache does not show, and which of them
// it verifies at once.
func TestMerge(t *testing.T) {
	scenariotest.Table(t, "testdata/merge.txt", func(_ *testing.T, test struct {
		// Created, Deleted, Released and Wrote are answers, each a Pod and its version; Cached are more.
		Created, Deleted, Released, Wrote string
		Cached                            []string
	}) string {
		parsed := func(owner, text string) *corev1.Pod {
			name, version, _ := strings.Cut(text, " ")
			return pod(owner, name, version)
		}
		s, cached := New[string, *corev1.Pod](nil), []*corev1.Pod(nil)
		if test.Created != "" {
			s.Note("set", answer{Object: parsed("web", test.Created), Created: true, At: now})
		}
		if test.Wrote != "" {
			s.Wrote("set", parsed("web", test.Wrote), now)
		}
		if gone, owner := cmp.Or(test.Deleted, test.Released), map[bool]string{true: "web"}[test.Deleted != ""]; gone != "" {
			s.Note("set", answer{Object: parsed(owner, gone), Deleted: true, At: now})
		}
		for _, text := range test.Cached {
			cached = append(cached, parsed("web", text))
		}
		pods, unverified := s.Merge("set", cached, now.Add(time.Second))
		return cmp.Or(shown(pods), "nothing") + map[bool]string{true: "; verifies"}[len(unverified) > 0]
	})
}

// TestVerificationIsDue: an answer that the cache has not confirmed triggers a pass, since
// no event may.
func TestVerificationIsDue(t *testing.T) {
	entry := func(name string, age time.Duration, created, deleted bool) answer {
		return answer{Object: pod("", name, "5"), Created: created, Deleted: deleted, At: now.Add(-age)}
	}
	for name, test := range map[string]struct {
		entries []answer
		want    time.Time
	}{
		"nothing":              {},
		"the oldest one":       {[]answer{entry("a", time.Second, true, false), entry("b", 3*time.Second, true, false)}, now.Add(VerifyAfter - 3*time.Second)},
		"one that goes":        {[]answer{entry("a", 0, false, true)}, now.Add(VerifyAfter)},
		"made, and gone again": {[]answer{entry("a", 0, true, true)}, time.Time{}},
	} {
		s := New[string, *corev1.Pod](nil)
		for _, e := range test.entries {
			s.Note("set", e)
		}
		s.Note("another", entry("c", time.Hour, true, false))
		if got := s.VerifyAt("set"); !got.Equal(test.want) {
			t.Errorf("%s: due at %v, want %v", name, got, test.want)
		}
		if _, unverified := s.Merge("set", nil, s.VerifyAt("set")); len(unverified) != 0 != (name == "the oldest one") {
			t.Errorf("%s: to be verified then: %v", name, unverified)
		}
	}
}

// TestWroteCoversALaggingCache: a cache that lags shows what is before our writes, and then what is after them. It
// may lag behind what we wrote to, which the API server has shown. An answer is dropped when the cache has caught up,
// or shows no such object any more.
func TestWroteCoversALaggingCache(t *testing.T) {
	for cached, want := range map[string]string{"1": "5", "2": "5", "3": "5", "5": "5", "7": "7", "10": "10"} {
		s := New[string, *corev1.Pod](nil)
		s.Wrote("set", pod("", "a", "2"), now)
		s.Wrote("set", pod("", "a", "5"), now)
		seen, _ := s.Merge("set", []*corev1.Pod{pod("", "a", cached), pod("", "b", "1")}, now.Add(time.Hour))
		checktest.Same(t, "what a pass sees with a cache at version "+cached, "a "+want+", b 1", shown(seen))
		checktest.Same(t, "nothing is kept with a cache at version "+cached, want == cached, s.Empty("set"))
		s.Merge("set", nil, now)
		checktest.Same(t, "nothing is kept once the cache shows no such object", true, s.Empty("set"))
	}
}

// TestScopes: answers about the objects of one thing say nothing about those of another one, and go with it.
func TestScopes(t *testing.T) {
	s := New[string, *corev1.Pod](nil)
	for _, of := range []string{"web", "db"} {
		s.Wrote(of, pod("", "a", "5"), now)
	}
	checktest.Same(t, "the newest one", "5", s.Newest("web", pod("", "a", "3")).ResourceVersion)
	checktest.Same(t, "of another one", "3", s.Newest("other", pod("", "a", "3")).ResourceVersion)
	s.Drop("web")
	checktest.Same(t, "nothing is kept of what is dropped, and of the other one", []bool{true, false}, []bool{s.Empty("web"), s.Empty("db")})
	s.Forget("a")
	checktest.Same(t, "nothing is kept of an object that is gone", 0, len(s.answers))
}

// TestGoneStaysGoneInAnOlderList: an object that was terminating before our last answer about it, and then found gone,
// does not come back with a list of an API server that lags; a later version shows how it goes.
func TestGoneStaysGoneInAnOlderList(t *testing.T) {
	for cached, want := range map[string]string{"3": "b 1", "5": "a 5, b 1", "7": "a 7, b 1"} {
		s := New[string, *corev1.Pod](nil)
		s.Note("set", answer{Object: pod("web", "a", "5"), Created: true, At: now})
		s.Note("set", answer{Object: pod("web", "a", "5"), Created: true, Deleted: true, At: now})
		leaving := pod("web", "a", cached)
		leaving.DeletionTimestamp = &metav1.Time{Time: now}
		seen, _ := s.Merge("set", []*corev1.Pod{leaving, pod("web", "b", "1")}, now)
		checktest.Same(t, "what a pass sees with a cache at version "+cached, want, shown(seen))
		checktest.Same(t, "the answer is kept with a cache at version "+cached, cached == "3", !s.Empty("set"))
	}
}

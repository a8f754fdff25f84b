// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/internal/checktest"
)

// watched is how many Pods a workload has, and eventsPerSecond how often one of them
// changes: each of them eighteen times in three minutes.
const watched, eventsPerSecond = 2000, 200

// BenchmarkWatch follows a workload of 2,000 Pods that change all the time, and reports the share of a
// processor that this takes, including the API server in this process. One operation is a second:
//
//	go test . -run '^$' -bench Watch -benchtime 20x
func BenchmarkWatch(b *testing.B) {
	server := newPodServer(b)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PodList"), meta.RESTScopeNamespace)
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("StatefulSet"), meta.RESTScopeNamespace)
	out := &screens{}
	s := &session{
		IOStreams: genericiooptions.IOStreams{Out: out}, namespace: "shop", config: &rest.Config{Host: server.URL}, mapper: mapper,
	}
	checktest.NoError(b, s.makeClient())
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer, flags.CacheDir, flags.KubeConfig = &server.URL, new(b.TempDir()), new("")
	s.discovery = checktest.Must(flags.ToDiscoveryClient())(b)
	ctx, end := context.WithCancelCause(b.Context())
	go func() { end(s.watch(ctx, target{kindStatefulSet, "web"}, nil)) }()
	select {
	case <-server.following:
	case <-ctx.Done():
		b.Fatal(context.Cause(ctx))
	}
	began, before, screensBefore := time.Now(), processorTime(b), out.drawn.Load()
	for b.Loop() {
		server.play(ctx)
	}
	took := time.Since(began).Seconds()
	b.ReportMetric(100*(processorTime(b)-before).Seconds()/took, "%processor")
	b.ReportMetric(float64(out.drawn.Load()-screensBefore)/took, "screens/s")
	if ctx.Err() != nil {
		b.Fatal(context.Cause(ctx))
	}
	end(nil)
}

// screens counts the screens that are drawn.
type screens struct{ drawn atomic.Int64 }

func (s *screens) Write(text []byte) (int, error) {
	s.drawn.Add(1)
	return len(text), nil
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	checktest.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// podServer serves a StatefulSet and its Pods as an API server does, in protobuf.
type podServer struct {
	*httptest.Server
	set, sets, pods []byte
	// changes are events about each Pod, one after the other.
	changes   [][]byte
	next      int
	events    chan []byte
	following chan struct{}
}

func newPodServer(b *testing.B) *podServer {
	b.Helper()
	s := &podServer{events: make(chan []byte, eventsPerSecond), following: make(chan struct{})}
	set := appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "set", ResourceVersion: "1"}, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(watched))}}
	s.set = encoded(b, &set)
	s.sets = encoded(b, &appsv1.StatefulSetList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []appsv1.StatefulSet{set}})
	o := objects(b, "testdata/large/rollout.yaml")
	list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for _, pod := range many(o.Pods, watched) {
		pod.ResourceVersion = "1"
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "set", Controller: new(true)}}
		for i := range 30 { // a Pod of a usual size
			pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("NAME_%d", i), Value: strings.Repeat("value ", 8)})
		}
		list.Items = append(list.Items, *pod)
	}
	s.pods = encoded(b, &list)
	for _, ready := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue} {
		for i := range list.Items {
			pod := list.Items[i].DeepCopy()
			pod.ResourceVersion = "2"
			for at := range pod.Status.Conditions {
				pod.Status.Conditions[at].Status = ready
			}
			s.changes = append(s.changes, frame(b, pod))
		}
	}
	s.Server = httptest.NewServer(s)
	b.Cleanup(s.Close)
	return s
}

var protobuf, _ = runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)

func encoded(b *testing.B, object runtime.Object) []byte {
	b.Helper()
	known := schema.GroupVersions{corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion}
	return checktest.Must(runtime.Encode(clientgoscheme.Codecs.EncoderForVersion(protobuf.Serializer, known), object))(b)
}

// frame returns an event of a watch.
func frame(b *testing.B, pod *corev1.Pod) []byte {
	b.Helper()
	var out bytes.Buffer
	event := &metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: encoded(b, pod)}}
	encoder := clientgoscheme.Codecs.EncoderForVersion(protobuf.StreamSerializer.Serializer, corev1.SchemeGroupVersion)
	checktest.NoError(b, encoder.Encode(event, protobuf.StreamSerializer.NewFrameWriter(&out)))
	return out.Bytes()
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	query, pods := r.URL.Query(), strings.HasSuffix(r.URL.Path, "/pods")
	switch {
	case query.Get("sendInitialEvents") == "true":
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case query.Get("watch") == "true":
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		s.stream(w, r, pods)
	case pods:
		_, _ = w.Write(s.pods)
	case strings.HasSuffix(r.URL.Path, "/statefulsets"):
		_, _ = w.Write(s.sets)
	default:
		_, _ = w.Write(s.set)
	}
}

// stream sends events about Pods until the client disconnects.
func (s *podServer) stream(w http.ResponseWriter, r *http.Request, pods bool) {
	events := s.events
	if pods {
		close(s.following)
	} else {
		events = nil
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_, _ = w.Write(e)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// play sends the events of a second, unless ctx ends.
func (s *podServer) play(ctx context.Context) {
	const beats = 20
	clock := time.NewTicker(time.Second / beats)
	defer clock.Stop()
	for range beats {
		<-clock.C
		for range eventsPerSecond / beats {
			select {
			case <-ctx.Done():
				return
			case s.events <- s.changes[s.next%len(s.changes)]:
				s.next++
			}
		}
	}
}

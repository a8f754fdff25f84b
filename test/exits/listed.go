// SPDX-License-Identifier: Apache-2.0

package exits

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// ListedForms are what -listed understands.
const ListedForms = `where callers find the Pods, one of
  service:NAME                the ready endpoints of a Service, as gateways and meshes follow them
  pods:PORT                   the Pods of the namespace that are Ready and not terminating
  address:HOST:PORT           one address: a load balancer, or a Service's own
  url:http://…                a page that lists host:port, as lines or as a JSON array, read once a second
  consul:http://HOST:PORT/SERVICE
  etcd:HOST:PORT/PREFIX/SERVICE`

// Listed is a source of addresses, and whether it lists one for each Pod.
type Listed struct {
	traffic.Source
	Several bool
}

// NewListed reads one of ListedForms. It returns stage.ErrUsage for anything else.
func NewListed(text string, kube client.WithWatch, api kubernetes.Interface, namespace string) (Listed, error) {
	form, rest, _ := strings.Cut(text, ":")
	switch form {
	case "service":
		return Listed{traffic.Service{Client: api, Namespace: namespace, Name: rest}, true}, nil
	case "pods":
		return newPods(rest, kube, namespace)
	case "etcd":
		return newEtcd(rest)
	}
	at := strings.LastIndexByte(rest, '/')
	switch _, _, noAddress := net.SplitHostPort(rest); {
	case form == "address" && noAddress == nil:
		return Listed{traffic.Fixed(rest), false}, nil
	case form == "url" && strings.HasPrefix(rest, "http"):
		return Listed{page(rest), true}, nil
	case form == "consul" && strings.HasPrefix(rest, "http") && at > len("https://"):
		return Listed{traffic.Consul{Address: rest[:at], Service: rest[at+1:]}, true}, nil
	}
	return Listed{}, fmt.Errorf("%w: -listed %q is none of these: %s", stage.ErrUsage, text, ListedForms)
}

func newEtcd(text string) (Listed, error) {
	endpoint, path, _ := strings.Cut(text, "/")
	at := strings.LastIndexByte(path, '/')
	if endpoint == "" || at < 1 {
		return Listed{}, fmt.Errorf("%w: -listed etcd:%s: write etcd:HOST:PORT/PREFIX/SERVICE", stage.ErrUsage, text)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + endpoint}, DialTimeout: dialTime})
	if err != nil {
		return Listed{}, fmt.Errorf("etcd at %s: %w", endpoint, err)
	}
	return Listed{traffic.Etcd{Client: etcd, Prefix: path[:at], Service: path[at+1:]}, true}, nil
}

const dialTime = 5 * time.Second

// Pods are the Pods of a namespace that are Ready and not terminating, at a port: what the EndpointSlices of a Service
// that selects all of them list as ready.
type Pods struct {
	Kube      client.WithWatch
	Namespace string
	Port      int
}

func newPods(port string, kube client.WithWatch, namespace string) (Listed, error) {
	number, err := strconv.Atoi(port)
	if err != nil || number < 1 || number > 65535 {
		return Listed{}, fmt.Errorf("%w: -listed pods:%s: write pods:PORT, with a number", stage.ErrUsage, port)
	}
	return Listed{Pods{Kube: kube, Namespace: namespace, Port: number}, true}, nil
}

// Follow implements traffic.Source with a watch.
func (p Pods) Follow(ctx context.Context, report func(addresses []string)) error {
	var all corev1.PodList
	if err := p.Kube.List(ctx, &all, client.InNamespace(p.Namespace)); err != nil {
		return fmt.Errorf("list the Pods of %s: %w", p.Namespace, err)
	}
	known := map[types.UID]*corev1.Pod{}
	for i := range all.Items {
		known[all.Items[i].UID] = &all.Items[i]
	}
	report(p.ready(known))
	changes, err := p.Kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(p.Namespace), resourceVersion(all.ResourceVersion))
	if err != nil {
		return fmt.Errorf("watch the Pods of %s: %w", p.Namespace, err)
	}
	defer changes.Stop()
	for event := range changes.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		switch {
		case !ok:
			return fmt.Errorf("the watch of the Pods of %s has ended", p.Namespace)
		case event.Type == watch.Deleted:
			delete(known, pod.UID)
		default:
			known[pod.UID] = pod
		}
		report(p.ready(known))
	}
	return ctx.Err()
}

func (p Pods) ready(known map[types.UID]*corev1.Pod) (addresses []string) {
	for _, pod := range known {
		if pod.DeletionTimestamp == nil && stage.Ready(pod) && pod.Status.PodIP != "" {
			addresses = append(addresses, net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(p.Port)))
		}
	}
	return addresses
}

// resourceVersion begins a watch where a list ended.
type resourceVersion string

// ApplyToList implements client.ListOption.
func (v resourceVersion) ApplyToList(o *client.ListOptions) {
	o.Raw = o.AsListOptions()
	o.Raw.ResourceVersion = string(v)
}

// page is a page that lists addresses: lines, or a JSON array of texts.
type page string

const (
	readEvery = time.Second
	maxPage   = 1 << 20
)

// Follow implements traffic.Source by reading the page once a second.
func (p page) Follow(ctx context.Context, report func(addresses []string)) error {
	for {
		addresses, err := p.read(ctx)
		if err != nil {
			return err
		}
		report(addresses)
		if err := stage.Pause(ctx, readEvery); err != nil {
			return err
		}
	}
}

func (p page) read(ctx context.Context) (addresses []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(p), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxPage))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", p, answer.Status)
	case strings.HasPrefix(strings.TrimSpace(string(body)), "["):
		err = json.Unmarshal(body, &addresses)
	default:
		for lines := bufio.NewScanner(strings.NewReader(string(body))); lines.Scan(); {
			if line := strings.TrimSpace(lines.Text()); line != "" {
				addresses = append(addresses, line)
			}
		}
	}
	for _, address := range addresses {
		if _, _, bad := net.SplitHostPort(address); bad != nil {
			return nil, fmt.Errorf("%s lists %q, which is no host:port", p, address)
		}
	}
	return addresses, err
}

// SPDX-License-Identifier: Apache-2.0

// Caller finds instances in etcd as users of Kratos, go-zero or Kitex do, with the framework's own library. It writes a
// line with what it knows whenever it learns of a change: host:port|weight for each instance, separated by spaces. With
// an address it first registers that itself. It ends with its standard input.
//
// It is a module of its own, so that nothing else depends on these frameworks.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloudwego/kitex/pkg/klog"
	"github.com/cloudwego/kitex/pkg/loadbalance"
	"github.com/cloudwego/kitex/pkg/loadbalance/lbcache"
	kitexregistry "github.com/cloudwego/kitex/pkg/registry"
	"github.com/cloudwego/kitex/pkg/rpcinfo"
	kratosetcd "github.com/go-kratos/kratos/contrib/registry/etcd/v2"
	"github.com/go-kratos/kratos/v2/registry"
	kitexetcd "github.com/kitex-contrib/registry-etcd"
	"github.com/zeromicro/go-zero/core/discov"
	"github.com/zeromicro/go-zero/core/logx"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: caller LAYOUT ENDPOINT SERVICE ADDRESS (empty for none)")
	}
	follow := map[string]func(endpoint, service, address string) error{
		"Kratos": kratos, "GoZero": goZero, "Kitex": kitex,
	}[os.Args[1]]
	if err := follow(os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // Only its end matters.
}

// show writes what is known.
func show(instances []string) {
	slices.Sort(instances)
	fmt.Println("instances", strings.Join(instances, " "))
}

func kratos(endpoint, service, address string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	r := kratosetcd.New(client)
	if address != "" {
		own := &registry.ServiceInstance{ID: "own", Name: service, Endpoints: []string{"grpc://" + address + "?isSecure=false"}}
		if err := r.Register(context.Background(), own); err != nil {
			return err
		}
	}
	watcher, err := r.Watch(context.Background(), service)
	if err != nil {
		return err
	}
	go func() {
		for {
			found, err := watcher.Next()
			if err != nil {
				log.Fatal(err)
			}
			var known []string
			for _, i := range found {
				for _, one := range i.Endpoints {
					if at, err := url.Parse(one); err == nil && at.Scheme == "grpc" { // As its gRPC client does.
						known = append(known, at.Host+"|"+i.Metadata["weight"]+i.Version)
					}
				}
			}
			show(known)
		}
	}()
	return nil
}

func goZero(endpoint, service, address string) error {
	logx.Disable()
	if address != "" {
		if err := discov.NewPublisher([]string{endpoint}, service, address).KeepAlive(); err != nil {
			return err
		}
	}
	subscriber, err := discov.NewSubscriber([]string{endpoint}, service)
	if err != nil {
		return err
	}
	changed := func() {
		var known []string
		for _, at := range subscriber.Values() {
			known = append(known, at+"|")
		}
		show(known)
	}
	subscriber.AddListener(changed)
	changed()
	return nil
}

func kitex(endpoint, service, address string) error {
	klog.SetOutput(io.Discard)
	if address != "" {
		r, err := kitexetcd.NewEtcdRegistry([]string{endpoint})
		if err != nil {
			return err
		}
		at, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			return err
		}
		if err := r.Register(&kitexregistry.Info{ServiceName: service, Addr: at, Weight: 7}); err != nil {
			return err
		}
	}
	resolver, err := kitexetcd.NewEtcdResolver([]string{endpoint})
	if err != nil {
		return err
	}
	// Its balancer reads the list anew every five seconds while a client asks it.
	factory := lbcache.NewBalancerFactory(resolver, loadbalance.NewWeightedBalancer(), lbcache.Options{})
	go func() {
		for {
			var known []string
			balancer, err := factory.Get(context.Background(), rpcinfo.NewEndpointInfo(service, "", nil, nil))
			if err == nil {
				_ = balancer.GetPicker() // As for each request: it shows the balancer that it is used.
				result, _ := balancer.GetResult()
				for _, i := range result.Instances {
					known = append(known, fmt.Sprintf("%s|%d", i.Address(), i.Weight()))
				}
			}
			show(known)
			time.Sleep(pause)
		}
	}()
	return nil
}

// pause is that of a client between two requests.
const pause = 20 * time.Millisecond

// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
)

// crds are the kinds by which the clouds' controllers note what they have made, as far as Usher reads them.
//
//go:embed crds.yaml
var crds []byte

// InstallCRDs installs the kinds of the clouds' controllers.
func InstallCRDs(config *rest.Config) error {
	kind := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(crds, kind); err != nil {
		return err
	}
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{kind}, MaxTime: time.Minute})
	return err
}

// ELB is a Balancer of AWS. Each Service has a target group.
type ELB struct {
	Server *elb.Server
	Client client.Client
}

// arn is that of the target group of a Service. Stories have one Service in a namespace.
func arn(service types.NamespacedName) string { return elb.ARN(service.Namespace) }

// Announce implements Balancer. The target group is noted in a TargetGroupBinding.
func (e ELB) Announce(ctx context.Context, service types.NamespacedName) error {
	e.Server.Add(arn(service))
	return AnnounceGroup(ctx, e.Client, service, arn(service))
}

// AnnounceGroup creates the TargetGroupBinding for a target group, unless it is there.
func AnnounceGroup(ctx context.Context, c client.Client, service types.NamespacedName, arn string) error {
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "elbv2.k8s.aws/v1beta1", "kind": "TargetGroupBinding",
		"metadata": map[string]any{"namespace": service.Namespace, "name": service.Name},
		"spec": map[string]any{
			"targetGroupARN": arn, "targetType": "ip", "serviceRef": map[string]any{"name": service.Name, "port": int64(80)},
		},
	}}
	if err := client.IgnoreAlreadyExists(c.Create(ctx, binding)); err != nil {
		return fmt.Errorf("create the TargetGroupBinding of Service %s: %w", service, err)
	}
	return nil
}

// Targets implements Balancer.
func (e ELB) Targets(_ context.Context, service types.NamespacedName) (map[Target]State, error) {
	all := map[Target]State{}
	for _, t := range e.Server.Targets(arn(service)) {
		all[Target{t.Address, t.Port}] = State{Healthy: t.State == elb.Healthy, Leaves: t.State == elb.Draining}
	}
	return all, nil
}

// Register implements Balancer.
func (e ELB) Register(_ context.Context, service types.NamespacedName, t Target) error {
	e.Server.Register(arn(service), t.Address, t.Port)
	return nil
}

// Deregister implements Balancer.
func (e ELB) Deregister(_ context.Context, service types.NamespacedName, t Target) error {
	e.Server.Deregister(arn(service), t.Address)
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Package awstargetgroup_test tests the connector against moto, a server of AWS's API that others have written.
package awstargetgroup_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/awstargetgroup"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/moto"
)

const region = moto.Region

// server is moto. It forgets everything when it ends.
type server struct {
	*moto.Server
	elb *elb.Client
	vpc string
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{Server: moto.Start(t)}
	s.elb = elb.New(elb.Options{Region: region, BaseEndpoint: &s.Address, Credentials: credentials.NewStaticCredentialsProvider("me", "secret", "")})
	s.vpc = s.anyVPC(t)
	return s
}

// vpcID is that of a VPC in an answer.
var vpcID = regexp.MustCompile(`<vpcId>([^<]+)</vpcId>`)

// anyVPC is the VPC that moto has from the start: target groups need one. moto reads in the signature, which it does
// not check, which of AWS's services is called.
func (s *server) anyVPC(t *testing.T) string {
	t.Helper()
	question := strings.NewReader("Action=DescribeVpcs&Version=2016-11-15")
	request := checktest.Must(http.NewRequestWithContext(registrytest.Bounded(t), http.MethodPost, s.Address, question))(t)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=me/20260101/"+region+"/ec2/aws4_request, SignedHeaders=host, Signature=0")
	answer, err := http.DefaultClient.Do(request)
	checktest.NoError(t, err)
	defer func() { _ = answer.Body.Close() }() // it was read
	body := checktest.Must(io.ReadAll(answer.Body))(t)
	found := vpcID.FindSubmatch(body)
	if found == nil {
		t.Fatalf("moto has no VPC: %s", body)
	}
	return string(found[1])
}

// group makes a target group.
func (s *server) group(t *testing.T, name string, kind types.TargetTypeEnum) (arn string) {
	t.Helper()
	made := checktest.Must(s.elb.CreateTargetGroup(registrytest.Bounded(t), &elb.CreateTargetGroupInput{
		Name: &name, Protocol: types.ProtocolEnumHttp, Port: aws.Int32(80), VpcId: &s.vpc, TargetType: kind,
	}))(t)
	return *made.TargetGroups[0].TargetGroupArn
}

func targets(address string, port int32) []types.TargetDescription {
	return []types.TargetDescription{{Id: &address, Port: &port}}
}

func (s *server) register(t *testing.T, arn, address string, port int32) {
	t.Helper()
	checktest.Must(s.elb.RegisterTargets(registrytest.Bounded(t), &elb.RegisterTargetsInput{TargetGroupArn: &arn, Targets: targets(address, port)}))(t)
}

func (s *server) deregister(t *testing.T, arn, address string, port int32) {
	t.Helper()
	checktest.Must(s.elb.DeregisterTargets(registrytest.Bounded(t), &elb.DeregisterTargetsInput{TargetGroupArn: &arn, Targets: targets(address, port)}))(t)
}

var secret = map[string][]byte{awsapi.KeyID: []byte("me"), awsapi.KeySecret: []byte("secret")}

// spec is a Registry that names a target group of the Service web.
func (s *server) spec(arn string) *usherv1alpha1.AWSTargetGroupRegistry {
	return &usherv1alpha1.AWSTargetGroupRegistry{Region: region, Endpoint: s.Address,
		TargetGroups: []usherv1alpha1.AWSTargetGroups{{Namespace: "demo", Service: "web", ARNs: []string{arn}}}}
}

// connect returns a connector for the Service web with a target group.
func (s *server) connect(t *testing.T, arn string, change ...func(*usherv1alpha1.AWSTargetGroupRegistry)) registry.Connector {
	t.Helper()
	spec := s.spec(arn)
	for _, c := range change {
		c(spec)
	}
	return registry.Follower(checktest.Must(awstargetgroup.New(spec, nil, nil, "demo", secret))(t))
}

// TestConformance runs the suite's part for connectors that only list. moto checks no health: a target is healthy at
// once, and one that was deregistered is unused at once.
func TestConformance(t *testing.T) {
	s := start(t)
	groups := 0
	registrytest.RunFollower(t, func(t *testing.T) registrytest.Followed {
		groups++
		arn := s.group(t, fmt.Sprint("web-", groups), types.TargetTypeEnumIp)
		return registrytest.Followed{
			Connector: s.connect(t, arn),
			Write:     func(t *testing.T, _, address string, port int32) { s.register(t, arn, address, port) },
			Leave:     func(t *testing.T, _, address string, port int32) { s.deregister(t, arn, address, port) },
			Break:     s.Hang, Mend: func(context.Context) error { return s.Resume() },
		}
	})
}

// TestManagedConformance runs the whole suite for target groups that Usher writes. moto keys targets by address.
func TestManagedConformance(t *testing.T) {
	s := start(t)
	groups := 0
	noBindings := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return &meta.NoKindMatchError{}
		}}).Build()
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		groups++
		arn := s.group(t, fmt.Sprint("own-", groups), types.TargetTypeEnumIp)
		c := checktest.Must(awstargetgroup.NewManaged(s.spec(arn), noBindings, nil, "demo", secret))(t)
		return registrytest.Fixture{
			Connector: c, NoMetadata: true, OneOwner: true, AddressIsIdentity: true, Foreign: "192.0.2.1:1",
			Seed:  func(_, _ string) { s.register(t, arn, "192.0.2.1", 1) },
			Break: s.Hang, Mend: func(context.Context) error { return s.Resume() }, Hang: s.Hang, Resume: s.Resume,
		}
	})
}

// TestRefusals: what moto refuses becomes the errors that AWS's answers become.
func TestRefusals(t *testing.T) {
	s := start(t)
	instances := s.connect(t, s.group(t, "nodes", types.TargetTypeEnumInstance))
	_, err := instances.List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "targets that are nodes", err, registry.ErrPermanent, "type instance", "target-type: ip")
	arn := s.group(t, "web", types.TargetTypeEnumIp)
	c := s.connect(t, arn)
	registrytest.List(t, c)
	checktest.Must(s.elb.DeleteTargetGroup(registrytest.Bounded(t), &elb.DeleteTargetGroupInput{TargetGroupArn: &arn}))(t)
	_, err = c.List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "a group that is gone", err, registry.ErrNoService, "no such target group")
	_, err = s.connect(t, arn).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "a group that never was", err, registry.ErrNoService)
}

// TestRole: the role is assumed at the same server.
func TestRole(t *testing.T) {
	s := start(t)
	c := s.connect(t, s.group(t, "web", types.TargetTypeEnumIp), func(spec *usherv1alpha1.AWSTargetGroupRegistry) {
		spec.RoleARN = "arn:aws:iam::123456789012:role/usher"
	})
	checktest.NoError(t, c.Ping(registrytest.Bounded(t)))
	registrytest.CheckNone(t, "an empty group", registrytest.List(t, c))
}

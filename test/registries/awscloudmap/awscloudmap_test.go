// SPDX-License-Identifier: Apache-2.0

// Package awscloudmap_test tests the connector against moto, a server of AWS's API that others have written.
package awscloudmap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	cloudmap "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/awscloudmap"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/moto"
)

// server is moto, with a client of its own.
type server struct {
	*moto.Server
	client *cloudmap.Client
	// front is where the connector finds moto.
	front string
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{Server: moto.Start(t)}
	s.client = clientAt(s.Address)
	s.front = registrytest.Serve(t, replacing{s.client, s.forward(t)})
	return s
}

func (s *server) forward(t *testing.T) http.Handler {
	t.Helper()
	return httputil.NewSingleHostReverseProxy(checktest.Must(url.Parse(s.Address))(t))
}

// clientAt is a client of AWS's, which asks one server for all that it asks.
func clientAt(address string) *cloudmap.Client {
	return cloudmap.New(cloudmap.Options{
		Region: moto.Region, BaseEndpoint: &address, Credentials: credentials.NewStaticCredentialsProvider("me", "secret", ""),
		APIOptions: []func(*middleware.Stack) error{func(stack *middleware.Stack) error {
			return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("OneHost", func(
				ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
			) (middleware.InitializeOutput, middleware.Metadata, error) {
				return next.HandleInitialize(smithyhttp.DisableEndpointHostPrefix(ctx, true), in)
			}), middleware.Before)
		}},
	})
}

// replacing stands before moto, which has an instance twice that is registered again: AWS replaces it.
type replacing struct {
	client *cloudmap.Client
	moto   http.Handler
}

// ServeHTTP implements http.Handler.
func (p replacing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".RegisterInstance") {
		body, err := io.ReadAll(r.Body)
		var asked struct {
			ServiceID  string `json:"ServiceId"`
			InstanceID string `json:"InstanceId"`
		}
		if err != nil || json.Unmarshal(body, &asked) != nil {
			http.Error(w, "no JSON", http.StatusBadRequest)
			return
		}
		// It is an error if there is no such instance, as mostly.
		_, _ = p.client.DeregisterInstance(r.Context(), &cloudmap.DeregisterInstanceInput{ServiceId: &asked.ServiceID, InstanceId: &asked.InstanceID})
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	p.moto.ServeHTTP(w, r)
}

// namespace makes a namespace with the service web, in an empty server.
func (s *server) namespace(t *testing.T) (id, service string) {
	t.Helper()
	ctx := registrytest.Bounded(t)
	s.Reset(t)
	begun := checktest.Must(s.client.CreateHttpNamespace(ctx, &cloudmap.CreateHttpNamespaceInput{Name: aws.String("prod.example")}))(t)
	done := checktest.Must(s.client.GetOperation(ctx, &cloudmap.GetOperationInput{OperationId: begun.OperationId}))(t)
	id = done.Operation.Targets["NAMESPACE"]
	made := checktest.Must(s.client.CreateService(ctx, &cloudmap.CreateServiceInput{
		Name: aws.String("web"), NamespaceId: &id, HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	}))(t)
	return id, *made.Service.Id
}

func (s *server) connect(t *testing.T, namespace string) registry.Connector {
	t.Helper()
	spec := &usherv1alpha1.AWSCloudMapRegistry{Region: moto.Region, NamespaceID: namespace, Endpoint: s.front}
	secret := map[string][]byte{awsapi.KeyID: []byte("me"), awsapi.KeySecret: []byte("secret")}
	return checktest.Must(awscloudmap.New(spec, nil, namespace, secret))(t)
}

// TestConformance runs the suite.
func TestConformance(t *testing.T) {
	s := start(t)
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		namespace, service := s.namespace(t)
		return registrytest.Fixture{
			Connector: s.connect(t, namespace), HoldsBack: true,
			Seed: func(_, id string) {
				checktest.Must(s.client.RegisterInstance(registrytest.Bounded(t), &cloudmap.RegisterInstanceInput{
					ServiceId: &service, InstanceId: &id, Attributes: map[string]string{"AWS_INSTANCE_IPV4": "192.0.2.1", "AWS_INSTANCE_PORT": "1"},
				}))(t)
			},
			Break: s.Hang, Mend: func(context.Context) error { return s.Resume() },
			Hang: s.Hang, Resume: s.Resume,
		}
	})
}

// TestCallers: a caller that asks for healthy instances finds those that are in service, and what they say of
// themselves.
func TestCallers(t *testing.T) {
	s := start(t)
	namespace, _ := s.namespace(t)
	c := s.connect(t, namespace)
	defer func() { checktest.NoError(t, c.Close()) }()
	held := registrytest.SixEntry()
	held.Weight = 0
	registrytest.Put(t, c, registrytest.Entry("a"), held)
	found := checktest.Must(s.client.DiscoverInstances(registrytest.Bounded(t), &cloudmap.DiscoverInstancesInput{
		NamespaceName: aws.String("prod.example"), ServiceName: aws.String("web"), HealthStatus: types.HealthStatusFilterHealthy,
		QueryParameters: map[string]string{"zone": "a"},
	}))(t)
	if len(found.Instances) != 1 || *found.Instances[0].InstanceId != "a" || found.Instances[0].Attributes["AWS_INSTANCE_PORT"] != "8080" {
		t.Errorf("callers find %+v", found.Instances)
	}
}

// TestRefusals: what moto refuses becomes the errors that AWS's answers become.
func TestRefusals(t *testing.T) {
	s := start(t)
	namespace, service := s.namespace(t)
	c := s.connect(t, namespace)
	registrytest.Put(t, c, registrytest.Entry("a"))
	checktest.Must(s.client.DeleteService(registrytest.Bounded(t), &cloudmap.DeleteServiceInput{Id: &service}))(t)
	registrytest.CheckNone(t, "a service that is gone", registrytest.List(t, c))
	registrytest.CheckRefused(t, "a service that is gone", registrytest.TryPut(t, c, registrytest.Entry("b")), "b", registry.ErrTransient)
	registrytest.CheckRefused(t, "a service that never was", registrytest.TryPut(t, c, registrytest.Entry("b")), "b", registry.ErrPermanent, "create-service")
	err := s.connect(t, "ns-other").Ping(registrytest.Bounded(t))
	registrytest.Check(t, "a namespace that never was", err, registry.ErrPermanent, "spec.awsCloudMap.namespaceID")
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	s.front = down.URL
	_, err = s.connect(t, namespace).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "another server", err, registry.ErrPermanent, "spec.awsCloudMap.endpoint")
}

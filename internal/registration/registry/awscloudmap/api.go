// SPDX-License-Identifier: Apache-2.0

package awscloudmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	cloudmap "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/targets"
)

const (
	// callsPerSecond and callsBurst bound the calls of one account and region, whose limit all its programs share.
	callsPerSecond = 100
	callsBurst     = 400
	// maxInstances is how many instances DiscoverInstances returns at most, and how many a service may have.
	maxInstances = 1000
	// pages bounds how many pages of services are read: each has a hundred.
	pages = 50
)

// Clients are shared by all connectors of the same account and region.
type Clients = targets.Shared[*api]

// NewClients returns Clients, of which a process needs one.
func NewClients() *Clients { return &Clients{} }

// api calls Cloud Map.
type api struct {
	*awsapi.API[*cloudmap.Client]

	mu sync.Mutex
	// names are those of namespaces, by ID, which never change.
	names map[string]string
	// services are those of namespaces, by the namespace's ID and the service's name.
	services map[[2]string]service
}

// service is a service as Cloud Map has it.
type service struct {
	id string
	// custom means that the health of its instances is what somebody says.
	custom bool
	// dns means that callers may find them by DNS as well.
	dns bool
}

func optionsOf(s *usherv1alpha1.AWSCloudMapRegistry, secret map[string][]byte) awsapi.Options {
	return awsapi.Options{
		Kind: "awsCloudMap", Region: s.Region, RoleARN: s.RoleARN, Endpoint: s.Endpoint, Secret: secret,
		PerSecond: callsPerSecond, Burst: callsBurst, Known: known,
	}
}

// newAPI checks what it gets, and reads and calls nothing.
func newAPI(options awsapi.Options) (*api, error) {
	client, err := awsapi.New(options, func(config aws.Config, endpoint *string) *cloudmap.Client {
		return cloudmap.NewFromConfig(config, func(o *cloudmap.Options) {
			if endpoint != nil {
				o.BaseEndpoint = endpoint
				o.APIOptions = append(o.APIOptions, oneHost)
			}
		})
	})
	if err != nil {
		return nil, err
	}
	return &api{API: client, names: map[string]string{}, services: map[[2]string]service{}}, nil
}

// oneHost has all calls go to the endpoint as it is: AWS itself has another host for DiscoverInstances.
func oneHost(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("OneHost", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		return next.HandleInitialize(smithyhttp.DisableEndpointHostPrefix(ctx, true), in)
	}), middleware.Before)
}

var (
	errNoService  = errors.New("no such service")
	errNoInstance = errors.New("no such instance")
)

// known returns errors for codes of AWS's about Cloud Map.
func known(code, message string) error {
	message = registry.Excerpt(message)
	switch code {
	case "NamespaceNotFound":
		return registry.Permanent(fmt.Errorf("there is no such namespace in the region: correct spec.awsCloudMap.namespaceID: %s", message))
	case "ServiceNotFound":
		return errNoService
	case "InstanceNotFound":
		return errNoInstance
	case "ResourceInUse":
		return registry.OneService(registry.Transient(fmt.Errorf("another operation of Cloud Map goes on there: %s", message)))
	case "CustomHealthNotFound":
		return registry.Permanent(fmt.Errorf("%s: %s", noCustomHealth, message))
	}
	return nil
}

// noCustomHealth is what to do if instances cannot be hidden.
const noCustomHealth = "the service of Cloud Map has no custom health check, without which Usher cannot hide an instance: " +
	"make it anew with HealthCheckCustomConfig, or set onInPlaceUpdate: Deregister"

// readNamespace reads the name by which a namespace is called in DiscoverInstances.
func (a *api) readNamespace(ctx context.Context, id string) (name string, err error) {
	var answer *cloudmap.GetNamespaceOutput
	err = a.Call(ctx, "GetNamespace", func(ctx context.Context, client *cloudmap.Client) (err error) {
		answer, err = client.GetNamespace(ctx, &cloudmap.GetNamespaceInput{Id: &id})
		return err
	})
	if err != nil {
		return "", err
	}
	if n := answer.Namespace; n != nil && n.Properties != nil && n.Properties.HttpProperties != nil {
		name = aws.ToString(n.Properties.HttpProperties.HttpName)
	}
	if answer.Namespace != nil {
		name = cmp.Or(name, aws.ToString(answer.Namespace.Name))
	}
	if name == "" {
		return "", notAWS("GetNamespace")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[id] = name
	return name, nil
}

// notAWS is the error for an answer that AWS would not give.
func notAWS(what string) error {
	return registry.Permanent(fmt.Errorf("%s: the answer is none of AWS's: check spec.awsCloudMap.endpoint", what))
}

// nameOf is readNamespace, once.
func (a *api) nameOf(ctx context.Context, id string) (string, error) {
	a.mu.Lock()
	name := a.names[id]
	a.mu.Unlock()
	if name != "" {
		return name, nil
	}
	return a.readNamespace(ctx, id)
}

// discover returns all instances that callers find, healthy or not. A service that there is not has none.
func (a *api) discover(ctx context.Context, namespace, name string) ([]instance, error) {
	called, err := a.nameOf(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var answer *cloudmap.DiscoverInstancesOutput
	err = a.Call(ctx, "DiscoverInstances", func(ctx context.Context, client *cloudmap.Client) (err error) {
		answer, err = client.DiscoverInstances(ctx, &cloudmap.DiscoverInstancesInput{
			NamespaceName: &called, ServiceName: &name, HealthStatus: types.HealthStatusFilterAll, MaxResults: aws.Int32(maxInstances),
		})
		return err
	})
	switch {
	case errors.Is(err, errNoService):
		return nil, nil
	case err != nil:
		return nil, ofService(err, name)
	case answer.Instances == nil: // not even an empty list
		return nil, registry.OneService(notAWS("DiscoverInstances"))
	case len(answer.Instances) >= maxInstances: // there may be more
		return nil, registry.OneService(registry.Permanent(fmt.Errorf("service %s has %d instances or more in Cloud Map, which shows no more: "+
			"spread them over several services", name, maxInstances)))
	}
	return list.Map(list.Pointers(answer.Instances), instanceOf), nil
}

// ofService makes what AWS refuses of one service an error of that alone: whoever writes a Registration, and with it
// the service's name, must not keep the Registry from others.
func ofService(err error, name string) error {
	if errors.Is(err, registry.ErrPermanent) && !errors.Is(err, awsapi.ErrIdentity) && !errors.Is(err, registry.ErrOneService) {
		return registry.OneService(fmt.Errorf("service %s of Cloud Map: %w", registry.Excerpt(name), err))
	}
	return err
}

// find returns a service, which it looks for among all of the namespace unless it is known.
func (a *api) find(ctx context.Context, namespace, name string) (service, error) {
	key := [2]string{namespace, name}
	if s, known := a.known(key); known {
		return s, nil
	}
	all := map[[2]string]service{}
	var token *string
	for range pages {
		var answer *cloudmap.ListServicesOutput
		err := a.Call(ctx, "ListServices", func(ctx context.Context, client *cloudmap.Client) (err error) {
			answer, err = client.ListServices(ctx, &cloudmap.ListServicesInput{
				Filters:   []types.ServiceFilter{{Name: types.ServiceFilterNameNamespaceId, Condition: types.FilterConditionEq, Values: []string{namespace}}},
				NextToken: token,
			})
			return err
		})
		if err != nil {
			return service{}, err
		}
		for i := range answer.Services {
			s := &answer.Services[i]
			all[[2]string{namespace, aws.ToString(s.Name)}] = service{aws.ToString(s.Id), s.HealthCheckCustomConfig != nil, s.DnsConfig != nil && len(s.DnsConfig.DnsRecords) > 0}
		}
		if token = answer.NextToken; token == nil {
			break
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.services, func(key [2]string, _ service) bool { return key[0] == namespace })
	maps.Copy(a.services, all)
	if s, found := all[key]; found {
		return s, nil
	}
	return service{}, registry.OneService(registry.Permanent(fmt.Errorf("the namespace of Cloud Map has no service %s: make it, as in "+
		"aws servicediscovery create-service --name %s --namespace-id %s --health-check-custom-config FailureThreshold=1", name, name, namespace)))
}

func (a *api) known(key [2]string) (service, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, known := a.services[key]
	return s, known
}

// forget has a service looked for again.
func (a *api) forget(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, [2]string{namespace, name})
}

// register begins to register an instance, or to change it, and returns the operation.
func (a *api) register(ctx context.Context, s service, i instance) (operation string, err error) {
	attributes := maps.Clone(i.attributes)
	if i.unhealthy {
		attributes[attributeHealth] = string(types.CustomHealthStatusUnhealthy)
	}
	err = a.Call(ctx, "RegisterInstance", func(ctx context.Context, client *cloudmap.Client) error {
		answer, err := client.RegisterInstance(ctx, &cloudmap.RegisterInstanceInput{ServiceId: &s.id, InstanceId: &i.id, Attributes: attributes})
		operation = begun(answer != nil, func() *string { return answer.OperationId }, &err)
		return err
	})
	return operation, err
}

// deregister begins to deregister an instance, and returns the operation; none if it is not there.
func (a *api) deregister(ctx context.Context, s service, id string) (operation string, err error) {
	err = a.Call(ctx, "DeregisterInstance", func(ctx context.Context, client *cloudmap.Client) error {
		answer, err := client.DeregisterInstance(ctx, &cloudmap.DeregisterInstanceInput{ServiceId: &s.id, InstanceId: &id})
		operation = begun(answer != nil, func() *string { return answer.OperationId }, &err)
		return err
	})
	if errors.Is(err, errNoInstance) {
		return "", nil
	}
	return operation, err
}

// begun is the operation that a call began, or that the same call had begun before.
func begun(answered bool, operation func() *string, err *error) string {
	if twice, ok := errors.AsType[*types.DuplicateRequest](*err); ok && twice.DuplicateOperationId != nil {
		*err = nil
		return *twice.DuplicateOperationId
	}
	if !answered {
		return ""
	}
	return aws.ToString(operation())
}

// setHealth has an instance get callers, or none.
func (a *api) setHealth(ctx context.Context, s service, id string, unhealthy bool) error {
	status := types.CustomHealthStatusHealthy
	if unhealthy {
		status = types.CustomHealthStatusUnhealthy
	}
	return a.Call(ctx, "UpdateInstanceCustomHealthStatus", func(ctx context.Context, client *cloudmap.Client) error {
		_, err := client.UpdateInstanceCustomHealthStatus(ctx, &cloudmap.UpdateInstanceCustomHealthStatusInput{
			ServiceId: &s.id, InstanceId: &id, Status: status,
		})
		return err
	})
}

// ended reports whether an operation has ended. The error of one that failed comes with true.
func (a *api) ended(ctx context.Context, operation string) (bool, error) {
	var answer *cloudmap.GetOperationOutput
	gone := false
	err := a.Call(ctx, "GetOperation", func(ctx context.Context, client *cloudmap.Client) (err error) {
		answer, err = client.GetOperation(ctx, &cloudmap.GetOperationInput{OperationId: &operation})
		if _, unknown := errors.AsType[*types.OperationNotFound](err); unknown { // AWS forgets them
			gone = true
			return nil
		}
		return err
	})
	switch {
	case err != nil || gone:
		return gone, err
	case answer.Operation == nil:
		return false, notAWS("GetOperation")
	}
	switch o := answer.Operation; o.Status {
	case types.OperationStatusSuccess:
		return true, nil
	case types.OperationStatusFail:
		return true, failed(aws.ToString(o.ErrorCode), aws.ToString(o.ErrorMessage))
	case types.OperationStatusSubmitted, types.OperationStatusPending:
	}
	return false, nil
}

// failed is the error of an operation that failed.
func failed(code, message string) error {
	err := fmt.Errorf("the operation of Cloud Map failed: %s: %s", registry.Excerpt(code), registry.Excerpt(message))
	switch code {
	case "INTERNAL_FAILURE", "THROTTLED_REQUEST", "EXPIRED_TOKEN":
		return registry.OneService(registry.Transient(err))
	}
	return registry.Permanent(err)
}

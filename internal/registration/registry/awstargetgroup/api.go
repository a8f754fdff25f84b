// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awsapi"
	"github.com/usher-dev/usher/internal/registration/registry/targets"
)

const (
	// callsPerSecond and callsBurst bound the calls of one account and region, whose limit all its programs share.
	callsPerSecond = 8
	callsBurst     = 16
	// maxTypes bounds how many target groups are known to have Pods as targets.
	maxTypes = 10000
)

// Clients are shared by all connectors of the same account and region: they have the same credentials, and their
// calls are bounded together.
type Clients = targets.Shared[*api]

// NewClients returns Clients, of which a process needs one.
func NewClients() *Clients { return &Clients{} }

// api calls AWS.
type api struct {
	*awsapi.API[*elb.Client]

	mu sync.Mutex
	// types are those of target groups, by ARN, which never change.
	types map[string]types.TargetTypeEnum
}

// optionsOf say how the API is called for a Registry.
func optionsOf(s *usherv1alpha1.AWSTargetGroupRegistry, secret map[string][]byte) awsapi.Options {
	return awsapi.Options{
		Kind: "awsTargetGroup", Region: s.Region, RoleARN: s.RoleARN, Endpoint: s.Endpoint, Secret: secret,
		PerSecond: callsPerSecond, Burst: callsBurst, Known: known,
	}
}

// newAPI checks what it gets, and reads and calls nothing.
func newAPI(options awsapi.Options) (*api, error) {
	client, err := awsapi.New(options, func(config aws.Config, endpoint *string) *elb.Client {
		return elb.NewFromConfig(config, func(o *elb.Options) { o.BaseEndpoint = endpoint })
	})
	if err != nil {
		return nil, err
	}
	return &api{API: client, types: map[string]types.TargetTypeEnum{}}, nil
}

// known returns errors for codes of AWS's about target groups.
func known(code, message string) error {
	if code == "TargetGroupNotFound" || code == "TargetGroupNotFoundException" {
		return &goneError{fmt.Errorf("there is no such target group: %s", message)}
	}
	return nil
}

// ping proves that address and credentials work.
func (a *api) ping(ctx context.Context) error {
	return a.Call(ctx, "DescribeTargetGroups", func(ctx context.Context, client *elb.Client) error {
		_, err := client.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{PageSize: aws.Int32(1)})
		return err
	})
}

// targets lists the targets of a group that sends to addresses.
func (a *api) targets(ctx context.Context, g group) (all []target, err error) {
	kind, err := a.typeOf(ctx, g)
	if err != nil {
		return nil, ofGroup(err, g)
	}
	if kind != types.TargetTypeEnumIp {
		return nil, oneService("target group %s has targets of the type %s, so its health says nothing of single Pods: use the target type ip "+
			"(alb.ingress.kubernetes.io/target-type: ip on the Ingress, or service.beta.kubernetes.io/aws-load-balancer-nlb-target-type: ip "+
			"on the Service), or take this Registry out of spec.registries of the Registration: kube-proxy chooses the Pods then, and "+
			"follows a Registry of the kind service", g.name, registry.Excerpt(string(kind)))
	}
	var answer *elb.DescribeTargetHealthOutput
	err = a.Call(ctx, "DescribeTargetHealth", func(ctx context.Context, client *elb.Client) (err error) {
		answer, err = client.DescribeTargetHealth(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &g.arn})
		return err
	})
	if err != nil {
		return nil, ofGroup(err, g)
	}
	if answer.TargetHealthDescriptions == nil { // not even an empty list
		return nil, oneService("DescribeTargetHealth of target group %s: the answer is none of AWS's: check spec.awsTargetGroup.endpoint", g.name)
	}
	for i := range answer.TargetHealthDescriptions {
		d := &answer.TargetHealthDescriptions[i]
		if d.Target == nil || d.TargetHealth == nil {
			return nil, oneService("target group %s has a target without its health: spec.awsTargetGroup.endpoint may be none of AWS's", g.name)
		}
		all = append(all, target{
			group: g.name, address: targets.Canonical(aws.ToString(d.Target.Id)), port: aws.ToInt32(d.Target.Port),
			state: string(d.TargetHealth.State), reason: string(d.TargetHealth.Reason), description: aws.ToString(d.TargetHealth.Description),
		})
	}
	return all, nil
}

// owner is whose targets a group has, as its tag says; zero without one.
func (a *api) owner(ctx context.Context, g group) (owner registry.Owner, err error) {
	err = a.Call(ctx, "DescribeTags", func(ctx context.Context, client *elb.Client) error {
		answer, err := client.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: []string{g.arn}})
		if err != nil {
			return err
		}
		if len(answer.TagDescriptions) != 1 {
			return oneService("DescribeTags of target group %s: the answer is none of AWS's: check spec.awsTargetGroup.endpoint", g.name)
		}
		for _, tag := range answer.TagDescriptions[0].Tags {
			if aws.ToString(tag.Key) == ownerTag {
				owner = ownerOf(aws.ToString(tag.Value))
			}
		}
		return nil
	})
	return owner, ofGroup(err, g)
}

// tag says whose targets a group has.
func (a *api) tag(ctx context.Context, g group, value string) error {
	return a.Call(ctx, "AddTags", func(ctx context.Context, client *elb.Client) error {
		_, err := client.AddTags(ctx, &elb.AddTagsInput{ResourceArns: []string{g.arn}, Tags: []types.Tag{{Key: aws.String(ownerTag), Value: &value}}})
		return err
	})
}

// register registers targets with a group.
func (a *api) register(ctx context.Context, g group, all []held) error {
	return a.Call(ctx, "RegisterTargets", func(ctx context.Context, client *elb.Client) error {
		_, err := client.RegisterTargets(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &g.arn, Targets: list.Map(all, held.description)})
		return err
	})
}

// deregister begins to deregister targets from a group.
func (a *api) deregister(ctx context.Context, g group, all []held) error {
	return a.Call(ctx, "DeregisterTargets", func(ctx context.Context, client *elb.Client) error {
		_, err := client.DeregisterTargets(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &g.arn, Targets: list.Map(all, held.description)})
		return err
	})
}

// description is how AWS's API names a target.
func (h held) description() types.TargetDescription {
	return types.TargetDescription{Id: &h.address, Port: &h.port}
}

// isDenied reports whether AWS refuses a call for who calls.
func isDenied(err error) bool {
	return errors.Is(err, awsapi.ErrIdentity) || errors.Is(err, awsapi.ErrDenied)
}

// typeOf is what a group has as targets.
func (a *api) typeOf(ctx context.Context, g group) (types.TargetTypeEnum, error) {
	a.mu.Lock()
	kind, known := a.types[g.arn]
	a.mu.Unlock()
	if known {
		return kind, nil
	}
	var answer *elb.DescribeTargetGroupsOutput
	err := a.Call(ctx, "DescribeTargetGroups", func(ctx context.Context, client *elb.Client) (err error) {
		answer, err = client.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{TargetGroupArns: []string{g.arn}})
		return err
	})
	if err != nil {
		return "", err
	}
	if len(answer.TargetGroups) != 1 {
		return "", &goneError{fmt.Errorf("there is no target group %s", g.name)}
	}
	kind = answer.TargetGroups[0].TargetType
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.types) >= maxTypes {
		clear(a.types)
	}
	a.types[g.arn] = kind
	return kind, nil
}

// goneError means that there is no such target group.
type goneError struct{ error }

func isGone(err error) bool {
	_, yes := errors.AsType[*goneError](err)
	return yes
}

// ofGroup makes what AWS refuses of one group an error of its Service: whoever writes a TargetGroupBinding must not
// keep the Registry from others.
func ofGroup(err error, g group) error {
	if errors.Is(err, registry.ErrPermanent) && !errors.Is(err, awsapi.ErrIdentity) && !errors.Is(err, registry.ErrOneService) {
		return registry.OneService(fmt.Errorf("target group %s: %w", g.name, err))
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	staticcredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"golang.org/x/time/rate"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
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
	// connect reads AWS's configuration of Usher's Pod. The first call needs it.
	connect func(context.Context) (*connection, error)
	// role is the one that is assumed for calls; empty for none.
	role  string
	turns *rate.Limiter

	mu sync.Mutex
	// connection is nil before the first call.
	connection *connection
	// types are those of target groups, by ARN, which never change.
	types map[string]types.TargetTypeEnum
}

// connection is what calls need.
type connection struct {
	elb         *elb.Client
	credentials aws.CredentialsProvider
	close       func()
}

// settingsOf are what connectors with the same client have in common.
func settingsOf(s *usherv1alpha1.AWSTargetGroupRegistry, secret map[string][]byte) []string {
	all := []string{s.Region, s.RoleARN, s.Endpoint}
	for _, key := range Keys() {
		all = append(all, string(secret[key]))
	}
	return all
}

// Close ends the connections to AWS.
func (a *api) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.connection != nil {
		a.connection.close()
	}
	return nil
}

// newAPI checks what it gets, and reads and calls nothing.
func newAPI(s *usherv1alpha1.AWSTargetGroupRegistry, secret map[string][]byte) (*api, error) {
	id, key := strings.TrimSpace(string(secret[KeyID])), strings.TrimSpace(string(secret[KeySecret]))
	if (id == "") != (key == "") {
		return nil, fmt.Errorf("the credentials Secret has only one of the keys %s and %s: put in both", KeyID, KeySecret)
	}
	verified, err := credentials.TLS(secret)
	if err != nil {
		return nil, err
	}
	if len(secret[credentials.KeyCA]) == 0 {
		verified = nil // AWS's certificates, or those that the environment says
	}
	// A call is made once: the Pod that waits decides when to try again.
	options := []func(*config.LoadOptions) error{
		config.WithRegion(s.Region), config.WithLogger(logging.Nop{}),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
	}
	if id != "" {
		static := staticcredentials.NewStaticCredentialsProvider(id, key, "")
		options = append(options, config.WithCredentialsProvider(static))
	}
	return &api{
		connect: func(ctx context.Context) (*connection, error) { return connect(ctx, s, verified, options) },
		role:    s.RoleARN,
		turns:   rate.NewLimiter(callsPerSecond, callsBurst), types: map[string]types.TargetTypeEnum{},
	}, nil
}

// connect reads the environment and the files that it names, as set by EKS, and makes the clients of AWS's APIs.
func connect(
	ctx context.Context, s *usherv1alpha1.AWSTargetGroupRegistry, verified *tls.Config,
	options []func(*config.LoadOptions) error,
) (*connection, error) {
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("read AWS's configuration of Usher's Pod: %w", err)
	}
	var endpoint *string
	if s.Endpoint != "" {
		endpoint = &s.Endpoint
	}
	own := clientOf(loaded.HTTPClient, verified)
	loaded.HTTPClient = own
	if s.RoleARN != "" {
		assuming := sts.NewFromConfig(loaded, func(o *sts.Options) { o.BaseEndpoint = endpoint })
		named := func(o *stscreds.AssumeRoleOptions) { o.RoleSessionName = "usher" }
		loaded.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(assuming, s.RoleARN, named))
	}
	return &connection{
		elb:         elb.NewFromConfig(loaded, func(o *elb.Options) { o.BaseEndpoint = endpoint }),
		credentials: loaded.Credentials,
		close:       own.CloseIdleConnections,
	}, nil
}

// connected returns what calls need.
func (a *api) connected(ctx context.Context) (*connection, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.connection != nil {
		return a.connection, nil
	}
	made, err := a.connect(ctx)
	if err != nil {
		return nil, registry.Permanent(marked{err})
	}
	a.connection = made
	return made, nil
}

// clientOf is a client like AWS's own, which follows no redirects, and whose answers are counted.
func clientOf(loaded aws.HTTPClient, verified *tls.Config) *http.Client {
	buildable, ok := loaded.(*awshttp.BuildableClient)
	if !ok {
		buildable = awshttp.NewBuildableClient()
	}
	transport := buildable.GetTransport() // a copy
	if verified != nil {
		transport.TLSClientConfig = verified
	}
	return &http.Client{
		Transport:     counting{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ping proves that address and credentials work.
func (a *api) ping(ctx context.Context) error {
	return a.call(ctx, "DescribeTargetGroups", func(ctx context.Context, client *elb.Client) error {
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
	err = a.call(ctx, "DescribeTargetHealth", func(ctx context.Context, client *elb.Client) (err error) {
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

// typeOf is what a group has as targets.
func (a *api) typeOf(ctx context.Context, g group) (types.TargetTypeEnum, error) {
	a.mu.Lock()
	kind, known := a.types[g.arn]
	a.mu.Unlock()
	if known {
		return kind, nil
	}
	var answer *elb.DescribeTargetGroupsOutput
	err := a.call(ctx, "DescribeTargetGroups", func(ctx context.Context, client *elb.Client) (err error) {
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
	if errors.Is(err, registry.ErrPermanent) && !errors.Is(err, errIdentity) && !errors.Is(err, registry.ErrOneService) {
		return registry.OneService(fmt.Errorf("target group %s: %w", g.name, err))
	}
	return err
}

// call makes a call in its turn, and explains its error.
func (a *api) call(ctx context.Context, what string, do func(context.Context, *elb.Client) error) error {
	if err := a.turns.Wait(ctx); err != nil {
		return registry.OneService(registry.Transient(fmt.Errorf("%s has to wait for others of the same account and region: %w", what, err)))
	}
	with, err := a.connected(ctx)
	if err != nil {
		return err
	}
	if _, err := with.credentials.Retrieve(ctx); err != nil {
		return a.noCredentials(ctx, err)
	}
	if err := do(ctx, with.elb); err != nil {
		return ended(ctx, explained(what, err))
	}
	return nil
}

// noCredentials explains that there are no credentials to call with. They may come: a role's are made anew.
func (a *api) noCredentials(ctx context.Context, err error) error {
	if a.role != "" {
		return ended(ctx, fmt.Errorf("%w; to assume %s, that role has to trust the one of %s", explained("AssumeRole", err), a.role, identityHint))
	}
	return ended(ctx, registry.Transient(fmt.Errorf("there are no credentials for AWS: %w; give Usher's service account a role, "+
		"or name a Secret in spec.awsTargetGroup.credentialsSecret", explained("asking for them", err))))
}

// ended is the error of a call, or that it took too long.
func ended(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return registry.Transient(fmt.Errorf("%w: %w", cause, err))
	}
	return err
}

// errIdentity marks an error about who calls, which concerns all calls.
var errIdentity = errors.New("identity")

var (
	// busy are AWS's errors for calls that come too fast, or at a bad time.
	busy = []string{"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
		"RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "InternalFailure", "InternalError",
		"ServiceUnavailable", "RequestExpired", "ExpiredToken", "ExpiredTokenException"}
	// strangers are those for who calls.
	strangers = []string{"InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "IncompleteSignature",
		"MissingAuthenticationToken", "MissingAuthenticationTokenException", "AuthFailure", "OptInRequired"}
	denied = []string{"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
)

// explained is an error of AWS's library without what changes with each attempt, such as the request's ID.
func explained(what string, err error) error {
	if errors.Is(err, registry.ErrOneService) { // the answer is too long
		return err
	}
	code, message, status := "", "", 0
	if refused, ok := errors.AsType[smithy.APIError](err); ok {
		code, message = refused.ErrorCode(), registry.Excerpt(refused.ErrorMessage())
	}
	if answered, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		status = answered.HTTPStatusCode()
	}
	switch {
	case slices.Contains(busy, code) || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return registry.Transient(fmt.Errorf("AWS is busy: %s: %s (%d): %s", what, registry.Excerpt(code), status, message))
	case code != "":
		return refusal(what, code, message)
	case status >= http.StatusMultipleChoices:
		return registry.Permanent(fmt.Errorf("%s: the answer has the status %d, and is none of AWS's: check spec.awsTargetGroup.endpoint", what, status))
	}
	return registry.Transient(unanswered(what, err))
}

// refusal is an error for one of AWS's that stays until somebody changes something.
func refusal(what, code, message string) error {
	said := fmt.Errorf("AWS refuses %s: %s: %s", what, registry.Excerpt(code), message)
	switch {
	case code == "TargetGroupNotFound" || code == "TargetGroupNotFoundException":
		return &goneError{fmt.Errorf("there is no such target group: %s", message)}
	case slices.Contains(strangers, code):
		return registry.Permanent(fmt.Errorf("%w; check %s", marked{said}, identityHint))
	case slices.Contains(denied, code):
		return registry.Permanent(fmt.Errorf("%w; give the role or user of Usher the policy of https://usher.dev/registry/awstargetgroup.html", said))
	}
	return registry.Permanent(said)
}

const identityHint = "the credentials Secret, or the role of Usher's service account"

type marked struct{ error }

func (m marked) Unwrap() []error { return []error{m.error, errIdentity} }

// unanswered explains a call that no server answered.
func unanswered(what string, err error) error {
	if sent, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		err = sent.Err
	}
	if answered, ok := errors.AsType[*smithyhttp.ResponseError](err); ok { // whose text has the request's ID
		err = answered.Err
	}
	return fmt.Errorf("%s: %w", what, err)
}

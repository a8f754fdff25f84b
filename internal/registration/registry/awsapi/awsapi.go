// SPDX-License-Identifier: Apache-2.0

// Package awsapi calls AWS for connectors: with credentials as AWS's users expect them, at a bounded rate, and with
// errors that say what to do.
package awsapi

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
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"golang.org/x/time/rate"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// Keys of the credentials Secret, besides credentials.KeyCA.
const (
	KeyID     = "aws_access_key_id"
	KeySecret = "aws_secret_access_key" //nolint:gosec // The name of a key.
)

// Keys returns all keys of the credentials Secret.
func Keys() []string { return []string{KeyID, KeySecret, credentials.KeyCA} }

// Options say which API is called, and as whom.
type Options struct {
	// Kind is the kind of registry, as its field in the spec is called.
	Kind string
	// Region is the region of all calls, RoleARN the role that is assumed for them, empty for none.
	Region, RoleARN string
	// Endpoint is the URL of another server than AWS's, empty for AWS's.
	Endpoint string
	// Secret has Keys, each optional.
	Secret map[string][]byte
	// PerSecond and Burst bound the calls of one account and region, whose limit all its programs share.
	PerSecond rate.Limit
	Burst     int
	// Known returns an error for a code of AWS's that the kind has words for, else nil.
	Known func(code, message string) error
}

// Settings are what connectors with the same API have in common.
func (o Options) Settings() []string {
	all := []string{o.Kind, o.Region, o.RoleARN, o.Endpoint}
	for _, key := range Keys() {
		all = append(all, string(o.Secret[key]))
	}
	return all
}

// API calls one of AWS's APIs, by a client of the type C.
type API[C any] struct {
	options Options
	// connect reads AWS's configuration of Usher's Pod. The first call needs it.
	connect func(context.Context) (*connection[C], error)
	turns   *rate.Limiter

	mu sync.Mutex
	// connection is nil before the first call.
	connection *connection[C]
}

// connection is what calls need.
type connection[C any] struct {
	client      C
	credentials aws.CredentialsProvider
	close       func()
}

// New checks what it gets, and reads and calls nothing. The client is made with AWS's configuration, and with the
// endpoint unless that is nil.
func New[C any](o Options, client func(aws.Config, *string) C) (*API[C], error) {
	id, key := strings.TrimSpace(string(o.Secret[KeyID])), strings.TrimSpace(string(o.Secret[KeySecret]))
	if (id == "") != (key == "") {
		return nil, fmt.Errorf("the credentials Secret has only one of the keys %s and %s: put in both", KeyID, KeySecret)
	}
	verified, err := credentials.TLS(o.Secret)
	if err != nil {
		return nil, err
	}
	if len(o.Secret[credentials.KeyCA]) == 0 {
		verified = nil // AWS's certificates, or those that the environment says
	}
	// A call is made once: the Pod that waits decides when to try again.
	options := []func(*config.LoadOptions) error{
		config.WithRegion(o.Region), config.WithLogger(logging.Nop{}),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
	}
	if id != "" {
		static := staticcredentials.NewStaticCredentialsProvider(id, key, "")
		options = append(options, config.WithCredentialsProvider(static))
	}
	return &API[C]{
		connect: func(ctx context.Context) (*connection[C], error) { return connect(ctx, o, verified, options, client) },
		options: o, turns: rate.NewLimiter(o.PerSecond, o.Burst),
	}, nil
}

// Close ends the connections to AWS.
func (a *API[C]) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.connection != nil {
		a.connection.close()
	}
	return nil
}

// connect reads the environment and the files that it names, as set by EKS, and makes the clients of AWS's APIs.
func connect[C any](
	ctx context.Context, o Options, verified *tls.Config, options []func(*config.LoadOptions) error, client func(aws.Config, *string) C,
) (*connection[C], error) {
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("read AWS's configuration of Usher's Pod: %w", err)
	}
	var endpoint *string
	if o.Endpoint != "" {
		endpoint = &o.Endpoint
	}
	own := clientOf(loaded.HTTPClient, verified)
	loaded.HTTPClient = own
	if o.RoleARN != "" {
		assuming := sts.NewFromConfig(loaded, func(s *sts.Options) { s.BaseEndpoint = endpoint })
		named := func(o *stscreds.AssumeRoleOptions) { o.RoleSessionName = "usher" }
		loaded.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(assuming, o.RoleARN, named))
	}
	return &connection[C]{
		client: client(loaded, endpoint), credentials: loaded.Credentials, close: own.CloseIdleConnections,
	}, nil
}

// connected returns what calls need.
func (a *API[C]) connected(ctx context.Context) (*connection[C], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.connection != nil {
		return a.connection, nil
	}
	made, err := a.connect(ctx)
	if err != nil {
		return nil, registry.Permanent(marked{err, ErrIdentity})
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

// Call makes a call in its turn, and explains its error.
func (a *API[C]) Call(ctx context.Context, what string, do func(context.Context, C) error) error {
	if err := a.turns.Wait(ctx); err != nil {
		if ctx.Err() == nil { // its turn would come too late
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		err = ended(ctx, err)
		return registry.OneService(registry.Transient(fmt.Errorf("%s has to wait for others of the same account and region: %w", what, err)))
	}
	with, err := a.connected(ctx)
	if err != nil {
		return err
	}
	if _, err := with.credentials.Retrieve(ctx); err != nil {
		return a.noCredentials(ctx, err)
	}
	if err := do(ctx, with.client); err != nil {
		return ended(ctx, a.explained(what, err))
	}
	return nil
}

// noCredentials explains that there are no credentials to call with. They may come: a role's are made anew.
func (a *API[C]) noCredentials(ctx context.Context, err error) error {
	if a.options.RoleARN != "" {
		return ended(ctx, fmt.Errorf("%w; to assume %s, that role has to trust the one of %s", a.explained("AssumeRole", err), a.options.RoleARN, identityHint))
	}
	return ended(ctx, registry.Transient(fmt.Errorf("there are no credentials for AWS: %w; give Usher's service account a role, "+
		"or name a Secret in spec.%s.credentialsSecret", a.explained("asking for them", err), a.options.Kind)))
}

// ended is the error of a call, or that it took too long.
func ended(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return registry.Transient(fmt.Errorf("%w: %w", cause, err))
	}
	return err
}

var (
	// ErrIdentity marks an error about who calls, which concerns all calls.
	ErrIdentity = errors.New("identity")
	// ErrDenied marks a call for which the caller has no right.
	ErrDenied = errors.New("denied")
)

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
func (a *API[C]) explained(what string, err error) error {
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
		return a.refusal(what, code, message)
	case status >= http.StatusMultipleChoices:
		return registry.Permanent(fmt.Errorf("%s: the answer has the status %d, and is none of AWS's: check spec.%s.endpoint", what, status, a.options.Kind))
	}
	return registry.Transient(unanswered(what, err))
}

// refusal is an error for one of AWS's that stays until somebody changes something.
func (a *API[C]) refusal(what, code, message string) error {
	said := fmt.Errorf("AWS refuses %s: %s: %s", what, registry.Excerpt(code), message)
	if known := a.options.Known(code, message); known != nil {
		return known
	}
	switch {
	case slices.Contains(strangers, code):
		return registry.Permanent(fmt.Errorf("%w; check %s", marked{said, ErrIdentity}, identityHint))
	case slices.Contains(denied, code):
		return registry.Permanent(fmt.Errorf("%w; give the role or user of Usher the policy of https://usher.dev/registry/%s.html", marked{said, ErrDenied}, strings.ToLower(a.options.Kind)))
	}
	return registry.Permanent(said)
}

const identityHint = "the credentials Secret, or the role of Usher's service account"

type marked struct{ error, mark error } //nolint:errname // As in package registry.

func (m marked) Error() string { return m.error.Error() }

func (m marked) Unwrap() []error { return []error{m.error, m.mark} }

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

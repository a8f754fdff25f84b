// SPDX-License-Identifier: Apache-2.0

package gcpneg

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"golang.org/x/time/rate"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
	"github.com/usher-dev/usher/internal/registration/registry/targets"
)

const (
	// callsPerSecond and callsBurst bound the calls of one project, whose quota all its programs share.
	callsPerSecond = 8
	callsBurst     = 16
	// maxPages bounds the pages of one group, each of up to 500 endpoints.
	maxPages = 10
	// tokenTimeout bounds the request for a token, which may outlive the call that waits for it.
	tokenTimeout = 10 * time.Second

	defaultEndpoint = "https://compute.googleapis.com"
	tokenURL        = "https://oauth2.googleapis.com/token" //nolint:gosec // An address.
	scope           = "https://www.googleapis.com/auth/compute.readonly"
	// kind is that of an answer with endpoints.
	kind = "compute#networkEndpointGroupsListNetworkEndpoints"
)

// Clients are shared by all connectors of the same project: they have the same credentials, and their calls are bounded
// together.
type Clients = targets.Shared[*api]

// NewClients returns Clients, of which a process needs one.
func NewClients() *Clients { return &Clients{} }

// api calls Google Cloud.
type api struct {
	project string
	http    *rest.Client
	turns   *rate.Limiter
	tokens  func(ctx context.Context) (oauth2.TokenSource, error)

	mu sync.Mutex
	// source is nil before the first call.
	source oauth2.TokenSource
}

// settingsOf are what connectors with the same client have in common.
func settingsOf(s *usherv1alpha1.GCPNEGRegistry, secret map[string][]byte) []string {
	all := []string{s.Project, s.Endpoint}
	for _, key := range Keys() {
		all = append(all, string(secret[key]))
	}
	return all
}

// Close ends the connections to Google Cloud.
func (a *api) Close() error { return a.http.Close() }

// newAPI checks what it gets, and calls nothing.
func newAPI(s *usherv1alpha1.GCPNEGRegistry, secret map[string][]byte) (*api, error) {
	client, err := rest.New(rest.Options{
		Field: "spec.gcpNEG.endpoint", Example: defaultEndpoint, Address: cmp.Or(s.Endpoint, defaultEndpoint), Secret: secret, Hint: identityHint,
	})
	if err != nil {
		return nil, err
	}
	tokens := ambient
	if key := secret[Key]; len(key) > 0 {
		if tokens, err = ofKey(s, secret); err != nil {
			return nil, err
		}
	}
	return &api{project: s.Project, http: client, turns: rate.NewLimiter(callsPerSecond, callsBurst), tokens: tokens}, nil
}

// ofKey gets tokens with a key of a service account. Whoever writes the Secret may not choose to whom Usher sends what it
// has signed: tokens come from Google, or from the server that the Registry names.
func ofKey(s *usherv1alpha1.GCPNEGRegistry, secret map[string][]byte) (func(context.Context) (oauth2.TokenSource, error), error) {
	from := tokenURL
	if s.Endpoint != "" {
		from = strings.TrimRight(s.Endpoint, "/") + "/token"
	}
	var key struct {
		Type     string `json:"type"`
		TokenURI string `json:"token_uri"`
	}
	switch err := json.Unmarshal(secret[Key], &key); {
	case err != nil, key.Type != "service_account":
		return nil, fmt.Errorf("the credentials Secret's %s is no key of a service account: put one there, as "+
			"gcloud iam service-accounts keys create writes it", Key)
	case key.TokenURI != tokenURL && key.TokenURI != from:
		return nil, fmt.Errorf("the credentials Secret's %s has another token_uri than %s: use a key of Google Cloud", Key, tokenURL)
	}
	config, err := google.JWTConfigFromJSON(secret[Key], scope)
	if err != nil { // whose text may repeat the key
		return nil, fmt.Errorf("the credentials Secret's %s is no key of a service account", Key)
	}
	verified, err := credentials.TLS(secret)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = verified
	own := &http.Client{
		Transport: transport, Timeout: tokenTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) (oauth2.TokenSource, error) { // the source outlives the first call
		return config.TokenSource(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, own)), nil
	}, nil
}

// ambient gets tokens as Google's libraries do: by the environment of Usher's Pod, or from the metadata server.
func ambient(ctx context.Context) (oauth2.TokenSource, error) {
	own := &http.Client{Timeout: tokenTimeout}
	found, err := google.FindDefaultCredentials(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, own), scope)
	if err != nil {
		return nil, err
	}
	return found.TokenSource, nil
}

// token returns a token, for which a call waits no longer than its context.
func (a *api) token(ctx context.Context) (string, error) {
	type answer struct {
		token *oauth2.Token
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		token, err := a.nextToken(ctx)
		got <- answer{token, err}
	}()
	select {
	case <-ctx.Done():
		return "", registry.Transient(fmt.Errorf("get a token of Google Cloud: %w", ctx.Err()))
	case one := <-got:
		if one.err != nil {
			return "", noToken(one.err)
		}
		return one.token.AccessToken, nil
	}
}

func (a *api) nextToken(ctx context.Context) (*oauth2.Token, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.source == nil {
		source, err := a.tokens(ctx)
		if err != nil {
			return nil, err
		}
		a.source = oauth2.ReuseTokenSource(nil, source)
	}
	return a.source.Token()
}

// noToken explains that there are no credentials to call with.
func noToken(err error) error {
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response != nil {
		said := fmt.Errorf("Google Cloud gives no token (%d %s): check %s", //nolint:staticcheck // A name.
			refused.Response.StatusCode, registry.Excerpt(cmp.Or(refused.ErrorDescription, refused.ErrorCode)), identityHint)
		if refused.Response.StatusCode < http.StatusInternalServerError && refused.Response.StatusCode != http.StatusTooManyRequests {
			return registry.Permanent(said)
		}
		return registry.Transient(said)
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = fmt.Errorf("%s: %w", failed.Op, failed.Err)
	}
	return registry.Transient(fmt.Errorf("there is no token of Google Cloud: %w; give Usher's service account one by Workload Identity "+
		"Federation, or name a Secret in spec.gcpNEG.credentialsSecret", err))
}

const identityHint = "the credentials Secret, or the roles of Usher's service account"

// ping proves that address and credentials work.
func (a *api) ping(ctx context.Context) error {
	_, err := a.send(ctx, rest.Question{
		Method: http.MethodGet, Path: "/compute/v1/projects/" + url.PathEscape(a.project) + "/aggregated/networkEndpointGroups",
		Query: url.Values{"maxResults": {"1"}},
	})
	return err
}

// page is an answer with endpoints.
type page struct {
	Kind  string `json:"kind"`
	Items []struct {
		Endpoint *struct {
			Address string `json:"ipAddress"`
			Port    int32  `json:"port"`
		} `json:"networkEndpoint"`
		Healths []struct {
			State string `json:"healthState"`
		} `json:"healths"`
	} `json:"items"`
	Next string `json:"nextPageToken"`
}

// endpoints lists a group.
func (a *api) endpoints(ctx context.Context, g group) (all []endpoint, err error) {
	next := ""
	for range maxPages {
		var more []endpoint
		if more, next, err = a.page(ctx, g, next); err != nil {
			return nil, err
		}
		if all = append(all, more...); next == "" {
			return all, nil
		}
	}
	return nil, oneService("network endpoint group %s in %s has more than %d pages of endpoints: spread the Service over several", g.name, g.zone, maxPages)
}

// page lists a page of a group.
func (a *api) page(ctx context.Context, g group, token string) (all []endpoint, next string, err error) {
	question := rest.Question{
		Method: http.MethodPost, Path: fmt.Sprintf("/compute/v1/projects/%s/zones/%s/networkEndpointGroups/%s/listNetworkEndpoints",
			url.PathEscape(a.project), g.zone, g.name),
		JSON: map[string]string{"healthStatus": "SHOW"},
	}
	if token != "" {
		question.Query = url.Values{"pageToken": {token}}
	}
	answer, err := a.send(ctx, question)
	if err != nil {
		return nil, "", ofGroup(err, g)
	}
	var list page
	if err := answer.Decode("Google Cloud", &list); err != nil {
		return nil, "", registry.OneService(err)
	}
	if list.Kind != kind { // not even an empty list
		return nil, "", oneService("network endpoint group %s: the answer is none of Google Cloud's: check spec.gcpNEG.endpoint", g.name)
	}
	for _, item := range list.Items {
		if item.Endpoint == nil || item.Endpoint.Address == "" {
			return nil, "", oneService("network endpoint group %s has an endpoint without an address: only groups of Pods "+
				"(GCE_VM_IP_PORT) can be followed", g.name)
		}
		if item.Endpoint.Port == 0 {
			return nil, "", oneService("network endpoint group %s has nodes as endpoints (GCE_VM_IP), so its health says nothing of single Pods: "+
				"use container-native load balancing (cloud.google.com/neg on the Service), or take this Registry out of spec.registries of the "+
				"Registration: kube-proxy chooses the Pods then, and follows a Registry of the kind service", g.name)
		}
		one := endpoint{address: targets.Canonical(item.Endpoint.Address), port: item.Endpoint.Port}
		for _, health := range item.Healths {
			one.healths = append(one.healths, health.State)
		}
		all = append(all, one)
	}
	return all, list.Next, nil
}

// errGone means that there is no such group.
var errGone = errors.New("there is no such network endpoint group")

// errIdentity marks an error about who calls, which concerns all calls.
var errIdentity = errors.New("identity")

type marked struct{ error }

func (m marked) Unwrap() []error { return []error{m.error, errIdentity} }

// ofGroup makes what Google Cloud refuses of one group an error of its Service: whoever writes the annotation must not
// keep the Registry from others.
func ofGroup(err error, g group) error {
	if errors.Is(err, registry.ErrPermanent) && !errors.Is(err, errIdentity) && !errors.Is(err, registry.ErrOneService) {
		return registry.OneService(fmt.Errorf("network endpoint group %s in %s: %w", g.name, g.zone, err))
	}
	return err
}

// send makes a call in its turn, and explains its error.
func (a *api) send(ctx context.Context, q rest.Question) (*rest.Answer, error) {
	if err := a.turns.Wait(ctx); err != nil {
		return nil, registry.OneService(registry.Transient(fmt.Errorf("the call has to wait for others of the same project: %w", err)))
	}
	token, err := a.token(ctx)
	if err != nil {
		return nil, err
	}
	q.Header = http.Header{"Authorization": {"Bearer " + token}}
	answer, err := a.http.Send(ctx, q)
	if err != nil {
		return nil, err
	}
	if answer.Code != http.StatusOK {
		return nil, explained(answer)
	}
	return answer, nil
}

var (
	// busy are Google's reasons for refusing calls that come too fast, or at a bad time.
	busy = []string{"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "resourceNotReady", "backendError", "internalError"}
	// strangers are those about who calls, or about the whole project.
	strangers = []string{"authError", "accessNotConfigured", "SERVICE_DISABLED", "billingDisabled"}
)

// explained is the error of an answer.
func explained(answer *rest.Answer) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	_ = json.Unmarshal(answer.Body, &body) // what is none of Google's has no reason
	reason := ""
	if len(body.Error.Errors) > 0 {
		reason = body.Error.Errors[0].Reason
	}
	if body.Error.Message == "" {
		if answer.Code >= http.StatusInternalServerError || answer.Code == http.StatusTooManyRequests {
			return answer.Refusal()
		}
		return registry.Permanent(fmt.Errorf("the answer has the status %d, and is none of Google Cloud's: check spec.gcpNEG.endpoint", answer.Code))
	}
	said := fmt.Errorf("Google Cloud refuses the call: %s (%d %s)", //nolint:staticcheck // A name.
		answer.Excerpt(body.Error.Message), answer.Code, answer.Excerpt(reason))
	switch {
	case slices.Contains(busy, reason), answer.Code == http.StatusTooManyRequests, answer.Code >= http.StatusInternalServerError:
		return registry.Transient(said)
	case answer.Code == http.StatusNotFound && strings.Contains(body.Error.Message, "/networkEndpointGroups/"): // not its project or zone
		return fmt.Errorf("%w: %s", errGone, answer.Excerpt(body.Error.Message))
	case slices.Contains(strangers, reason), answer.Code == http.StatusUnauthorized:
		return registry.Permanent(marked{fmt.Errorf("%w; check %s", said, identityHint)})
	case answer.Code == http.StatusForbidden:
		return registry.Permanent(fmt.Errorf("%w; give the service account of Usher the role of https://usher.dev/registry/gcpneg.html", said))
	}
	return registry.Permanent(said)
}

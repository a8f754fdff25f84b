// SPDX-License-Identifier: Apache-2.0

// Package access asks the API server who a caller of Usher's own servers is, and what it may read.
// controller-runtime has a filter for metrics that does this too, but needs 23 more modules.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

const (
	// answersLast is how long an answer of the API server counts, maxAnswers how many answers yes, and
	// how many answers no, are kept.
	answersLast = time.Minute
	maxAnswers  = 1000
	// knownFor is how long a token that was allowed once has precedence over tokens that never were.
	knownFor = time.Hour
	// questions bounds the requests a second: made-up callers must not use up the API server's time,
	// and the rest of Usher has its own limit. A token takes two requests.
	questions      = 10
	tokensASecond  = 2
	knownASecond   = 1
	servicesSecond = questions - 2*(tokensASecond+knownASecond)
	timeout        = 10 * time.Second
	// perAddress bounds how many tokens of one address wait to be confirmed, and maxAddresses bounds
	// the addresses with such tokens.
	perAddress   = 4
	maxAddresses = 256
	// perClient and maxClients are the bounds for xDS, as many as it has streams: its clients'
	// certificates are verified.
	perClient  = 100
	maxClients = 10000
	// maxToken is longer than any token, in bytes.
	maxToken = 16 << 10
)

// Reviewer asks the API server. Unconfirmed tokens, tokens that were allowed before, and client
// certificates each have a line of their own, so that no known caller waits behind made-up tokens.
type Reviewer struct {
	tokens authentication.TokenReviewsGetter
	access authorization.SubjectAccessReviewsGetter
	// yes and no cache the answers separately: made-up tokens fill only the cache of no.
	yes, no *cache.LRUExpireCache
	// known are tokens that were allowed.
	known *cache.LRUExpireCache
	// unconfirmed, confirmed and services are the lines.
	unconfirmed, confirmed, services *Line
}

// New returns a Reviewer.
func New(config *rest.Config) (*Reviewer, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Timeout = -1, timeout // The lines bound the requests.
	tokens, err := authentication.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("ask the API server who callers are: %w", err)
	}
	access, err := authorization.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("ask the API server what callers may do: %w", err)
	}
	r := &Reviewer{
		tokens: tokens, access: access, services: NewLine(servicesSecond, perClient, maxClients),
		unconfirmed: NewLine(tokensASecond, perAddress, maxAddresses),
		confirmed:   NewLine(knownASecond, perAddress, maxAddresses),
	}
	r.remember(clock.RealClock{})
	return r, nil
}

// remember makes the caches.
func (r *Reviewer) remember(clock cache.Clock) {
	r.yes, r.no = cache.NewLRUExpireCacheWithClock(maxAnswers, clock), cache.NewLRUExpireCacheWithClock(maxAnswers, clock)
	r.known = cache.NewLRUExpireCacheWithClock(maxAnswers, clock)
}

// Metrics returns a filter of controller-runtime's metrics server: it serves only requests whose bearer
// token belongs to a user that may "get" the path.
func Metrics(config *rest.Config, _ *http.Client) (server.Filter, error) {
	r, err := New(config)
	if err != nil {
		return nil, err
	}
	return func(log logr.Logger, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			code, err := r.ofRequest(request.Context(), request)
			if err != nil {
				log.Error(err, "Cannot find out whether a caller may read this")
				code = http.StatusInternalServerError
			}
			if code != http.StatusOK {
				http.Error(w, http.StatusText(code), code)
				return
			}
			next.ServeHTTP(w, request)
		}), nil
	}, nil
}

// ofRequest returns the HTTP status for a request; 200 if it is allowed.
func (r *Reviewer) ofRequest(ctx context.Context, request *http.Request) (int, error) {
	token, ok := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	if !ok || !isToken(token) {
		return http.StatusUnauthorized, nil
	}
	ask := authorizationv1.NonResourceAttributes{Path: request.URL.Path, Verb: strings.ToLower(request.Method)}
	sum := sha256.Sum256([]byte(token))
	hash := string(sum[:])
	code, err := remembered(r, [3]string{hash, ask.Path, ask.Verb}, http.StatusOK, func() (int, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := r.lineOf(hash).Turn(ctx, NetworkOf(request.RemoteAddr)); err != nil {
			return 0, err
		}
		return r.ofToken(ctx, token, ask)
	})
	if code == http.StatusOK {
		r.known.Add(hash, nil, knownFor)
	}
	if errors.Is(err, ErrBusy) {
		return http.StatusTooManyRequests, nil
	}
	return code, err
}

// isToken reports whether a text may be a token; the API server need not be asked about any other.
func isToken(text string) bool {
	unprintable := func(c rune) bool { return c <= ' ' || c > '~' }
	return text != "" && len(text) <= maxToken && !strings.ContainsFunc(text, unprintable)
}

// lineOf returns the line in which a token waits. Tokens that were allowed before have a line of their
// own, so that they do not wait behind unconfirmed ones.
func (r *Reviewer) lineOf(hash string) *Line {
	if _, could := r.known.Get(hash); could {
		return r.confirmed
	}
	return r.unconfirmed
}

// NetworkOf returns the address without its port; for IPv6, the network, since one host may have all
// addresses in it.
func NetworkOf(remote string) string {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ""
	}
	bits := 32
	if from.Addr().Unmap().Is6() {
		bits = 64
	}
	network, _ := from.Addr().Unmap().WithZone("").Prefix(bits) // never too many bits
	return network.String()
}

// remembered returns the cached answer to a question, or asks it.
func remembered[K, A comparable](r *Reviewer, question K, yes A, ask func() (A, error)) (A, error) {
	for _, answers := range []*cache.LRUExpireCache{r.yes, r.no} {
		if answer, known := answers.Get(question); known {
			return answer.(A), nil
		}
	}
	answer, err := ask()
	switch {
	case err != nil:
	case answer == yes:
		r.yes.Add(question, answer, answersLast)
	default:
		r.no.Add(question, answer, answersLast)
	}
	return answer, err
}

func (r *Reviewer) ofToken(ctx context.Context, token string, ask authorizationv1.NonResourceAttributes) (int, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := r.tokens.TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{}, NonResourceAttributes: &ask,
	}
	for key, values := range user.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	allowed, err := r.allows(ctx, spec)
	if !allowed {
		return http.StatusForbidden, err
	}
	return http.StatusOK, nil
}

// MayReadServices reports whether the user of a client's certificate may get the EndpointSlices
// of a namespace. As in certificates for the API server, the common name is the user's name, and
// the organizations are its groups.
func (r *Reviewer) MayReadServices(ctx context.Context, client *x509.Certificate, namespace string) (bool, error) {
	return remembered(r, [2]string{string(client.RawSubject), namespace}, true, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := r.services.Turn(ctx, string(client.RawSubject)); err != nil {
			return false, err
		}
		return r.allows(ctx, authorizationv1.SubjectAccessReviewSpec{
			User: client.Subject.CommonName, Groups: client.Subject.Organization,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: "get", Group: "discovery.k8s.io", Resource: "endpointslices",
			},
		})
	})
}

func (r *Reviewer) allows(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: spec}
	review, err := r.access.SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the access of %s: %w", spec.User, err)
	}
	return review.Status.Allowed, nil
}

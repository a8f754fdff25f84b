// SPDX-License-Identifier: Apache-2.0

// Package access asks the API server who a caller of Usher's own servers is, and what it may
// read. controller-runtime has a filter for metrics that does this too, for 23 more modules.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/http"
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
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

const (
	// answersLast is how long an answer of the API server counts, maxAnswers how many are kept.
	answersLast = time.Minute
	maxAnswers  = 1000
	// questions bounds those a second: whoever makes up callers must not take the API server's
	// time, and the rest of Usher has a share of its own.
	questions = 10
	timeout   = 10 * time.Second
)

// Reviewer asks the API server.
type Reviewer struct {
	tokens  authentication.TokenReviewsGetter
	access  authorization.SubjectAccessReviewsGetter
	answers *cache.LRUExpireCache
}

// New returns a Reviewer.
func New(config *rest.Config) (*Reviewer, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.Timeout = questions, 2*questions, timeout
	tokens, err := authentication.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("ask the API server who callers are: %w", err)
	}
	access, err := authorization.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("ask the API server what callers may do: %w", err)
	}
	return &Reviewer{tokens: tokens, access: access, answers: cache.NewLRUExpireCache(maxAnswers)}, nil
}

// Metrics is a filter of controller-runtime's metrics server: only who may "get" the path, as
// the bearer token of the request says, is served.
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

// ofRequest is the status to answer a request with, unless there is an error; 200 if it may go on.
func (r *Reviewer) ofRequest(ctx context.Context, request *http.Request) (int, error) {
	token, ok := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return http.StatusUnauthorized, nil
	}
	ask := authorizationv1.NonResourceAttributes{Path: request.URL.Path, Verb: strings.ToLower(request.Method)}
	hash := sha256.Sum256([]byte(token))
	return remembered(r, [3]string{string(hash[:]), ask.Path, ask.Verb}, func() (int, error) { return r.ofToken(ctx, token, ask) })
}

// remembered is the answer to a question that may have been asked lately.
func remembered[K comparable, A any](r *Reviewer, question K, ask func() (A, error)) (A, error) {
	if answer, known := r.answers.Get(question); known {
		return answer.(A), nil
	}
	answer, err := ask()
	if err == nil {
		r.answers.Add(question, answer, answersLast)
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
	return remembered(r, [2]string{string(client.RawSubject), namespace}, func() (bool, error) {
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

// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

const (
	pathInstance = "/nacos/v3/admin/ns/instance"
	pathLogin    = "/nacos/v3/auth/user/login"
	// pingService is the name that Ping asks for. Nothing is registered under it.
	pingService = "usher-ping"
	// loginShare sets when a login is renewed: when 1/loginShare of its lifetime is
	// left.
	loginShare = 10
)

// errNotFound means that Nacos knows no such service, or no such cluster of it.
var errNotFound = errors.New("there is no such service")

// login is an access token.
type login struct {
	token string
	until time.Time
}

// result wraps every answer of the API.
type result struct {
	Code    *int
	Message string
	Data    json.RawMessage
}

// call makes a request and decodes its data. If the server no longer knows the login,
// for example after a restart with another key, call logs in again once.
func (r *Registry) call(ctx context.Context, method, path string, form url.Values, into any) error {
	for attempt := 0; ; attempt++ {
		token, err := r.token(ctx)
		if err != nil {
			return err
		}
		answer, err := r.send(ctx, method, path, form, token)
		if err != nil {
			return err
		}
		if answer.Denied() && token != "" && attempt == 0 {
			r.forget(token)
			continue
		}
		return r.decode(answer, into)
	}
}

// send makes one request.
func (r *Registry) send(ctx context.Context, method, path string, form url.Values, token string) (*rest.Answer, error) {
	q := rest.Question{Method: method, Path: path, Header: http.Header{}}
	if method == http.MethodPost || method == http.MethodPut {
		q.Body = []byte(form.Encode())
	} else {
		q.Query = form
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	return r.client.Send(ctx, q)
}

// decode decodes an answer, or returns an error that describes the problem.
func (r *Registry) decode(answer *rest.Answer, into any) error {
	var said result
	err := json.Unmarshal(answer.Body, &said)
	isNacos := err == nil && said.Code != nil
	switch {
	case answer.Code == http.StatusNotFound && isNacos && strings.Contains(string(said.Data), "is not found"):
		return errNotFound
	case answer.Code != http.StatusOK:
		return r.failure(answer)
	case !isNacos:
		return registry.Permanent(fmt.Errorf("%s did not answer like Nacos 3: check nacos.address: %s", answer.Where, r.excerpt(answer)))
	case *said.Code != 0:
		return registry.Permanent(fmt.Errorf("%s answered: %s", answer.Where, r.excerpt(answer)))
	}
	if err := json.Unmarshal(said.Data, into); err != nil {
		return registry.Permanent(fmt.Errorf("%s did not answer like Nacos 3: check nacos.address: %w", answer.Where, err))
	}
	return nil
}

// failure types an unusable answer.
func (r *Registry) failure(answer *rest.Answer) error {
	err := answer.Refusal(r.currentToken())
	if answer.Code == http.StatusGone || answer.Code == http.StatusNotFound {
		err = fmt.Errorf("%w; Nacos 3.0 or newer is needed", err)
	}
	return err
}

// token logs in unless a login is still valid. It is empty without credentials.
func (r *Registry) token(ctx context.Context) (string, error) {
	if r.username == "" {
		return "", nil
	}
	r.mu.Lock()
	have := r.login
	r.mu.Unlock()
	now := r.now()
	if have.token != "" && now.Before(have.until) {
		return have.token, nil
	}
	answer, err := r.send(ctx, http.MethodPost, pathLogin, url.Values{
		credentials.KeyUsername: {r.username}, credentials.KeyPassword: {r.password}}, "")
	if err != nil {
		return "", err
	}
	if answer.Code == http.StatusInternalServerError {
		return "", registry.Transient(fmt.Errorf("%w; some servers answer a wrong password in this way: check the keys %s and %s of the "+
			"credentials Secret", r.failure(answer), credentials.KeyUsername, credentials.KeyPassword))
	}
	if answer.Code != http.StatusOK {
		return "", r.failure(answer)
	}
	var said struct {
		AccessToken string
		TokenTTL    int64 // In seconds.
	}
	if err := json.Unmarshal(answer.Body, &said); err != nil || said.AccessToken == "" {
		return "", registry.Permanent(fmt.Errorf("%s answered without an access token: check nacos.address", answer.Where))
	}
	life := time.Duration(said.TokenTTL) * time.Second
	next := login{token: said.AccessToken, until: now.Add(life - life/loginShare)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = next
	return next.token, nil
}

// forget discards a login that the server refuses, unless it was renewed.
func (r *Registry) forget(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.login.token == token {
		r.login = login{}
	}
}

// currentToken is what Nacos may repeat but an error must not.
func (r *Registry) currentToken() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.login.token
}

// excerpt returns what an error repeats of an answer.
func (r *Registry) excerpt(answer *rest.Answer) string {
	return answer.Excerpt(string(answer.Body), r.currentToken())
}

// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/registry"
)

const (
	pathInstance = "/v3/admin/ns/instance"
	pathLogin    = "/v3/auth/user/login"
	// pingService is a name that Ping asks for; nothing is registered by it.
	pingService = "usher-ping"
	// maxResponse bounds what is read of an answer, in bytes: about 60,000 entries.
	maxResponse = 64 << 20
	// maxMessage bounds how much of an answer an error repeats, in bytes.
	maxMessage = 256
	// loginShare is the part of a login's time, as a divisor, that is left when it
	// is renewed.
	loginShare = 10
)

// errNotFound says that Nacos knows no such service, or none with such a cluster.
var errNotFound = errors.New("there is no such service")

// login is an access token.
type login struct {
	token string
	until time.Time
}

// result is what every answer of the API is wrapped in.
type result struct {
	Code    *int
	Message string
	Data    json.RawMessage
}

// call makes a request and decodes its data. A login that the server no longer
// knows, because it was started anew with another key, is made anew once.
func (r *Registry) call(ctx context.Context, method, path string, form url.Values, into any) error {
	for attempt := 0; ; attempt++ {
		token, err := r.token(ctx)
		if err != nil {
			return err
		}
		code, data, err := r.send(ctx, method, path, form, token)
		if err != nil {
			return err
		}
		denied := code == http.StatusUnauthorized || code == http.StatusForbidden
		if denied && token != "" && attempt == 0 {
			r.forget(token)
			continue
		}
		return r.decode(path, code, data, into)
	}
}

// send makes one request.
func (r *Registry) send(ctx context.Context, method, path string, form url.Values, token string) (int, []byte, error) {
	target, body := r.base+path, io.Reader(http.NoBody)
	if method == http.MethodPost || method == http.MethodPut {
		body = strings.NewReader(form.Encode())
	} else if len(form) > 0 {
		target += "?" + form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return 0, nil, registry.Permanent(fmt.Errorf("nacos.address: %w", err))
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return 0, nil, registry.Transient(err)
	}
	defer func() { _ = response.Body.Close() }() // Nothing is lost: it was read or is not wanted.
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return 0, nil, registry.Transient(fmt.Errorf("read the answer: %w", err))
	}
	if len(data) > maxResponse {
		return 0, nil, registry.Permanent(fmt.Errorf("%s%s answered with more than %d bytes", r.base, path, maxResponse))
	}
	return response.StatusCode, data, nil
}

// decode reads an answer, or says what is wrong with it.
func (r *Registry) decode(path string, code int, data []byte, into any) error {
	var said result
	err := json.Unmarshal(data, &said)
	isNacos := err == nil && said.Code != nil
	switch {
	case code == http.StatusNotFound && isNacos && strings.Contains(string(said.Data), "is not found"):
		return errNotFound
	case code != http.StatusOK:
		return r.failure(path, code, data)
	case !isNacos:
		return registry.Permanent(fmt.Errorf("%s%s answered with something else than Nacos 3 does: %s", r.base, path, r.shorten(data)))
	case *said.Code != 0:
		return registry.Permanent(fmt.Errorf("%s%s answered: %s", r.base, path, r.shorten(data)))
	}
	if err := json.Unmarshal(said.Data, into); err != nil {
		return registry.Permanent(fmt.Errorf("%s%s answered with something else than Nacos 3 does: %w", r.base, path, err))
	}
	return nil
}

// errDenied marks an answer that concerns the credentials and so every change.
var errDenied = errors.New("access denied")

// failure types an answer that is none.
func (r *Registry) failure(path string, code int, data []byte) error {
	err := fmt.Errorf("%s%s answered %d %s: %s", r.base, path, code, http.StatusText(code), r.shorten(data))
	switch {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return registry.Transient(err)
	case code == http.StatusForbidden, code == http.StatusUnauthorized:
		return registry.Permanent(fmt.Errorf("%w; check the keys %s and %s of the credentials Secret, and that the user is an admin: %w",
			err, KeyUsername, KeyPassword, errDenied))
	case code == http.StatusGone, code == http.StatusNotFound:
		return registry.Permanent(fmt.Errorf("%w; Nacos 3.0 or newer is needed", err))
	}
	return registry.Permanent(err)
}

// token logs in unless a login is still good; empty without credentials.
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
	code, data, err := r.send(ctx, http.MethodPost, pathLogin, url.Values{
		KeyUsername: {r.username}, KeyPassword: {r.password}}, "")
	if err != nil {
		return "", err
	}
	if code == http.StatusInternalServerError {
		return "", registry.Transient(fmt.Errorf("%w; some servers say so of a wrong password: check the keys %s and %s of the "+
			"credentials Secret", r.failure(pathLogin, code, data), KeyUsername, KeyPassword))
	}
	if code != http.StatusOK {
		return "", r.failure(pathLogin, code, data)
	}
	var said struct {
		AccessToken string
		TokenTTL    int64 // Seconds.
	}
	if err := json.Unmarshal(data, &said); err != nil || said.AccessToken == "" {
		return "", registry.Permanent(fmt.Errorf("%s%s answered without an access token", r.base, pathLogin))
	}
	life := time.Duration(said.TokenTTL) * time.Second
	next := login{token: said.AccessToken, until: now.Add(life - life/loginShare)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = next
	return next.token, nil
}

// forget gives up a login that the server refuses, unless it was renewed.
func (r *Registry) forget(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.login.token == token {
		r.login = login{}
	}
}

// shorten makes text fit for an error; credentials that Nacos repeats are left out.
func (r *Registry) shorten(data []byte) string {
	text := string(data)
	r.mu.Lock()
	token := r.login.token
	r.mu.Unlock()
	for _, secret := range []string{r.password, token} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "<secret>")
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

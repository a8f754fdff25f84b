// SPDX-License-Identifier: Apache-2.0

// Package webhook keeps entries in the user's own HTTP service. docs/registry/webhook.md
// describes the protocol for the authors of such a service.
package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// KeyHMAC is the key of the credentials Secret that signs every request. For https the Secret
// may also hold credentials.KeyCA.
const KeyHMAC = "hmac"

// Headers of every request.
const (
	// HeaderTimestamp holds the time of signing, in seconds since 1970.
	HeaderTimestamp = "Usher-Timestamp"
	// HeaderSignature holds "v1=" followed by the signature in hexadecimal. It is
	// absent if there is no key.
	HeaderSignature = "Usher-Signature"
)

// Paths of the operations, below the base URL. All are POST.
const (
	PathPing  = "/v1/ping"
	PathList  = "/v1/list"
	PathApply = "/v1/apply"
)

// ListRequest asks for the entries of a service.
type ListRequest struct {
	Service string `json:"service"`
}

// ListResponse holds every entry of the service, from all owners.
type ListResponse struct {
	Entries []registry.Entry `json:"entries"`
}

// ApplyRequest asks for changes.
type ApplyRequest struct {
	Service string            `json:"service"`
	Changes []registry.Change `json:"changes"`
}

// ApplyResponse names the refused changes; all others were made.
type ApplyResponse struct {
	Refused []Refusal `json:"refused,omitempty"`
}

// Code is the reason for a refusal.
type Code string

// The codes of a Refusal.
const (
	// CodeConflict: the entry's version differs from the change's.
	CodeConflict Code = "conflict"
	// CodeForeign: the entry belongs to another owner.
	CodeForeign Code = "foreign"
	// CodeInvalid: the change will never be accepted unchanged.
	CodeInvalid Code = "invalid"
	// CodeUnavailable: the change may be accepted later.
	CodeUnavailable Code = "unavailable"
)

// Refusal is one change that was not made.
type Refusal struct {
	ID      string `json:"id"`
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
}

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(s *usherv1alpha1.WebhookRegistry) *registry.Settings {
	return &registry.Settings{
		Secret: s.CredentialsSecret, Connect: func(_ string, secret map[string][]byte) (registry.Connector, error) {
			return New(s.URL, secret)
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	key []byte
	// Now is the clock that stamps requests.
	Now func() time.Time
	*rest.Client
}

// New checks the base address. The secret has the keys above, or is nil. Errors are permanent and
// name the field.
func New(url string, secret map[string][]byte) (*Registry, error) {
	client, err := rest.New(rest.Options{
		Field: "webhook.url", Example: "https://host/path", Address: url,
		Hint:   "the key " + KeyHMAC + " of the credentials Secret",
		Secret: secret,
	})
	if err != nil {
		return nil, err
	}
	return &Registry{Client: client, key: secret[KeyHMAC], Now: time.Now}, nil
}

// Sign returns the value of HeaderSignature: HMAC-SHA256 over the timestamp, a line
// feed, the request's path below the base URL, a line feed, and the body. The path
// prevents the replay of a recorded list as an apply.
func Sign(key []byte, timestamp, path string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(timestamp + "\n" + path + "\n"))
	mac.Write(body)
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}

// Ping implements registry.Connector.
func (r *Registry) Ping(ctx context.Context) error { return r.call(ctx, PathPing, struct{}{}, nil) }

// List implements registry.Connector.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	var answer ListResponse
	if err := r.call(ctx, PathList, ListRequest{Service: service}, &answer); err != nil {
		return nil, err
	}
	if answer.Entries == nil {
		// An empty answer must be explicit: {} more likely comes from another service,
		// and would release hooks.
		return nil, registry.Permanent(fmt.Errorf("%s answered without entries: it must send "+
			`{"entries":[]} for a service that has none`, r.URL(PathList)))
	}
	for i := range answer.Entries {
		if answer.Entries[i].ID == "" || answer.Entries[i].Version == "" {
			return nil, registry.Permanent(fmt.Errorf("%s answered with an entry that has no id or no version: it must send both",
				r.URL(PathList)))
		}
		answer.Entries[i].Unsettled = registry.Excerpt(answer.Entries[i].Unsettled)
	}
	registry.Sort(answer.Entries)
	return answer.Entries, nil
}

// Apply implements registry.Connector.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	var answer ApplyResponse
	if err := r.call(ctx, PathApply, ApplyRequest{Service: service, Changes: changes}, &answer); err != nil {
		return err
	}
	refused := list.Map(answer.Refused, func(r Refusal) error { return &registry.ChangeError{ID: r.ID, Err: r.err()} })
	return errors.Join(refused...)
}

func (r Refusal) err() error {
	switch r.Code {
	case CodeConflict:
		return fmt.Errorf("%s: %w", registry.Excerpt(r.Message), registry.ErrConflict)
	case CodeForeign:
		return fmt.Errorf("%s: %w", registry.Excerpt(r.Message), registry.ErrForeign)
	case CodeUnavailable:
		return registry.Transient(errors.New(registry.Excerpt(r.Message)))
	}
	return registry.Permanent(fmt.Errorf("%s: %s", r.Code, registry.Excerpt(r.Message)))
}

func (r *Registry) call(ctx context.Context, path string, question, answer any) error {
	body := encode.JSON(question)
	timestamp := strconv.FormatInt(r.Now().Unix(), 10)
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}, HeaderTimestamp: {timestamp}}
	if len(r.key) > 0 {
		header.Set(HeaderSignature, Sign(r.key, timestamp, path, body))
	}
	said, err := r.Send(ctx, rest.Question{Method: http.MethodPost, Path: path, Header: header, Body: body})
	switch {
	case err != nil:
		return err
	case said.Code >= 300 && said.Code < 400:
		return registry.Permanent(fmt.Errorf("%w: redirects are not followed; set webhook.url to %q",
			said.Failure(), said.Excerpt(said.Header.Get("Location"))))
	case said.Code != http.StatusOK && said.Code != http.StatusNoContent:
		return said.Refusal()
	case answer == nil, len(said.Body) == 0:
		return nil
	}
	return said.Decode("a receiver of this protocol", answer)
}

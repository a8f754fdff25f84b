// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// chatterbox repeats in its errors what it was given.
type chatterbox struct{ said string }

func (c chatterbox) List(context.Context, string) ([]registry.Entry, error) {
	return nil, registry.Transient(errors.New("sent " + c.said))
}

func (c chatterbox) Apply(context.Context, string, []registry.Change) error {
	return errors.Join(
		&registry.ChangeError{ID: "a", Err: fmt.Errorf("sent %s: %w", c.said, registry.ErrForeign)},
		&registry.ChangeError{ID: "b", Err: registry.Permanent(errors.New("sent " + c.said))},
		registry.Transient(fmt.Errorf("sent %s: %w", c.said, context.DeadlineExceeded)))
}

func (c chatterbox) Ping(context.Context) error {
	return registry.Permanent(errors.New("sent " + c.said))
}

func (c chatterbox) Close() error { return nil }

func TestSecretsAreHidden(t *testing.T) {
	secret := map[string][]byte{"password": []byte("p/ss word\n"), "token": []byte("p/ss word and more"), "username": []byte("me")}
	for _, said := range []string{
		"p/ss word", "p/ss word\n", "p/ss word and more", "p%2Fss+word", "p%2Fss%20word", "cC9zcyB3b3Jk",
	} {
		c := scrub(chatterbox{said}, secret)
		_, err := c.List(t.Context(), "web")
		apply := c.Apply(t.Context(), "web", nil)
		byID, rest := registry.ChangeErrors(apply)
		for where, err := range map[string]error{
			"list": err, "ping": c.Ping(t.Context()), "apply": apply, "a": byID["a"], "b": byID["b"], "rest": rest,
			"connect": cleaned(errors.New("sent "+said), secret),
		} {
			for _, format := range []string{"%v", "%+v"} {
				if text := fmt.Sprintf(format, err); strings.Contains(text, said) || !strings.Contains(text, "sent "+hidden) {
					t.Errorf("%s of %q says %q", where, said, text)
				}
			}
		}
	}
}

func TestHiddenErrorsKeepTheirMarks(t *testing.T) {
	c := scrub(chatterbox{"s3cret"}, map[string][]byte{"token": []byte("s3cret")})
	_, list := c.List(t.Context(), "web")
	byID, rest := registry.ChangeErrors(c.Apply(t.Context(), "web", nil))
	for _, test := range []struct {
		err, mark error
		want      bool
	}{
		{list, registry.ErrTransient, true}, {byID["a"], registry.ErrForeign, true}, {byID["b"], registry.ErrPermanent, true},
		{rest, context.DeadlineExceeded, true}, {rest, registry.ErrPermanent, false}, {c.Ping(t.Context()), registry.ErrPermanent, true},
	} {
		if errors.Is(test.err, test.mark) != test.want {
			t.Errorf("%v is %v: %t", test.err, test.mark, !test.want)
		}
	}
	plain := chatterbox{"anything"}
	if scrub(plain, nil) != registry.Connector(plain) || scrub(plain, map[string][]byte{"username": []byte("me")}) != registry.Connector(plain) {
		t.Error("a connector without secrets is wrapped")
	}
}

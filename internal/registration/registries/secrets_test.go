// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
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

// withSecret returns the Registry's connector, from a pool whose API server has the Secret.
func withSecret(t *testing.T, object *usherv1alpha1.Registry, connect Connect, data map[string][]byte) (*Conn, error) {
	t.Helper()
	_, settings := kinds.Of(object, "")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login"}, Data: data}
	p := New(fake.NewClientBuilder().WithObjects(secret).Build(), connect, clocktesting.NewFakePassiveClock(epoch), 1)
	t.Cleanup(p.Close)
	return p.Get(t.Context(), object, settings.Root, true)
}

// everyKind has a Registry of each kind that reads a Secret, with that Secret.
func everyKind() map[string]*usherv1alpha1.Registry {
	all := map[string]*usherv1alpha1.Registry{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[usherv1alpha1.RegistrySpec]()) {
		if !strings.HasSuffix(field.Type.String(), "Registry") {
			continue
		}
		object := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "all", UID: "all"}}
		kind := reflect.New(field.Type.Elem())
		if ref := kind.Elem().FieldByName("CredentialsSecret"); ref.IsValid() {
			ref.Set(reflect.ValueOf(&usherv1alpha1.SecretReference{Namespace: namespace, Name: "login"}))
			reflect.ValueOf(&object.Spec).Elem().FieldByIndex(field.Index).Set(kind)
			row, _ := kinds.Of(object, "")
			all[row.Name] = object
		}
	}
	return all
}

// eachRune writes the characters that are no letters and no digits of ASCII in another way.
func eachRune(text string, escape func(rune) string) string {
	var out strings.Builder
	for _, r := range text {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			out.WriteRune(r)
		} else {
			out.WriteString(escape(r))
		}
	}
	return out.String()
}

func asJSON(escapeHTML bool) func(string) string {
	return func(text string) string {
		var out bytes.Buffer
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(escapeHTML)
		_ = e.Encode(text)
		return strings.Trim(out.String(), "\"\n")
	}
}

var percents = regexp.MustCompile(`%..`)

// forms are ways in which a server, or a library, may repeat a text.
var forms = map[string]func(string) string{
	"as it is":        func(text string) string { return text },
	"folded":          func(text string) string { return strings.Join(strings.Fields(text), " ") },
	"JSON":            asJSON(false),
	"JSON, HTML-safe": asJSON(true),
	"JSON, ASCII":     func(text string) string { return strings.Trim(strconv.QuoteToASCII(text), `"`) },
	"JSON, all escaped": func(text string) string {
		return eachRune(text, func(r rune) string { return fmt.Sprintf(`\u%04X`, r) })
	},
	"JSON, slashes":  func(text string) string { return strings.ReplaceAll(asJSON(false)(text), "/", `\/`) },
	"JSON in JSON":   func(text string) string { return asJSON(false)(asJSON(false)(text)) },
	"Go":             func(text string) string { return strings.Trim(strconv.Quote(text), `"`) },
	"a query":        url.QueryEscape,
	"a path":         url.PathEscape,
	"a query, lower": func(text string) string { return percents.ReplaceAllStringFunc(url.QueryEscape(text), strings.ToLower) },
	"a query in one": func(text string) string { return url.QueryEscape(url.QueryEscape(text)) },
	"HTML":           html.EscapeString,
	"HTML, numbers": func(text string) string {
		return eachRune(text, func(r rune) string { return fmt.Sprintf("&#%d;", r) })
	},
	"HTML, hexadecimal": func(text string) string {
		return eachRune(text, func(r rune) string { return fmt.Sprintf("&#x%x;", r) })
	},
	"JSON in HTML":      func(text string) string { return html.EscapeString(asJSON(false)(text)) },
	"base64":            func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
	"base64, unpadded":  func(text string) string { return base64.RawStdEncoding.EncodeToString([]byte(text)) },
	"base64url":         func(text string) string { return base64.URLEncoding.EncodeToString([]byte(text)) },
	"a basic login":     func(text string) string { return base64.StdEncoding.EncodeToString([]byte("me:" + text)) },
	"a longer login":    func(text string) string { return base64.StdEncoding.EncodeToString([]byte("user:" + text + "\n")) },
	"the longest login": func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte("admin1:" + text)) },
	"base64 in JSON": func(text string) string {
		return strings.NewReplacer("=", `\u003d`, "/", `\/`, "+", `\u002b`).Replace(base64.StdEncoding.EncodeToString([]byte(text)))
	},
	"base64 in a query": func(text string) string { return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(text))) },
	"hexadecimal":       func(text string) string { return hex.EncodeToString([]byte(text)) },
	"HEXADECIMAL":       func(text string) string { return strings.ToUpper(hex.EncodeToString([]byte(text))) },
}

// words are those of a text that are long enough to say something.
var words = regexp.MustCompile(`[A-Za-z0-9]{6,}`)

// revealed is a part of what was said, of six letters and digits, that a text repeats; "" for none. Parts
// of what is known are no secret.
func revealed(form, text, said string, known ...string) string {
	long := 6
	// Two hexadecimal digits say one character, and short runs of them are alike by chance.
	if strings.EqualFold(form, "hexadecimal") {
		long *= 2
	}
	text = strings.ReplaceAll(text, "<secret>", "")
	for _, word := range words.FindAllString(said, -1) {
		for i := range max(len(word)-long+1, 0) {
			part := word[i : i+long]
			if strings.Contains(text, part) && !strings.Contains(strings.Join(known, " "), part) {
				return part
			}
		}
	}
	return ""
}

// nasty is a password with characters that each form escapes in its own way.
const nasty = "p+/=%\"passw0rd'<w0rdplay>&ü\\n \t{s3cret99}\u2603m0rethan~?"

// TestSecretsAreHidden is an attack: a server, or the library that talks to it, repeats in an error
// what it was sent, in any form, and cut anywhere. For every key of every kind, errors do not repeat
// the value, and keep their marks.
func TestSecretsAreHidden(t *testing.T) {
	for name, object := range everyKind() {
		t.Run(name, func(t *testing.T) {
			kind, _ := kinds.Of(object, "")
			data := map[string][]byte{}
			for _, key := range kind.Keys {
				data[key] = []byte(key + nasty + "\n")
			}
			for _, key := range kind.Keys {
				for form, written := range forms {
					said := written(key + nasty)
					c, err := withSecret(t, object, func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
						return chatterbox{said}, nil
					}, data)
					checktest.NoError(t, err)
					isHidden(t, key+" as "+form, c, said)
				}
				for cut := range len(key + nasty) {
					said := registry.Excerpt(strings.Repeat("x", 256-cut) + key + nasty)
					c, err := withSecret(t, object, func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
						return chatterbox{said}, nil
					}, data)
					checktest.NoError(t, err)
					if part := revealed("", fmt.Sprint(c.Ping(t.Context())), key+nasty); part != "" {
						t.Errorf("%s, of which an excerpt has %d bytes: the error repeats %q", key, cut, part)
					}
				}
			}
		})
	}
}

// isHidden checks every error of a connector that repeats what it was given.
func isHidden(t *testing.T, what string, c *Conn, said string) {
	t.Helper()
	_, list := c.List(t.Context(), "web")
	apply := c.Apply(t.Context(), "web", nil)
	byID, rest := registry.ChangeErrors(apply)
	for where, have := range map[string]struct{ err, mark error }{
		"list": {list, registry.ErrTransient}, "ping": {c.Ping(t.Context()), registry.ErrPermanent}, "apply": {apply, registry.ErrTransient},
		"a": {byID["a"], registry.ErrForeign}, "b": {byID["b"], registry.ErrPermanent}, "rest": {rest, context.DeadlineExceeded},
	} {
		text := fmt.Sprintf("%v %+v", have.err, have.err)
		if part := revealed("", text, said); part != "" || !errors.Is(have.err, have.mark) || !strings.Contains(text, "sent <secret>") {
			t.Errorf("%s: %s says %q, which repeats %q, and is %v: %t", what, where, text, part, have.mark, errors.Is(have.err, have.mark))
		}
	}
	if errors.Is(rest, registry.ErrPermanent) {
		t.Errorf("%v is permanent", rest)
	}
}

// echo is a server that answers requests with what they say, behind so much padding, and in a form. A
// login to Nacos gets a token, and who asks which Nacos it is learns that.
type echo struct {
	// nacos2 means that it is a Nacos 2.
	nacos2  bool
	padding int
	form    func(string) string
	// broken means that the answer is not even HTTP.
	broken bool
	// sent are the values of headers and the bodies that must not be repeated.
	sent []string
}

// token is what the server gives for a login. No path has a part of it.
const token = "t0ken.with+many/Quoted/Letters=="

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/login"):
		_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": token, "tokenTtl": 3600})
		return
	case strings.HasSuffix(path, "/readiness") && !e.nacos2:
		_ = json.NewEncoder(w).Encode(map[string]any{"code": 0})
		return
	case strings.HasSuffix(path, "/switches"):
		_ = json.NewEncoder(w).Encode(map[string]any{"healthCheckEnabled": true})
		return
	}
	var sent []string
	for _, name := range []string{"Authorization", "X-Consul-Token", "Usher-Signature"} {
		sent = append(sent, r.Header.Values(name)...)
	}
	e.sent = append(e.sent, sent...)
	r.Header.Del("Usher-Timestamp") // no secret, and a signature may begin with digits that it has by chance
	r.Body = io.NopCloser(bytes.NewReader(body))
	dump, _ := httputil.DumpRequest(r, true)
	said := strings.Repeat("x", e.padding)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		said += name + " " + e.form(r.Header.Get(name)) + " "
	}
	said += e.form(string(dump))
	if e.broken {
		raw, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(raw, strings.Join(sent, " ")+"\r\n\r\n")
			_ = raw.Close()
		}
		return
	}
	w.Header().Set("Location", "http://"+strings.Join(sent, " "))
	code := http.StatusBadRequest
	if strings.HasSuffix(r.URL.Path, "/ping") {
		code = http.StatusFound
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, said)
}

// TestSecretsInAnswers is an attack: servers of the kinds that speak HTTP repeat whole requests in
// their answers, with the headers as they were sent: a login in base64, a token, a signature.
func TestSecretsInAnswers(t *testing.T) {
	server := &echo{}
	address := registrytest.Serve(t, server)
	ref := &usherv1alpha1.SecretReference{Namespace: namespace, Name: "login"}
	data := map[string][]byte{"username": []byte("me"), "password": []byte(nasty), "token": []byte("t0ken<&>/Z9ith+more\"'"), "hmac": []byte(nasty)}
	for name, spec := range map[string]usherv1alpha1.RegistrySpec{
		"consul":  {Consul: &usherv1alpha1.ConsulRegistry{Address: address, CredentialsSecret: ref}},
		"eureka":  {Eureka: &usherv1alpha1.EurekaRegistry{Address: address, CredentialsSecret: ref, ResponseCache: &metav1.Duration{}}},
		"nacos":   {Nacos: &usherv1alpha1.NacosRegistry{Address: address, CredentialsSecret: ref}},
		"nacos2":  {Nacos: &usherv1alpha1.NacosRegistry{Address: address, CredentialsSecret: ref}},
		"webhook": {Webhook: &usherv1alpha1.WebhookRegistry{URL: address, CredentialsSecret: ref}},
	} {
		t.Run(name, func(t *testing.T) {
			server.nacos2 = name == "nacos2"
			c, err := withSecret(t, &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "a"}, Spec: spec}, kinds.Connect(kinds.Cluster{}), data)
			checktest.NoError(t, err)
			ask := func(what string) {
				t.Helper()
				server.sent = nil
				_, list := c.List(t.Context(), "web")
				apply := c.Apply(t.Context(), "web", []registry.Change{{Op: registry.Put, Entry: registrytest.Entry("a")}})
				if len(server.sent) == 0 || list == nil || apply == nil {
					t.Fatalf("the server was sent %q, and the errors are %v and %v", server.sent, list, apply)
				}
				text := fmt.Sprint(list, apply, c.Ping(t.Context()))
				for _, said := range append(server.sent, nasty, token) {
					for form, written := range forms {
						if part := revealed(form, text, written(said), written(""), written("Basic "), written("Bearer ")); part != "" {
							t.Errorf("%s: the errors repeat %q of %q (%s): %s", what, part, said, form, text)
						}
					}
				}
			}
			for form, written := range forms {
				// From one end of an excerpt to the other, in steps in which no secret hides.
				for server.padding = 0; server.padding < 250; server.padding += 60 {
					server.form = written
					ask(fmt.Sprintf("%s behind %d bytes", form, server.padding))
				}
			}
			server.broken = true
			ask("what is no HTTP")
			server.broken = false
		})
	}
}

// TestSecretsInEtcd is the attack of an etcd.
func TestSecretsInEtcd(t *testing.T) {
	for form, written := range forms {
		listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			var login etcdserverpb.AuthenticateRequest
			if err := stream.RecvMsg(&login); err != nil {
				return err
			}
			return grpcstatus.Error(codes.InvalidArgument, strings.Repeat("x", 229)+" "+written(login.Password)+strings.Repeat("\x1b[2J", 1<<10))
		}))
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		object := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "etcd", UID: "a"}, Spec: usherv1alpha1.RegistrySpec{Etcd: &usherv1alpha1.EtcdRegistry{
			Endpoints: []string{"http://" + listener.Addr().String()}, Prefix: "services",
			CredentialsSecret: &usherv1alpha1.SecretReference{Namespace: namespace, Name: "login"},
		}}}
		c, err := withSecret(t, object, kinds.Connect(kinds.Cluster{}), map[string][]byte{"username": []byte("me"), "password": []byte(nasty)})
		checktest.NoError(t, err)
		text := fmt.Sprint(c.Ping(t.Context()))
		if part := revealed(form, text, written(nasty)); part != "" || !strings.Contains(text, "xxx") {
			t.Errorf("%s: the error repeats %q: %s", form, part, text)
		}
		checkTold(t, form, text)
	}
}

// checkTold checks that a text is fit for statuses: bounded, and nothing in it is obeyed.
func checkTold(t *testing.T, what, text string) {
	t.Helper()
	if len(text) > 2<<10 || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("%s: a text of %d bytes: %.300q", what, len(text), text)
	}
}

// TestServersTextIsBounded is an attack: what a server answers ends up in statuses that tenants read,
// and on their terminals.
func TestServersTextIsBounded(t *testing.T) {
	long := strings.Repeat("\x1b]0;owned\x07\u202e\n", 10_000)
	said := chatterbox{long}
	c, err := withSecret(t, everyKind()["webhook"], func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
		return hesitant{said, long}, nil
	}, map[string][]byte{"hmac": []byte(nasty)})
	checktest.NoError(t, err)
	byID, rest := registry.ChangeErrors(c.Apply(t.Context(), "web", nil))
	for where, err := range map[string]error{"ping": c.Ping(t.Context()), "a": byID["a"], "rest": rest} {
		checkTold(t, where, fmt.Sprint(err))
	}
	entries := checktest.Must(c.List(t.Context(), "web"))(t)
	checkTold(t, "an entry that waits", entries[0].Unsettled)
	if entries[0].Unsettled == "" || revealed("", entries[0].Unsettled, nasty) != "" {
		t.Errorf("it waits for %q", entries[0].Unsettled)
	}
}

// hesitant lists an entry that waits.
type hesitant struct {
	chatterbox
	wait string
}

func (h hesitant) List(context.Context, string) ([]registry.Entry, error) {
	return []registry.Entry{{ID: "a", Unsettled: nasty + h.wait}}, nil
}

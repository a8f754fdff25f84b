// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"context"
	"encoding/xml"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeELB is AWS's API of load balancing, as its documentation describes the wire format, with a clock: a target is
// registered for a while, then checked, then healthy; it drains for the deregistration delay, however little is in
// flight.
type fakeELB struct {
	mu  sync.Mutex
	now time.Duration
	// groups are target groups by ARN. kind is the type of all targets.
	groups map[string][]*fakeTarget
	kind   string
	// refuses is the error of all calls, and status its status code.
	refuses string
	status  int
	// calls are the actions that were called, with the user of the credentials.
	calls []string
	// answer, if any, is sent instead.
	answer string
	server *httptest.Server
}

const (
	registration = 2 * time.Second
	checks       = 10 * time.Second
	delay        = 30 * time.Second
)

type fakeTarget struct {
	address       string
	port          int32
	began, leaves time.Duration
}

func newFake(t *testing.T, arns ...string) *fakeELB {
	t.Helper()
	f := &fakeELB{groups: map[string][]*fakeTarget{}, kind: "ip"}
	for _, arn := range arns {
		f.groups[arn] = nil
	}
	f.start()
	t.Cleanup(func() { f.server.Close() })
	return f
}

func (f *fakeELB) start() { f.server = httptest.NewServer(http.HandlerFunc(f.serve)) }

// pass lets time pass.
func (f *fakeELB) pass(span time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += span
}

func (f *fakeELB) register(arn, address string, port int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(arn, address)
	f.groups[arn] = append(f.groups[arn], &fakeTarget{address: address, port: port, began: f.now, leaves: -1})
}

func (f *fakeELB) drop(arn, address string) {
	f.groups[arn] = slices.DeleteFunc(f.groups[arn], func(t *fakeTarget) bool { return t.address == address })
}

func (f *fakeELB) deregister(arn, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.groups[arn] {
		if t.address == address {
			t.leaves = f.now
		}
	}
}

// state is that of a target now, and its reason.
func (f *fakeELB) state(t *fakeTarget) (state, reason string) {
	switch age := f.now - t.began; {
	case t.leaves >= 0:
		return "draining", "Target.DeregistrationInProgress"
	case age < registration:
		return "initial", "Elb.RegistrationInProgress"
	case age < registration+checks:
		return "initial", "Elb.InitialHealthChecking"
	}
	return "healthy", ""
}

// called is how often an action was called.
func (f *fakeELB) called(action string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if strings.HasPrefix(call, action+" ") {
			n++
		}
	}
	return n
}

func (f *fakeELB) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = r.ParseForm() // what is missing is refused below
	action := r.Form.Get("Action")
	_, user, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	user, _, _ = strings.Cut(user, "/")
	f.calls = append(f.calls, action+" "+user)
	arn := r.Form.Get("TargetGroupArn") + r.Form.Get("TargetGroupArns.member.1")
	_, exists := f.groups[arn]
	w.Header().Set("Content-Type", "text/xml")
	w.Header().Set("X-Amzn-Requestid", fmt.Sprint("request-", len(f.calls)))
	switch {
	case f.answer != "":
		_, _ = w.Write([]byte(f.answer)) //nolint:gosec // A test's own text.
	case f.refuses != "":
		refuse(w, f.status, f.refuses, "Rate exceeded, or else")
	case user == "":
		refuse(w, http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
	case action == "AssumeRole":
		f.reply(w, action, `<Credentials><AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>other</SecretAccessKey>`+
			`<SessionToken>token</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>`)
	case action == "DescribeTargetGroups" && arn == "":
		f.reply(w, action, "<TargetGroups/>")
	case !exists:
		refuse(w, http.StatusBadRequest, "TargetGroupNotFound", "Target groups '"+arn+"' not found")
	case action == "DescribeTargetGroups":
		f.reply(w, action, "<TargetGroups><member><TargetGroupArn>"+arn+"</TargetGroupArn><TargetType>"+f.kind+"</TargetType></member></TargetGroups>")
	case action == "DescribeTargetHealth":
		f.reply(w, action, "<TargetHealthDescriptions>"+f.health(arn)+"</TargetHealthDescriptions>")
	default:
		refuse(w, http.StatusBadRequest, "InvalidAction", "Could not find operation "+action)
	}
}

// health are the targets of a group that are there yet.
func (f *fakeELB) health(arn string) string {
	f.groups[arn] = slices.DeleteFunc(f.groups[arn], func(t *fakeTarget) bool { return t.leaves >= 0 && f.now-t.leaves >= delay })
	var b strings.Builder
	for _, t := range f.groups[arn] {
		state, reason := f.state(t)
		fmt.Fprintf(&b, "<member><HealthCheckPort>traffic-port</HealthCheckPort><Target><Id>%s</Id><Port>%d</Port></Target><TargetHealth><State>%s</State>",
			t.address, t.port, state)
		if reason != "" {
			fmt.Fprintf(&b, "<Reason>%s</Reason><Description>%s in words</Description>", reason, reason)
		}
		b.WriteString("</TargetHealth></member>")
	}
	return b.String()
}

func (f *fakeELB) reply(w http.ResponseWriter, action, result string) {
	_, _ = fmt.Fprintf(w, `<%[1]sResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><%[1]sResult>%[2]s</%[1]sResult>`+
		`<ResponseMetadata><RequestId>request-%[3]d</RequestId></ResponseMetadata></%[1]sResponse>`, action, result, len(f.calls))
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`<ErrorResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><Error><Type>Sender</Type><Code>` + code + `</Code><Message>`))
	_ = xml.EscapeText(w, []byte(message)) // a test's own text
	_, _ = w.Write([]byte(`</Message></Error><RequestId>request-1</RequestId></ErrorResponse>`))
}

// refuse has all calls refused; with an empty code, none.
func (f *fakeELB) refuse(code string, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses, f.status = code, status
}

// says has all calls answered so.
func (f *fakeELB) says(answer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// remove removes a target group.
func (f *fakeELB) remove(arn string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.groups, arn)
}

// restart serves again at an address.
func (f *fakeELB) restart(ctx context.Context, address string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	f.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(f.serve), ReadHeaderTimeout: time.Minute}}
	f.server.Start()
	return nil
}

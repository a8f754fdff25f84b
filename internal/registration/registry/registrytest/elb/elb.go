// SPDX-License-Identifier: Apache-2.0

// Package elb is a server of AWS's API of load balancing for tests, as its documentation describes the wire format, with
// a clock: a target is registered for a while, then checked, then healthy; it drains for the deregistration delay,
// however little is in flight.
package elb

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest/timed"
)

// Times are how long the load balancer takes.
type Times struct {
	// Registration is the time until it knows a target, Checks from then until it has found it healthy, and Delay
	// the deregistration delay.
	Registration, Checks, Delay time.Duration
}

// Server is the API, with the load balancer's targets.
type Server struct {
	*timed.Server
	times Times

	mu sync.Mutex
	// groups are target groups by ARN. kind is the type of all targets.
	groups map[string][]*target
	kind   string
	// refuses is the error of all calls, and status its status code.
	refuses string
	status  int
	// calls are the actions that were called, with the user of the credentials.
	calls []string
	// answer, if any, is sent instead.
	answer string
	// tags are those of target groups, by ARN.
	tags map[string]map[string]string
	// unusable is an address that cannot be a target.
	unusable string
}

type target struct {
	address       string
	port          int32
	began, leaves time.Duration
}

// Target is a target of a group, in a state.
type Target struct {
	Address string
	Port    int32
	State   string
	// For is how long it drains already.
	For time.Duration
}

// The states of targets.
const (
	Initial  = "initial"
	Healthy  = "healthy"
	Draining = "draining"
)

// New starts a server with target groups. Its time passes by Pass.
func New(times Times, arns ...string) *Server {
	s := &Server{times: times, groups: map[string][]*target{}, kind: "ip", tags: map[string]map[string]string{}}
	for _, arn := range arns {
		s.groups[arn] = nil
	}
	s.Server = timed.Serve(http.HandlerFunc(s.serve))
	return s
}

// Start is New with a clock that runs.
func Start(times Times, arns ...string) *Server {
	s := New(times, arns...)
	s.Run(true)
	return s
}

// ARN is that of a target group.
func ARN(name string) string {
	return "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/" + name + "/0123456789abcdef"
}

// Add adds a target group, unless it is there.
func (s *Server) Add(arn string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[arn] = s.groups[arn][:len(s.groups[arn]):len(s.groups[arn])]
}

// Remove removes a target group.
func (s *Server) Remove(arn string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, arn)
}

// SetKind has all groups have targets of a type, such as instance.
func (s *Server) SetKind(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kind = kind
}

// Register adds a target. One that drains begins anew.
func (s *Server) Register(arn, address string, port int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.register(arn, address, port)
}

func (s *Server) register(arn, address string, port int32) {
	s.groups[arn] = slices.DeleteFunc(s.groups[arn], func(t *target) bool { return t.address == address })
	s.groups[arn] = append(s.groups[arn], &target{address: address, port: port, began: s.Now(), leaves: -1})
}

// Deregister begins to drain a target.
func (s *Server) Deregister(arn, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deregister(arn, address)
}

func (s *Server) deregister(arn, address string) {
	for _, t := range s.groups[arn] {
		if t.address == address && t.leaves < 0 {
			t.leaves = s.Now()
		}
	}
}

// Tag sets a tag of a group.
func (s *Server) Tag(arn, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tag(arn, key, value)
}

func (s *Server) tag(arn, key, value string) {
	if s.tags[arn] == nil {
		s.tags[arn] = map[string]string{}
	}
	s.tags[arn][key] = value
}

// Tags are those of a group.
func (s *Server) Tags(arn string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.tags[arn])
}

// Unusable has an address refused as a target, as one outside of the group's network is.
func (s *Server) Unusable(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unusable = address
}

// Targets are the targets of a group.
func (s *Server) Targets(arn string) (all []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.there(arn) {
		state, _ := s.state(t)
		now := Target{Address: t.address, Port: t.port, State: state}
		if state == Draining {
			now.For = s.Now() - t.leaves
		}
		all = append(all, now)
	}
	return all
}

// there are the targets of a group that have not drained.
func (s *Server) there(arn string) []*target {
	s.groups[arn] = slices.DeleteFunc(s.groups[arn], func(t *target) bool { return t.leaves >= 0 && s.Now()-t.leaves >= s.times.Delay })
	return s.groups[arn]
}

// state is that of a target now, and its reason.
func (s *Server) state(t *target) (state, reason string) {
	switch age := s.Now() - t.began; {
	case t.leaves >= 0:
		return Draining, "Target.DeregistrationInProgress"
	case age < s.times.Registration:
		return Initial, "Elb.RegistrationInProgress"
	case age < s.times.Registration+s.times.Checks:
		return Initial, "Elb.InitialHealthChecking"
	}
	return Healthy, ""
}

// Called is how often an action was called.
func (s *Server) Called(action string) (n int) {
	for _, call := range s.Calls() {
		if strings.HasPrefix(call, action+" ") {
			n++
		}
	}
	return n
}

// Calls are the actions that were called, each with the user of the credentials.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Refuse has all calls refused; with an empty code, none.
func (s *Server) Refuse(code string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses, s.status = code, status
}

// Answer has all calls answered so.
func (s *Server) Answer(answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = r.ParseForm() // what is missing is refused below
	action := r.Form.Get("Action")
	_, user, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	user, _, _ = strings.Cut(user, "/")
	s.calls = append(s.calls, action+" "+user)
	arn := r.Form.Get("TargetGroupArn") + r.Form.Get("TargetGroupArns.member.1") + r.Form.Get("ResourceArns.member.1")
	_, exists := s.groups[arn]
	w.Header().Set("Content-Type", "text/xml")
	w.Header().Set("X-Amzn-Requestid", fmt.Sprint("request-", len(s.calls)))
	switch {
	case s.answer != "":
		_, _ = w.Write([]byte(s.answer)) //nolint:gosec // A test's own text.
	case s.refuses != "":
		refuse(w, s.status, s.refuses, "Rate exceeded, or else")
	case user == "":
		refuse(w, http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
	case action == "AssumeRole":
		s.reply(w, action, `<Credentials><AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>other</SecretAccessKey>`+
			`<SessionToken>token</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>`)
	case action == "DescribeTargetGroups" && arn == "":
		s.reply(w, action, "<TargetGroups/>")
	case !exists:
		refuse(w, http.StatusBadRequest, "TargetGroupNotFound", "Target groups '"+arn+"' not found")
	case action == "DescribeTargetGroups":
		s.reply(w, action, "<TargetGroups><member><TargetGroupArn>"+arn+"</TargetGroupArn><TargetType>"+s.kind+"</TargetType></member></TargetGroups>")
	case action == "DescribeTargetHealth":
		s.reply(w, action, "<TargetHealthDescriptions>"+s.health(arn)+"</TargetHealthDescriptions>")
	default:
		s.write(w, arn, action, r.Form)
	}
}

// mostTargets is how many targets a call may name.
const mostTargets = 200

// write carries out the actions that change something, or are about tags.
func (s *Server) write(w http.ResponseWriter, arn, action string, form url.Values) {
	named := targetsIn(form)
	switch {
	case action == "AddTags":
		s.tag(arn, form.Get("Tags.member.1.Key"), form.Get("Tags.member.1.Value"))
	case action == "DescribeTags":
		s.reply(w, action, "<TagDescriptions><member><ResourceArn>"+arn+"</ResourceArn><Tags>"+s.tagsOf(arn)+"</Tags></member></TagDescriptions>")
		return
	case action != "RegisterTargets" && action != "DeregisterTargets":
		refuse(w, http.StatusBadRequest, "InvalidAction", "Could not find operation "+action)
		return
	case len(named) == 0 || len(named) > mostTargets:
		refuse(w, http.StatusBadRequest, "ValidationError", fmt.Sprint(len(named), " targets"))
		return
	case slices.ContainsFunc(named, func(t Target) bool { return t.Address == s.unusable }):
		refuse(w, http.StatusBadRequest, "InvalidTarget", "The IP address '"+s.unusable+"' is not within the VPC")
		return
	}
	for _, t := range named {
		if action == "RegisterTargets" {
			s.register(arn, t.Address, t.Port)
		} else {
			s.deregister(arn, t.Address)
		}
	}
	s.reply(w, action, "")
}

// targetsIn are those that a call names; none for AddTags.
func targetsIn(form url.Values) (all []Target) {
	for n := 1; form.Has(fmt.Sprintf("Targets.member.%d.Id", n)); n++ {
		at := fmt.Sprintf("Targets.member.%d.", n)
		port, _ := strconv.ParseInt(form.Get(at+"Port"), 10, 32) // 0 shows what is missing
		all = append(all, Target{Address: form.Get(at + "Id"), Port: int32(port)})
	}
	return all
}

func (s *Server) tagsOf(arn string) (all string) {
	for _, key := range slices.Sorted(maps.Keys(s.tags[arn])) {
		all += "<member><Key>" + key + "</Key><Value>" + s.tags[arn][key] + "</Value></member>"
	}
	return all
}

// health are the targets of a group that are there yet.
func (s *Server) health(arn string) string {
	var b strings.Builder
	for _, t := range s.there(arn) {
		state, reason := s.state(t)
		fmt.Fprintf(&b, "<member><HealthCheckPort>traffic-port</HealthCheckPort><Target><Id>%s</Id><Port>%d</Port></Target><TargetHealth><State>%s</State>",
			t.address, t.port, state)
		if reason != "" {
			fmt.Fprintf(&b, "<Reason>%s</Reason><Description>%s in words</Description>", reason, reason)
		}
		b.WriteString("</TargetHealth></member>")
	}
	return b.String()
}

func (s *Server) reply(w http.ResponseWriter, action, result string) {
	_, _ = fmt.Fprintf(w, `<%[1]sResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><%[1]sResult>%[2]s</%[1]sResult>`+
		`<ResponseMetadata><RequestId>request-%[3]d</RequestId></ResponseMetadata></%[1]sResponse>`, action, result, len(s.calls))
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`<ErrorResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><Error><Type>Sender</Type><Code>` + code + `</Code><Message>`))
	_ = xml.EscapeText(w, []byte(message)) // a test's own text
	_, _ = w.Write([]byte(`</Message></Error><RequestId>request-1</RequestId></ErrorResponse>`))
}

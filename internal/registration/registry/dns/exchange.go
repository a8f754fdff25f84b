// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxConns limits the connections of one call. Requests on one connection run one
	// after another, because a signed answer is checked with the request's own
	// signature.
	maxConns = 8
	// perConn is how many requests justify another connection.
	perConn = 16
	// fudge is the largest allowed difference between the clocks, in seconds.
	fudge = 300
)

// errPrerequisite means that what was read is outdated.
var errPrerequisite = errors.New("a prerequisite is not fulfilled")

// exchange sends one request on an open connection.
type exchange func(*dns.Msg) (answer *dns.Msg, err error)

// connect opens a connection for consecutive requests. Errors are typed.
func (r *Registry) connect(ctx context.Context, call func(exchange) error) error {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.server)
	if err != nil {
		return r.typed(ctx, err)
	}
	conn := &dns.Conn{Conn: raw}
	defer func() { _ = conn.Close() }() // Every answer was read, or the call failed.
	defer context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })()
	return call(func(request *dns.Msg) (*dns.Msg, error) { return r.send(ctx, conn, request) })
}

// send signs a request and checks the answer. The library's own signing chains the
// requests of a connection, which is correct only for zone transfers.
func (r *Registry) send(ctx context.Context, conn *dns.Conn, request *dns.Msg) (answer *dns.Msg, err error) {
	packed, mac, err := r.sign(request)
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("pack the request for %s: %w", r.server, err))
	}
	if _, err := conn.Write(packed); err != nil {
		return nil, r.typed(ctx, err)
	}
	data, err := conn.ReadMsgHeader(nil)
	if err != nil {
		return nil, r.typed(ctx, err)
	}
	if answer, err = r.unpack(ctx, request, data); err != nil {
		return nil, err
	}
	if r.key.name != "" && answer.IsTsig() != nil {
		err = dns.TsigVerify(data, r.key.secret, mac, false)
	}
	return answer, r.check(request, answer, err)
}

// unpack takes room for an answer before it unpacks it. What answers a change is forgotten at once.
func (r *Registry) unpack(ctx context.Context, request *dns.Msg, data []byte) (*dns.Msg, error) {
	answer := new(dns.Msg)
	size, err := measure(data)
	switch {
	case err != nil:
	case size > maxAnswer:
		return nil, registry.TooMuch(r.server, maxAnswer)
	case request.Opcode == dns.OpcodeQuery:
		if err := registry.Take(ctx, size); err != nil {
			return nil, err
		}
		fallthrough
	default:
		err = answer.Unpack(data)
	}
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("%s does not answer with DNS messages: check dns.server: %w", r.server, err))
	}
	return answer, nil
}

func (r *Registry) sign(request *dns.Msg) (packed []byte, mac string, err error) {
	if r.key.name == "" {
		packed, err = request.Pack()
		return packed, "", err
	}
	request.SetTsig(r.key.name, r.key.algorithm, fudge, r.Now().Unix())
	return dns.TsigGenerate(request, r.key.secret, "", false)
}

// typed marks an error of the connection.
func (r *Registry) typed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err() // The connection's own error only says that it was cut.
	}
	return registry.Transient(fmt.Errorf("%s: %w", r.server, err))
}

// check verifies that the answer is one and is genuine.
func (r *Registry) check(request, answer *dns.Msg, failure error) error {
	signature := answer.IsTsig()
	switch {
	case !answers(request, answer):
		return registry.Permanent(fmt.Errorf("%s answers another question: check dns.server", r.server))
	case answer.Rcode == dns.RcodeNotAuth && r.key.name != "" && (signature == nil || signature.Error != 0):
		return registry.Permanent(fmt.Errorf("%s refuses the TSIG key %s%s", r.server, r.key.name, tsigError(signature)))
	case failure != nil:
		return registry.Permanent(fmt.Errorf("%s signed its answer wrongly: check the TSIG key on both sides: %w", r.server, failure))
	case r.key.name != "" && signature == nil && (answer.Rcode == dns.RcodeSuccess || slices.Contains(noes, answer.Rcode)):
		// A connector acts on these. "No such name" says that an entry is gone, and releases a hook.
		return registry.Permanent(fmt.Errorf("%s does not sign its answers: check that it knows the TSIG key", r.server))
	}
	return r.code(request, answer)
}

// answers reports whether the answer is one to this request.
func answers(request, answer *dns.Msg) bool {
	same := func(a, b dns.Question) bool {
		return a.Qtype == b.Qtype && a.Qclass == b.Qclass && dns.CanonicalName(a.Name) == dns.CanonicalName(b.Name)
	}
	// A server need not repeat the zone of an update.
	asked := request.Opcode == dns.OpcodeUpdate || slices.EqualFunc(answer.Question, request.Question, same)
	return answer.Id == request.Id && answer.Response && asked
}

// noes are the codes of answers that say no to a question or to a prerequisite.
var noes = []int{dns.RcodeNameError, dns.RcodeYXDomain, dns.RcodeYXRrset, dns.RcodeNXRrset}

func tsigError(signature *dns.TSIG) string {
	if signature == nil {
		return ": correct tsig.name and tsig.secret"
	}
	if signature.Error == dns.RcodeBadTime {
		return ": the clocks are more than five minutes apart"
	}
	return fmt.Sprintf(" (%s): correct tsig.name, tsig.secret and tsig.algorithm",
		dns.RcodeToString[int(signature.Error)])
}

// code turns a response code into a typed error.
func (r *Registry) code(request, answer *dns.Msg) error {
	update := request.Opcode == dns.OpcodeUpdate
	name := dns.RcodeToString[answer.Rcode]
	if slices.Contains(noes, answer.Rcode) {
		if update {
			return errPrerequisite
		}
		return nil
	}
	switch answer.Rcode {
	case dns.RcodeSuccess:
		if !update && !answer.Authoritative {
			return registry.Permanent(fmt.Errorf("%s is not authoritative for %s: set dns.server to the zone's primary",
				r.server, request.Question[0].Name))
		}
		return nil
	case dns.RcodeRefused:
		return registry.Permanent(fmt.Errorf("%s refuses (%s): allow the key in allow-query and update-policy of %s",
			r.server, name, r.zone))
	case dns.RcodeNotAuth, dns.RcodeNotZone, dns.RcodeNotImplemented, dns.RcodeFormatError:
		return registry.Permanent(fmt.Errorf("%s answers %s for zone %s: set dns.server to its primary, which takes updates",
			r.server, name, r.zone))
	}
	if update && answer.Rcode == dns.RcodeServerFailure {
		return registry.Transient(fmt.Errorf("%s answers %s to an update: see its log; BIND takes 100 instances "+
			"unless max-records-per-type allows more", r.server, name))
	}
	return registry.Transient(fmt.Errorf("%s answers %s", r.server, name))
}

// ask sends questions and returns the answers in the same order. A name that does not
// exist has an answer without records.
func (r *Registry) ask(ctx context.Context, questions []dns.Question) ([]*dns.Msg, error) {
	answers := make([]*dns.Msg, len(questions))
	share := max(perConn, (len(questions)+maxConns-1)/maxConns)
	shares := slices.Collect(slices.Chunk(questions, share))
	errs := registry.Each(ctx, len(shares), maxConns, func(n int) error {
		return r.connect(ctx, func(send exchange) error {
			for i, question := range shares[n] {
				request := &dns.Msg{Question: []dns.Question{question}}
				request.Id = dns.Id()
				answer, err := send(request)
				if err != nil {
					return err
				}
				answers[n*share+i] = answer
			}
			return nil
		})
	})
	return answers, cmp.Or(errs...) // One stands for all.
}

// records returns the records of an answer with the requested name and type.
func records[T dns.RR](answer *dns.Msg, question dns.Question) []T {
	var found []T
	for _, rr := range answer.Answer {
		name := dns.CanonicalName(rr.Header().Name)
		if record, ok := rr.(T); ok && rr.Header().Rrtype == question.Qtype && name == dns.CanonicalName(question.Name) {
			found = append(found, record)
		}
	}
	slices.SortFunc(found, func(a, b T) int { return strings.Compare(a.String(), b.String()) })
	return found
}

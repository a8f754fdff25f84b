// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

const zone = "svc.example.com"

const local = "127.0.0.1:53"

func testRegistry(t *testing.T, server string, secret map[string][]byte) *Registry {
	t.Helper()
	return registrytest.Connect(New(server, zone, defaultTTL, secret))(t)
}

func mine() registry.Entry { return registrytest.Entry("demo.web-x7k2p.0a1b2c3d") }

func TestRecords(t *testing.T) {
	r := testRegistry(t, local, nil)
	n := checktest.Must(r.names("web"))(t)
	srv, others, err := r.wanted(n, mine())
	checktest.NoError(t, err)
	have := list.Map(append([]dns.RR{srv}, others...), func(rr dns.RR) string { return strings.ReplaceAll(rr.String(), "\t", " ") })
	want := []string{
		"_web._tcp.svc.example.com. 5 IN SRV 0 10 8080 demo.web-x7k2p.0a1b2c3d.web.svc.example.com.",
		`demo.web-x7k2p.0a1b2c3d.web.svc.example.com. 5 IN TXT "{\"id\":\"demo.web-x7k2p.0a1b2c3d\",` +
			`\"usher\":{\"cluster\":\"here\",\"namespace\":\"demo\",\"registration\":\"web\",\"pod\":\"demo.web-x7k2p.0a1b2c3d\",\"uid\":\"uid-demo.web-x7k2p.0a1b2c3d\"},` +
			`\"metadata\":{\"zone\":\"a\"}}"`,
		"demo.web-x7k2p.0a1b2c3d.web.svc.example.com. 5 IN A 10.0.0.1",
	}
	checktest.Same(t, "the record set", want, have)
}

// through packs and unpacks a record, as a server does.
func through[T dns.RR](t *testing.T, rr T) T {
	t.Helper()
	message := &dns.Msg{Answer: []dns.RR{rr}}
	data, err := message.Pack()
	if err == nil {
		err = message.Unpack(data)
	}
	checktest.NoError(t, err)
	return message.Answer[0].(T)
}

func TestTextRoundTrip(t *testing.T) {
	for _, text := range []string{
		"", "plain", `"quoted"`, `\`, `\\065`, `\065`, `a\"b`, "grün\x00\x7f\n", strings.Repeat(`\"ü`, 300),
	} {
		rr := &dns.TXT{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: escape([]byte(text))}
		checktest.Same(t, "the text on its way", text, string(unescape(through(t, rr).Txt)))
	}
}

func TestHosts(t *testing.T) {
	n := names{srv: "_web._tcp.z.", base: "web.z."}
	for id, want := range map[string]string{
		"demo.web-1.0a1b2c3d": "demo.web-1.0a1b2c3d.web.z.", "Demo": "x-", "a..b": "x-", "a_b": "a_b.web.z.",
		strings.Repeat("a", 64): "x-", strings.Repeat("a.", 130) + "b": "x-", "ü": "x-", "-a": "x-",
	} {
		have := n.host(id)
		if !strings.HasPrefix(have, want) || !strings.HasSuffix(have, ".web.z.") {
			t.Errorf("%q is at %q, want %q", id, have, want)
		}
		if _, ok := dns.IsDomainName(have); !ok {
			t.Errorf("%q is at %q, which is no name", id, have)
		}
	}
	if n.host("A") == n.host("B") {
		t.Error("two ids have the same name")
	}
}

func TestServiceIsOneLabel(t *testing.T) {
	for _, service := range []string{"web.demo", "Web", "-web", strings.Repeat("w", 63), "web\n"} {
		_, err := testRegistry(t, local, nil).List(t.Context(), service)
		registrytest.Check(t, "the service "+service, err, registry.ErrPermanent)
	}
}

func TestForeignTexts(t *testing.T) {
	n := names{srv: "_web._tcp.z.", base: "web.z."}
	for _, text := range []string{
		"", "theirs", "{", `{"id":"a"}`, `{"id":"a","usher":{"cluster":"here"}}`, `{"id":"b","usher":{"cluster":"here","uid":"u"}}`,
	} {
		i := &instance{
			host: "a.web.z.", srvs: []*dns.SRV{{Hdr: dns.RR_Header{Name: n.srv}, Target: "a.web.z.", Port: 80}},
			sets: [len(kinds)][]dns.RR{{&dns.TXT{Hdr: dns.RR_Header{Name: "a.web.z."}, Txt: escape([]byte(text))}}},
		}
		i.understand(n)
		if i.entry.Owner != (registry.Owner{}) || i.entry.ID != "a" || !i.exists() {
			t.Errorf("%q became %+v", text, i.entry)
		}
	}
}

func TestEntriesThatCannotBeRecords(t *testing.T) {
	r := testRegistry(t, local, nil)
	n, _ := r.names("web")
	for name, change := range map[string]func(*registry.Entry){
		"a zone":    func(e *registry.Entry) { e.Address = "fe80::1%eth0" },
		"long form": func(e *registry.Entry) { e.Address = "fd00:0::1" },
		"mapped":    func(e *registry.Entry) { e.Address = "::ffff:10.0.0.1" },
		"weight":    func(e *registry.Entry) { e.Weight = 65536 },
		"metadata":  func(e *registry.Entry) { e.Metadata = map[string]string{"a": strings.Repeat("b", maxData)} },
	} {
		e := mine()
		change(&e)
		_, _, err := r.wanted(n, e)
		registrytest.Check(t, name, err, registry.ErrPermanent)
	}
}

func TestOptions(t *testing.T) {
	good := map[string][]byte{KeyName: []byte("key"), KeySecret: []byte("c2VjcmV0")}
	with := func(name, value string) map[string][]byte {
		changed := map[string][]byte{KeyName: good[KeyName], KeySecret: good[KeySecret]}
		changed[name] = []byte(value)
		return changed
	}
	refusal := func(server, zone string, secret map[string][]byte) error {
		return registrytest.Refusal(New(server, zone, defaultTTL, secret))
	}
	registrytest.CheckOptions(t, map[string]error{
		"no server":  refusal("", zone, nil),
		"no port":    refusal("127.0.0.1", zone, nil),
		"no zone":    refusal(local, "", nil),
		"no name":    refusal(local, "a b", nil),
		"empty zone": refusal(local, ".", nil),
		"no key":     refusal(local, zone, with(KeyName, "")),
		"no secret":  refusal(local, zone, with(KeySecret, "")),
		"no base64":  refusal(local, zone, with(KeySecret, "§")),
		"no key id":  refusal(local, zone, with(KeyName, "a..b")),
		"algorithm":  refusal(local, zone, with(KeyAlgorithm, "hmac-md5")),
	})
	checktest.NoError(t, refusal(local, zone+".", good))
}

// TestServersThatAnswerWrong covers answers that named does not give.
func TestServersThatAnswerWrong(t *testing.T) {
	key := map[string][]byte{KeyName: []byte("key"), KeySecret: []byte("c2VjcmV0")}
	for _, test := range []struct {
		name   string
		secret map[string][]byte
		answer func(*dns.Msg)
		want   error
	}{
		{"not signed", key, func(*dns.Msg) {}, registry.ErrPermanent},
		{"no such name, not signed", key, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, registry.ErrPermanent},
		{"no such name", nil, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, nil},
		{"key refused without a signature", key, func(m *dns.Msg) { m.Rcode = dns.RcodeNotAuth }, registry.ErrPermanent},
		{"no authority", nil, func(m *dns.Msg) { m.Authoritative = false }, registry.ErrPermanent},
		{"another's id", nil, func(m *dns.Msg) { m.Id++ }, registry.ErrPermanent},
		{"a question", nil, func(m *dns.Msg) { m.Response = false }, registry.ErrPermanent},
		{"to no question", nil, func(m *dns.Msg) { m.Question = nil }, registry.ErrPermanent},
		{"to another question", nil, func(m *dns.Msg) { m.Question[0].Name = "other." }, registry.ErrPermanent},
		{"truncated", nil, func(m *dns.Msg) { m.Truncated = true }, registry.ErrPermanent},
		{"refused", nil, func(m *dns.Msg) { m.Rcode = dns.RcodeRefused }, registry.ErrPermanent},
		{"failure", nil, func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }, registry.ErrTransient},
		{"well", nil, func(*dns.Msg) {}, nil},
	} {
		r := testRegistry(t, serve(t, test.answer), test.secret)
		_, err := r.List(t.Context(), "web")
		registrytest.Check(t, test.name, err, test.want)
	}
}

// TestAnswersAreBounded: many answers of 60 KiB are too much together.
func TestAnswersAreBounded(t *testing.T) {
	fill := make([]string, 230)
	for n := range fill {
		fill[n] = strings.Repeat("x", maxText)
	}
	r := testRegistry(t, serve(t, func(m *dns.Msg) {
		header := dns.RR_Header{Name: m.Question[0].Name, Rrtype: m.Question[0].Qtype, Class: dns.ClassINET}
		if header.Rrtype != dns.TypeSRV {
			header.Rrtype = dns.TypeTXT
			m.Extra = []dns.RR{&dns.TXT{Hdr: header, Txt: fill}}
			return
		}
		for n := range 400 {
			m.Answer = append(m.Answer, &dns.SRV{Hdr: header, Target: fmt.Sprintf("a%d.web.%s.", n, zone)})
		}
	}), nil)
	_, err := r.List(registrytest.Counted(t, 64<<20), "web")
	registrytest.Check(t, "a long list", err, registry.ErrPermanent, "spread the instances over several services")
}

// serve answers every request after change has modified the answer.
func serve(t *testing.T, change func(*dns.Msg)) string {
	t.Helper()
	listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := &dns.Server{Listener: listener, MaxTCPQueries: -1,
		MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, request *dns.Msg) {
			answer := new(dns.Msg)
			answer.SetReply(request)
			answer.Authoritative = true
			change(answer)
			_ = w.WriteMsg(answer) // A caller that is gone has failed by itself.
		})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func TestNoMessage(t *testing.T) {
	for name, test := range map[string]struct {
		says string
		want error
	}{
		"another protocol": {"\x00\x10" + strings.Repeat("\xff", 16), registry.ErrPermanent},
		"breaks off":       {"\x00\x20abc", registry.ErrTransient},
		"says nothing":     {"", registry.ErrTransient},
	} {
		r := testRegistry(t, registrytest.Listen(t, registrytest.Say(test.says)), nil)
		registrytest.Check(t, name, r.Ping(t.Context()), test.want)
	}
}

// FuzzDecode decodes an answer about the SRV records of a service, which are its TXT and address
// records too.
func FuzzDecode(f *testing.F) {
	r := checktest.Must(New(local, zone, defaultTTL, nil))(f)
	n, _ := r.names("web")
	question := dns.Question{Name: n.srv, Qtype: dns.TypeSRV, Qclass: dns.ClassINET}
	srv, others, _ := r.wanted(n, mine())
	asked := []dns.Question{question}
	well := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Question: asked, Answer: append(others, srv)}
	none := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Answer: []dns.RR{srv}}
	var seeds []string
	for _, m := range []*dns.Msg{well, none} {
		data, _ := m.Pack()
		seeds = append(seeds, string(data))
	}
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		answer := new(dns.Msg)
		if answer.Unpack([]byte(text)) != nil {
			return nil
		}
		if r.check(&dns.Msg{MsgHdr: dns.MsgHdr{Id: answer.Id}, Question: asked}, answer, nil) != nil {
			return nil
		}
		var entries []registry.Entry
		for _, srv := range records[*dns.SRV](answer, question) {
			i := &instance{host: dns.CanonicalName(srv.Target), srvs: []*dns.SRV{srv}}
			for at, kind := range kinds {
				i.sets[at] = records[dns.RR](answer, dns.Question{Name: srv.Target, Qtype: kind})
			}
			i.understand(n)
			entries = append(entries, i.entry)
		}
		return entries
	}, seeds...)
}

// packed answers each question with records that nobody asked for.
func packed(t *testing.T, records [][]byte) string {
	return registrytest.Listen(t, func(raw net.Conn) {
		defer func() { _ = raw.Close() }()
		conn := &dns.Conn{Conn: raw}
		for {
			request, err := conn.ReadMsg()
			if err != nil {
				return
			}
			reply := new(dns.Msg)
			reply.SetReply(request)
			reply.Authoritative = true
			data := checktest.Must(reply.Pack())(t)
			binary.BigEndian.PutUint16(data[8:], uint16(len(records))) // They are authorities.
			for _, record := range records {
				data = append(data, record...)
			}
			_, _ = conn.Write(data) // A caller that is gone has failed by itself.
		}
	})
}

// TestPackedAnswers: a message of 64 KiB becomes megabytes.
func TestPackedAnswers(t *testing.T) {
	pointer := []byte{0xc0, 12 + 27 + 4 + 11} // Behind the header, the question and the first record's header.
	record := func(kind uint16, data []byte) []byte {
		head := []byte{pointer[0], pointer[1], byte(kind >> 8), byte(kind), 0, 1, 0, 0, 0, 0, byte(len(data) >> 8), byte(len(data))}
		return append(head, data...)
	}
	var long []byte
	for range 3 {
		long = append(append(long, 63), bytes.Repeat([]byte{1}, 63)...)
	}
	first := append([]byte{0, 0, 2, 0, 1, 0, 0, 0, 0, 0, byte(len(long) + 1)}, append(long, 0)...)
	for name, one := range map[string][]byte{
		"names":       record(dns.TypeNS, pointer),
		"empty texts": record(dns.TypeTXT, make([]byte, 1000)),
		"other types": record(dns.TypeHIP, append(make([]byte, 4), bytes.Repeat(pointer, 500)...)),
	} {
		records := append([][]byte{first}, slices.Repeat([][]byte{one}, 60000/len(one))...)
		r := testRegistry(t, packed(t, records), nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := r.List(registrytest.Counted(t, 1<<20), "web")
		runtime.ReadMemStats(&after)
		registrytest.Check(t, name, err, registry.ErrPermanent, "answered with more than")
		if took := after.TotalAlloc - before.TotalAlloc; took > 24<<20 {
			t.Errorf("%s: an answer of 64 KiB took %d bytes", name, took)
		}
	}
}

// FuzzMeasure: what can be unpacked can be measured, and takes not much more than was measured.
func FuzzMeasure(f *testing.F) {
	m := new(dns.Msg)
	m.SetQuestion("_web._tcp."+zone+".", dns.TypeSRV)
	m.Answer = []dns.RR{&dns.SRV{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeSRV, Class: dns.ClassINET}, Target: "b."}}
	m.Extra = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"", "x"}}}
	f.Add(checktest.Must(m.Pack())(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		size, err := measure(data)
		var m dns.Msg
		if failed := m.Unpack(data); failed == nil && err != nil {
			t.Errorf("%x can be unpacked: %v", data, err)
		}
		if size < len(data) && err == nil {
			t.Errorf("%x takes %d bytes", data, size)
		}
	})
}

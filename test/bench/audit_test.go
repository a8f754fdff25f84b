// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func auditLine(verb, uri, subresource string, code int) string {
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete",`+
		`"requestURI":%q,"verb":%q,"user":{"username":"usher","groups":["system:authenticated"]},`+
		`"objectRef":{"resource":"pods","namespace":"measure","name":"web-abcde","apiVersion":"v1","subresource":%q},`+
		`"responseStatus":{"metadata":{},"code":%d},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z"}`+"\n",
		uri, verb, subresource, code)
}

func TestParseRequest(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want request
	}{
		"a status patch": {
			auditLine("patch", "/api/v1/namespaces/measure/pods/a/status", "status", 200),
			request{user: "usher", what: "patch pods/status", write: true, code: 200},
		},
		"a rejected delete": {
			auditLine("delete", "/api/v1/namespaces/measure/pods/a", "", 409),
			request{user: "usher", what: "delete pods", write: true, code: 409},
		},
		"a dry run": {
			auditLine("create", "/api/v1/namespaces/measure/pods?dryRun=All&fieldValidation=Strict", "", 201),
			request{user: "usher", what: "create pods", write: true, dry: true, code: 201},
		},
		"a watch": {
			auditLine("watch", "/api/v1/pods?watch=true", "", 200),
			request{user: "usher", what: "watch pods", watch: true, code: 200},
		},
		"no resource": {
			`{"verb":"get","requestURI":"/version","user":{"username":"admin"},"responseStatus":{"code":200}}`,
			request{user: "admin", what: "get", code: 200},
		},
	} {
		got, err := parseRequest([]byte(c.line))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, c.want)
		}
	}
	if _, err := parseRequest([]byte(`{"verb":`)); err == nil {
		t.Error("half a line is no error")
	}
}

// An incomplete line is read once it is complete, and no line is read twice.
func TestAuditLogThatGrows(t *testing.T) {
	log := &auditLog{path: filepath.Join(t.TempDir(), "audit.log")}
	read := func() int {
		t.Helper()
		count := 0
		if err := log.next(func(request) { count++ }); err != nil {
			t.Fatal(err)
		}
		return count
	}
	if got := read(); got != 0 {
		t.Errorf("%d requests in a log that is not there", got)
	}
	line := auditLine("patch", "/x", "", 200)
	file, err := os.Create(log.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, step := range []struct {
		text string
		want int
	}{{line + line + line[:40], 2}, {"", 0}, {line[40:], 1}, {"\n" + line, 1}} {
		if _, err := file.WriteString(step.text); err != nil {
			t.Fatal(err)
		}
		if got := read(); got != step.want {
			t.Errorf("after %.20q…: %d requests, want %d", step.text, got, step.want)
		}
	}
	if _, err := file.WriteString("nonsense\n"); err != nil {
		t.Fatal(err)
	}
	if err := log.next(func(request) {}); err == nil {
		t.Error("nonsense is no error")
	}
}

func TestRequests(t *testing.T) {
	r := newRequests()
	if r.RejectedShare() != 0 {
		t.Error("a share of nothing")
	}
	for _, c := range []struct {
		one  request
		want bool
	}{
		{request{what: "patch pods", write: true, code: 200}, true},
		{request{what: "patch pods", write: true, code: 422}, true},
		{request{what: "patch pods/status", write: true, code: 200}, true},
		{request{what: "create pods", write: true, code: 500}, true},
		{request{what: "create pods", write: true, dry: true, code: 201}, false},
		{request{what: "get pods", code: 404}, false},
		{request{what: "watch pods", watch: true, code: 200}, false},
	} {
		if got := r.add(c.one); got != c.want {
			t.Errorf("%+v is a write: %t", c.one, got)
		}
	}
	if want := map[string]int{"patch pods": 2, "patch pods/status": 1, "create pods": 1}; !maps.Equal(r.Writes, want) {
		t.Errorf("writes: %v, want %v", r.Writes, want)
	}
	if want := map[string]int{"patch pods 422": 1, "create pods 500": 1}; !maps.Equal(r.Rejected, want) {
		t.Errorf("rejected: %v, want %v", r.Rejected, want)
	}
	if r.Total() != 4 || r.Reads != 2 || r.RejectedShare() != 0.5 {
		t.Errorf("total %d, reads %d, share %g; want 4, 2, 0.5", r.Total(), r.Reads, r.RejectedShare())
	}
}

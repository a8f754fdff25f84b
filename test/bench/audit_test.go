// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

func auditLine(verb, uri, subresource string, code int) string {
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete",`+
		`"requestURI":%q,"verb":%q,"user":{"username":"usher","groups":["system:authenticated"]},`+
		`"objectRef":{"resource":"pods","namespace":"measure","name":"web-abcde","apiVersion":"v1","subresource":%q},`+
		`"responseStatus":{"metadata":{},"code":%d},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z"}`+"\n",
		uri, verb, subresource, code)
}

func TestRequests(t *testing.T) {
	log := &auditLog{path: filepath.Join(t.TempDir(), "audit.log")}
	r := newRequests()
	for _, c := range []struct {
		line  string
		write bool
	}{
		{auditLine("patch", "/api/v1/namespaces/measure/pods/a", "", 200), true},
		{auditLine("patch", "/api/v1/namespaces/measure/pods/a", "", 422), true},
		{auditLine("patch", "/api/v1/namespaces/measure/pods/a/status", "status", 200), true},
		{auditLine("create", "/api/v1/namespaces/measure/pods", "", 500), true},
		{auditLine("create", "/api/v1/namespaces/measure/pods?dryRun=All&fieldValidation=Strict", "", 201), false},
		{auditLine("get", "/api/v1/namespaces/measure/pods/a", "", 404), false},
		{auditLine("watch", "/api/v1/pods?watch=true", "", 200), false},
		{`{"verb":"get","requestURI":"/version","user":{"username":"usher"},"responseStatus":{"code":200}}` + "\n", false},
	} {
		checktest.NoError(t, os.WriteFile(log.path, []byte(c.line), 0o600))
		log.offset = 0
		err := log.next(func(one auditEvent) {
			if got := r.add(one); got != c.write || one.User.Username != "usher" {
				t.Errorf("%s is a write of %s: %t", c.line, one.User.Username, got)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	checktest.Same(t, "writes", map[string]int{"patch pods": 2, "patch pods/status": 1, "create pods": 1}, r.writes)
	checktest.Same(t, "rejected", map[string]int{"patch pods 422": 1, "create pods 500": 1}, r.rejected)
	if r.reads != 3 || r.rejectedShare() != 0.5 || newRequests().rejectedShare() != 0 {
		t.Errorf("%d reads, share %g; want 3, 0.5", r.reads, r.rejectedShare())
	}
}

func TestAuditLogThatGrows(t *testing.T) {
	log := &auditLog{path: filepath.Join(t.TempDir(), "audit.log")}
	read := func() (count int, err error) {
		err = log.next(func(auditEvent) { count++ })
		return count, err
	}
	if got, err := read(); got != 0 || err != nil {
		t.Errorf("%d requests in a log that does not exist, %v", got, err)
	}
	file := checktest.Must(os.Create(log.path))(t)
	defer func() { _ = file.Close() }()
	line := auditLine("patch", "/x", "", 200)
	for _, step := range []struct {
		text   string
		want   int
		broken bool
	}{{line + line + line[:40], 2, false}, {"", 0, false}, {line[40:], 1, false}, {line, 1, false}, {"nonsense\n", 0, true}} {
		checktest.Must(file.WriteString(step.text))(t)
		if got, err := read(); got != step.want || (err != nil) != step.broken {
			t.Errorf("after %.20q…: %d requests, want %d; %v", step.text, got, step.want, err)
		}
	}
}

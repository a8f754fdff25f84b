// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/usher-dev/usher/examples/webhook/receiver"
	"github.com/usher-dev/usher/internal/checktest"
)

// serve returns the URL of a server below /usher.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL + "/usher"
}

// TestExitCodes: 0 if all that was tried holds, 1 if something does not, 2 if nothing can be tried.
func TestExitCodes(t *testing.T) {
	key := filepath.Join(t.TempDir(), "hmac")
	checktest.NoError(t, os.WriteFile(key, []byte("a secret of the test"), 0o600))
	good := serve(t, &receiver.Receiver{Base: "/usher", Key: []byte("a secret of the test")})
	none := serve(t, http.NotFoundHandler())
	for name, test := range map[string]struct {
		args  []string
		code  int
		words []string
	}{
		"the example":            {[]string{"--webhook", good, "--hmac-file", key, "--stay", "0s"}, allHold, []string{"20 hold, 0 do not hold, 2 were not tried"}},
		"the example in service": {[]string{"--webhook", good, "--hmac-file", key, "--stay", "0s", "--service", "pay"}, allHold, []string{"19 hold, 0 do not"}},
		"the wrong key":          {[]string{"--webhook", good, "--stay", "0s"}, someFail, []string{"its status codes say success", "401 Unauthorized"}},
		"another server": {[]string{"--webhook", none}, someFail, []string{
			"its status codes say success                does not hold\n    The server must answer list with 200", "list: it answered 404", "first, this must hold",
		}},
		"no server":         {nil, cannotTry, []string{"--webhook http://"}},
		"no address":        {[]string{"--webhook", "registrar"}, cannotTry, []string{"webhook.url is not an http or https address"}},
		"no such file":      {[]string{"--webhook", good, "--hmac-file", key + "2"}, cannotTry, []string{"--hmac-file: open"}},
		"an argument":       {[]string{"--webhook", good, "again"}, cannotTry, []string{"say which server"}},
		"a flag":            {[]string{"--url", good}, cannotTry, []string{"not defined"}},
		"a foreign service": {[]string{"--webhook", good, "--foreign", "legacy"}, cannotTry, []string{"SERVICE/ID"}},
		"help":              {[]string{"--help"}, allHold, []string{"spec.webhook.url"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			checktest.Same(t, "the exit code", test.code, run(t.Context(), test.args, &out, &out))
			checktest.Says(t, "the output", out.String(), test.words...)
			checktest.Same(t, "a table", test.code != cannotTry && name != "help", strings.Contains(out.String(), "were not tried\n"))
		})
	}
}

// TestNoTestingInPrograms: what is delivered has no package of tests in it.
func TestNoTestingInPrograms(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "../usher", ".")
	out := checktest.Must(list.Output())(t)
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); name == "testing" || strings.Contains(name, "usher/internal/") && strings.HasSuffix(name, "test") {
			t.Errorf("a program imports %s", name)
		}
	}
}

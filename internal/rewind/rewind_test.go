// SPDX-License-Identifier: Apache-2.0

package rewind

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/checktest"
)

// api answers lists with these resourceVersions, one after the other, and ends the test with the last one. An empty one is
// an API server that does not answer.
type api struct {
	client.Reader
	versions []string
	end      func()
}

func (a *api) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	if len(a.versions) == 0 {
		a.end()
		return errors.New("the test is over")
	}
	version := a.versions[0]
	if a.versions = a.versions[1:]; version == "" {
		return errors.New("away")
	}
	into.(*metav1.PartialObjectMetadataList).ResourceVersion = version
	return nil
}

// TestWatch: only an API server that was further ends the process, also if it was away in between.
func TestWatch(t *testing.T) {
	for versions, back := range map[string]string{
		"9 10 10 11":  "",
		"10 9":        "from 10 to 9",
		"1000 999":    "from 1000 to 999",
		"10 - - 9":    "from 10 to 9",
		"10 - - 12":   "",
		"- - 7":       "",
		"10 other 12": "",
	} {
		t.Run(versions, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				answers := strings.Fields(strings.ReplaceAll(versions, "-", `""`))
				for i, version := range answers {
					answers[i] = strings.Trim(version, `"`)
				}
				w := &Watch{reader: &api{versions: answers, end: cancel}, every: time.Second}
				err := w.Start(ctx)
				if back == "" {
					checktest.NoError(t, err)
				} else if err == nil || !strings.Contains(err.Error(), back) {
					t.Errorf("the process ends with %v, want %q", err, back)
				}
			})
		})
	}
	checktest.Same(t, "it is for the leader alone", false, (&Watch{}).NeedLeaderElection())
}

// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/usher-dev/usher/test/e2e"
)

// A story's name is also that of its namespace and of its service, and its description
// is a table cell.
func TestStoriesHaveNamesAndLines(t *testing.T) {
	seen := map[string]bool{"default": true, "kube-system": true, "usher-system": true,
		// Registries have their own services and backends.
		string(e2e.Etcd): true, string(e2e.OwnEtcd): true, string(e2e.Consul): true, string(e2e.HAProxy): true}
	for _, story := range All() {
		if wrong := validation.IsDNS1123Label(story.Name); len(wrong) > 0 || seen[story.Name] {
			t.Errorf("story %q: the name is taken, or none of a namespace: %v", story.Name, wrong)
		}
		seen[story.Name] = true
		if story.About == "" || strings.ContainsAny(story.About, "|\n") || strings.HasSuffix(story.About, ".") {
			t.Errorf("story %s: About is %q", story.Name, story.About)
		}
		if story.Play == nil {
			t.Errorf("story %s plays nothing", story.Name)
		}
	}
}

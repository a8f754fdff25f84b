// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// DocumentedStep returns a command block of a document in docs/ of the checkout at
// root: the one after <!-- story: NAME -->.
func DocumentedStep(root, document, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", document))
	if err != nil {
		return "", err
	}
	block := regexp.MustCompile("(?s)<!-- story: " + regexp.QuoteMeta(name) + " -->\n+ *```sh\n(.*?)\n *```")
	found := block.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s has no commands for the step %q", document, name)
	}
	return string(found[1]), nil
}

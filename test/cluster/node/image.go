// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
)

// imageID is the image ID that a pull would return: the repository with a digest, which
// is derived from the whole name.
func imageID(image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s@sha256:%x", ref.Context().Name(), sha256.Sum256([]byte(ref.Name()))), nil
}

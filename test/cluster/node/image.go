// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// Reasons of a PullError, as a kubelet reports them in a waiting container.
const (
	// ReasonInvalidImageName means that the image name cannot be parsed.
	ReasonInvalidImageName = "InvalidImageName"
	// ReasonErrImagePull means that the image does not exist.
	ReasonErrImagePull = "ErrImagePull"
	// ReasonImagePullBackOff means that the next pull is delayed.
	ReasonImagePullBackOff = "ImagePullBackOff"
	// ReasonErrImageNeverPull is ErrImagePull with imagePullPolicy Never.
	ReasonErrImageNeverPull = "ErrImageNeverPull"
)

// PullError is why an image cannot be pulled.
type PullError struct {
	Reason  string // one of the reasons above
	Message string
}

// Error implements error.
func (e *PullError) Error() string { return e.Reason + ": " + e.Message }

const defaultTag = "latest"

// The grammar of github.com/distribution/reference, without upper-case hosts.
var (
	repositoryPattern = regexp.MustCompile(`^([a-z0-9]+([.-]+[a-z0-9]+)*(:[0-9]+)?/)?` +
		`[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestPattern = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
)

// ImageRef is a parsed image name.
type ImageRef struct {
	Repository string // "registry:5000/shop/web"
	Tag        string // "v1"; "latest" if the name has neither tag nor digest
	Digest     string // "sha256:…" or empty
}

// ParseImage parses an image name. Its error is a *PullError with reason
// InvalidImageName.
func ParseImage(image string) (ImageRef, error) {
	repository, digest, hasDigest := strings.Cut(image, "@")
	ref := ImageRef{Repository: repository, Digest: digest}
	hasTag := false
	// A colon before the last slash starts a port, not a tag.
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		ref.Repository, ref.Tag, hasTag = repository[:i], repository[i+1:], true
	}
	if !hasTag && !hasDigest {
		ref.Tag = defaultTag
	}
	switch {
	case !repositoryPattern.MatchString(ref.Repository),
		(hasTag || !hasDigest) && !tagPattern.MatchString(ref.Tag),
		hasDigest && !digestPattern.MatchString(digest):
		return ImageRef{}, &PullError{
			Reason:  ReasonInvalidImageName,
			Message: fmt.Sprintf("image %q: invalid reference format; use [HOST[:PORT]/]NAME[:TAG]", image),
		}
	}
	return ref, nil
}

// Name is the last element of the repository: the program's name.
func (r ImageRef) Name() string {
	return r.Repository[strings.LastIndexByte(r.Repository, '/')+1:]
}

// String is the image's full name, including an implied tag.
func (r ImageRef) String() string {
	name := r.Repository
	if r.Tag != "" {
		name += ":" + r.Tag
	}
	if r.Digest != "" {
		name += "@" + r.Digest
	}
	return name
}

// imageAliases maps full image names to full names of images whose digest they share,
// like two tags pushed for one image.
type imageAliases map[string]string

// newImageAliases normalizes image names to full names.
func newImageAliases(names map[string]string) (imageAliases, error) {
	aliases := make(imageAliases, len(names))
	for alias, target := range names {
		from, err := ParseImage(alias)
		if err != nil {
			return nil, fmt.Errorf("image alias: %w", err)
		}
		to, err := ParseImage(target)
		if err != nil {
			return nil, fmt.Errorf("image alias of %s: %w", alias, err)
		}
		aliases[from.String()] = to.String()
	}
	return aliases, nil
}

// id is the image ID that a pull would return: the repository with a digest, which is
// derived from repository and tag unless the name holds one.
func (a imageAliases) id(ref ImageRef) string {
	if ref.Digest != "" {
		return ref.Repository + "@" + ref.Digest
	}
	content := ref.String()
	if target, ok := a[content]; ok {
		content = target
	}
	sum := sha256.Sum256([]byte(content))
	return ref.Repository + "@sha256:" + hex.EncodeToString(sum[:])
}

// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// rereads returns the containers whose environment has a label or annotation that changes, and which one,
// as a path in a Pod. Containers that get another image restart anyway.
func rereads(to *corev1.PodSpec, change *Change) map[string]string {
	out := map[string]string{}
	for _, c := range lasting(to) {
		_, restarts := change.Images[c.Name]
		if path := rereadBy(c.Container, change); path != "" && !restarts {
			out[c.Name] = path
		}
	}
	return out
}

// rereadBy returns the first field in a container's environment that changes; "" if none does.
func rereadBy(c *corev1.Container, change *Change) string {
	changes := func(path, field string, values map[string]*string) bool {
		key, found := strings.CutPrefix(path, "metadata."+field+"['")
		_, changes := values[strings.TrimSuffix(key, "']")]
		return found && changes
	}
	for _, v := range c.Env {
		if v.ValueFrom == nil || v.ValueFrom.FieldRef == nil {
			continue
		}
		path := v.ValueFrom.FieldRef.FieldPath
		if changes(path, "labels", change.Labels) || changes(path, "annotations", change.Annotations) {
			return path
		}
	}
	return ""
}

// For returns the change of one Pod. Containers that read a label or annotation which changes restart: they get
// the image that they run by another name. A container that has not been created reads the new values anyway.
// If an image has no other name, For returns a *Refusal.
func (c *Change) For(pod *corev1.Pod) (*Change, error) {
	if len(c.Rereads) == 0 {
		return c, nil
	}
	out := *c
	out.Rereads, out.Images = nil, merged(c.Images)
	for _, name := range namesIn(c.Rereads, c.Rereads) {
		status := StatusOf(pod, name)
		if status == nil || status.ContainerID == "" {
			continue
		}
		image := alias(ImageOf(pod, name), status.ImageID)
		if image == "" {
			why := fmt.Sprintf("container %s has it in its environment, and runs image %s, whose digest its node does not know (%s), "+
				"so that it cannot be restarted", name, ImageOf(pod, name), status.ImageID)
			return nil, &Refusal{Field: "spec.template." + c.Rereads[name], Why: why}
		}
		out.Images[name] = image
	}
	return &out, nil
}

// alias returns another name of the image that a container runs, by its digest; "" if the kubelet's ID of it
// has no digest of that repository.
func alias(image, id string) string {
	repository, tag := splitName(image)
	from, digest, known := strings.Cut(id, "@")
	if !known || FullImage(from+":x") != FullImage(repository+":x") {
		return ""
	}
	if tag == "" {
		tag = ":latest" // Kubelets ignore a tag if there is a digest.
	}
	if name := repository + tag + "@" + digest; name != image {
		return name
	}
	return repository + "@" + digest
}

// splitName splits the name of an image into its repository and its tag with the colon, without its digest.
func splitName(image string) (repository, tag string) {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
		return image[:colon], image[colon:]
	}
	return image, ""
}

// Runs reports whether a container of a Pod runs an image that is named by its digest: then its node has it.
func Runs(pod *corev1.Pod, container, image string) bool {
	_, digest, named := strings.Cut(image, "@")
	status := StatusOf(pod, container)
	return named && status != nil && strings.HasSuffix(status.ImageID, "@"+digest)
}

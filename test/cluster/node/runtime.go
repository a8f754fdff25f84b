// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Runtime runs containers for the Pod state machine. Its methods are called from
// several goroutines, but never concurrently for one Pod. They must return soon and not
// wait for a container.
type Runtime interface {
	// Traits describes the runtime.
	Traits() Traits
	// Address assigns the Pod its IP address.
	Address(pod types.UID) (string, error)
	// Release frees the Pod's address.
	Release(pod types.UID)
	// Pull pulls an image and returns its ID.
	Pull(image string) (string, error)
	// Start starts a container.
	Start(cfg ContainerConfig) (Instance, error)
	// Close kills all containers and waits until they are gone.
	Close(ctx context.Context) error
}

// Traits are the properties of a runtime that the state machine needs.
type Traits struct {
	// Name is the scheme of container IDs.
	Name string
	// Real reports whether there are processes behind the containers: probes run, and
	// the end of every Pod is reported.
	Real bool
	// MostCPU is the most that a node gives a container by a resize; zero is no limit.
	MostCPU resource.Quantity
	// ReadyDelay is the time from the first sight of a Pod to its containers' start,
	// UpdateDelay from the end of a container whose definition changed to its restart,
	// DeleteDelay from the first sight of a deletion to the end of the Pod's containers.
	ReadyDelay, UpdateDelay, DeleteDelay time.Duration
}

// ContainerConfig is what a runtime needs to start a container.
type ContainerConfig struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	IP        string // the Pod's
	Attempt   int32  // restarts before this start
	// Exited is called once the instance has ended, from any goroutine, but not before
	// Start has returned. A runtime whose instances end only on request need not call it.
	Exited func()
}

// Instance is a running container.
type Instance interface {
	// ID is the container ID, "scheme://…".
	ID() string
	// Exit is how the instance ended; nil while it runs.
	Exit() *Exit
	// Terminate asks the instance to end (SIGTERM).
	Terminate()
	// Kill ends the instance (SIGKILL).
	Kill()
}

// Exit is the end of a container.
type Exit struct {
	Code    int32 // 128 plus the signal if one ended it
	At      time.Time
	Message string
}

// imageID is the image ID that a pull would return: the repository with a digest, which
// is derived from the whole name.
func imageID(image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s@sha256:%x", ref.Context().Name(), sha256.Sum256([]byte(ref.Name()))), nil
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
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
	// Pull makes a node pull an image, and returns its ID. The error *Pulling means that the pull takes
	// until then.
	Pull(node, image string) (string, error)
	// Start starts a container.
	Start(cfg ContainerConfig) (Instance, error)
	// Close kills all containers and waits until they are gone.
	Close(ctx context.Context) error
}

// Pulling is the error of a pull that is under way.
type Pulling struct{ Until time.Time }

func (p *Pulling) Error() string { return "it is being pulled until " + p.Until.Format(time.RFC3339) }

// Traits are the properties of a runtime that the state machine needs.
type Traits struct {
	// Name is the scheme of container IDs.
	Name string
	// Real reports whether there are processes behind the containers: probes run, and
	// the end of every Pod is reported.
	Real bool
	// MostCPU is the most that a node gives a running container: a resize to a larger request is
	// reported as infeasible. Zero is no limit.
	MostCPU resource.Quantity
	// MissingImages are images that a simulated node cannot pull.
	MissingImages []string
	// ReadyDelay is the time from the first sight of a Pod to its containers' start,
	// UpdateDelay from the end of a container whose definition changed to its restart (it may
	// change at any time),
	// DeleteDelay from the first sight of a deletion to the end of the Pod's containers. 0 for the
	// first two means one status write instead of two.
	ReadyDelay, UpdateDelay, DeleteDelay time.Duration
}

// ContainerConfig has what a runtime needs to start a container.
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

// imageID returns the image ID that a pull would return: the repository with a digest, which is derived
// from the whole name unless it has one.
func imageID(image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", err
	}
	if digest, ok := ref.(name.Digest); ok {
		return digest.Context().Name() + "@" + digest.DigestStr(), nil
	}
	return fmt.Sprintf("%s@sha256:%x", ref.Context().Name(), sha256.Sum256([]byte(ref.Name()))), nil
}

// simulatedRuntime simulates containers without running anything.
type simulatedRuntime struct {
	traits Traits
	clock  clock.PassiveClock
}

// NewSimulatedRuntime creates a runtime that runs nothing, for thousands of Pods. Its traits are
// given, but for the name.
func NewSimulatedRuntime(traits Traits) Runtime {
	traits.Name = "simulated"
	return &simulatedRuntime{traits: traits, clock: clock.RealClock{}}
}

func (r *simulatedRuntime) Traits() Traits { return r.traits }

// Address is derived from the Pod's UID: unique enough where nothing listens.
func (r *simulatedRuntime) Address(pod types.UID) (string, error) {
	sum := hash32(string(pod))
	return fmt.Sprintf("10.%d.%d.%d", 64+sum>>16&0x3f, sum>>8&0xff, 1+sum&0xfd), nil
}

func (r *simulatedRuntime) Release(types.UID) {}

func (r *simulatedRuntime) Pull(_, image string) (string, error) {
	if slices.Contains(r.traits.MissingImages, image) {
		return "", fmt.Errorf("image %q is simulated as missing", image)
	}
	return imageID(image)
}

func (r *simulatedRuntime) Start(ContainerConfig) (Instance, error) {
	return &simulatedInstance{id: newContainerID(r), clock: r.clock}, nil
}

func (r *simulatedRuntime) Close(context.Context) error { return nil }

// simulatedInstance runs until Terminate or Kill. The Pod's lock guards it.
type simulatedInstance struct {
	id    string
	clock clock.PassiveClock
	exit  *Exit
}

func (i *simulatedInstance) ID() string  { return i.id }
func (i *simulatedInstance) Exit() *Exit { return i.exit }
func (i *simulatedInstance) Terminate()  { i.end(0) }
func (i *simulatedInstance) Kill()       { i.end(137) }

func (i *simulatedInstance) end(code int32) {
	if i.exit == nil {
		i.exit = &Exit{Code: code, At: i.clock.Now()}
	}
}

// newContainerID creates an ID as a container runtime would.
func newContainerID(r Runtime) string { return r.Traits().Name + "://" + string(uuid.NewUUID()) }

func hash32(text string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(text)) // cannot fail
	return hash.Sum32()
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
)

// SimulatedOptions configures the behaviour of simulated containers.
type SimulatedOptions struct {
	// ReadyDelay, UpdateDelay and DeleteDelay are those of Traits. 0 for the first two
	// means one status write instead of two.
	ReadyDelay, UpdateDelay, DeleteDelay time.Duration
	// MissingImages are images that cannot be pulled.
	MissingImages []string
	// MostCPU is the most that a node gives a running container: a resize to a larger
	// request is reported as infeasible. "" is no limit.
	MostCPU string
}

// simulatedRuntime simulates containers without running anything.
type simulatedRuntime struct {
	traits  Traits
	missing []string
	clock   clock.PassiveClock
}

// NewSimulatedRuntime creates a runtime that runs nothing, for thousands of Pods.
func NewSimulatedRuntime(o SimulatedOptions) (Runtime, error) {
	r := &simulatedRuntime{missing: o.MissingImages, clock: clock.RealClock{}, traits: Traits{
		Name: "simulated", ReadyDelay: o.ReadyDelay, UpdateDelay: o.UpdateDelay, DeleteDelay: o.DeleteDelay,
	}}
	if o.MostCPU != "" {
		var err error
		if r.traits.MostCPU, err = resource.ParseQuantity(o.MostCPU); err != nil {
			return nil, fmt.Errorf("SimulatedOptions.MostCPU %q: %w", o.MostCPU, err)
		}
	}
	return r, nil
}

func (r *simulatedRuntime) Traits() Traits { return r.traits }

// Address is derived from the Pod's UID: unique enough where nothing listens.
func (r *simulatedRuntime) Address(pod types.UID) (string, error) {
	sum := hash32(string(pod))
	return fmt.Sprintf("10.%d.%d.%d", 64+sum>>16&0x3f, sum>>8&0xff, 1+sum&0xfd), nil
}

func (r *simulatedRuntime) Release(types.UID) {}

func (r *simulatedRuntime) Pull(image string) (string, error) {
	if slices.Contains(r.missing, image) {
		return "", fmt.Errorf("image %q is simulated as missing", image)
	}
	return imageID(image)
}

func (r *simulatedRuntime) Start(ContainerConfig) (Instance, error) {
	return &simulatedInstance{id: newContainerID(r), clock: r.clock}, nil
}

func (r *simulatedRuntime) Close(context.Context) error { return nil }

// simulatedInstance runs until it is told to end. The Pod's lock guards it.
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

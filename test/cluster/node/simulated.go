// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
)

// SimulatedOptions configures the behaviour of simulated containers.
type SimulatedOptions struct {
	// ReadyDelay is the time from the first sight of a Pod to its containers' start,
	// UpdateDelay from the end of a container whose definition changed to its restart,
	// DeleteDelay from the deletion of a Pod to the end of its containers. 0 for the
	// first two means one status write instead of two.
	ReadyDelay, UpdateDelay, DeleteDelay time.Duration
	// Jitter lengthens every delay by a random share of up to this value: 0.5 makes 1 s
	// last between 1 and 1.5 s. The same Seed and Pod name give the same delays.
	Jitter float64
	Seed   uint64
	// Aliases maps images to images whose digest they share.
	Aliases map[string]string
	// CrashImages are images whose containers exit with code 1 at once,
	// MissingImages those that cannot be pulled.
	CrashImages, MissingImages []string
	// MostCPU is the most that a node gives a running container: a resize to a larger
	// request is reported as infeasible. "" is no limit.
	MostCPU string
	// Clock is the time; nil means the real one.
	Clock clock.PassiveClock
}

// simulatedRuntime simulates containers without running anything.
type simulatedRuntime struct {
	options SimulatedOptions
	aliases imageAliases
	crash   map[string]bool
	missing map[string]bool
	mostCPU resource.Quantity
}

// NewSimulatedRuntime creates a runtime that runs nothing, for thousands of Pods. Its
// error names an invalid image in the options.
func NewSimulatedRuntime(options SimulatedOptions) (Runtime, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	r := &simulatedRuntime{options: options}
	var err error
	if r.aliases, err = newImageAliases(options.Aliases); err != nil {
		return nil, fmt.Errorf("SimulatedOptions.Aliases: %w", err)
	}
	if r.crash, err = imageSet(options.CrashImages); err != nil {
		return nil, fmt.Errorf("SimulatedOptions.CrashImages: %w", err)
	}
	if r.missing, err = imageSet(options.MissingImages); err != nil {
		return nil, fmt.Errorf("SimulatedOptions.MissingImages: %w", err)
	}
	if r.mostCPU, err = mostCPU(options.MostCPU); err != nil {
		return nil, err
	}
	return r, nil
}

func imageSet(names []string) (map[string]bool, error) {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		ref, err := ParseImage(name)
		if err != nil {
			return nil, err
		}
		set[ref.String()] = true
	}
	return set, nil
}

func (r *simulatedRuntime) Traits() Traits {
	return Traits{Name: "simulated", MostCPU: r.mostCPU}
}

func (r *simulatedRuntime) HostIP(node int) string {
	return fmt.Sprintf("10.254.%d.%d", node/250, node%250+1)
}

func (r *simulatedRuntime) Delay(kind Delay, pod *corev1.Pod) time.Duration {
	delay := map[Delay]time.Duration{
		DelayReady: r.options.ReadyDelay, DelayUpdate: r.options.UpdateDelay, DelayDelete: r.options.DeleteDelay,
	}[kind]
	if delay <= 0 || r.options.Jitter <= 0 {
		return max(delay, 0)
	}
	seed := binary.LittleEndian.AppendUint64(nil, r.options.Seed)
	share := float64(hash32(string(seed), strconv.Itoa(int(kind)), pod.Namespace, pod.Name)) / (1 << 32)
	return delay + time.Duration(share*r.options.Jitter*float64(delay))
}

// Address is derived from the Pod's UID: unique enough where nothing listens.
func (r *simulatedRuntime) Address(pod *corev1.Pod) (string, error) {
	if pod.Status.PodIP != "" {
		return pod.Status.PodIP, nil
	}
	sum := hash32(string(pod.UID))
	return fmt.Sprintf("10.%d.%d.%d", 64+sum>>16&0x3f, sum>>8&0xff, 1+sum&0xfd), nil
}

func (r *simulatedRuntime) Release(types.UID) {}

func (r *simulatedRuntime) Resolve(image string) (string, error) {
	ref, err := ParseImage(image)
	if err != nil {
		return "", err
	}
	if r.missing[ref.String()] {
		return "", &PullError{Reason: ReasonErrImagePull, Message: fmt.Sprintf("image %q is simulated as missing", image)}
	}
	return r.aliases.id(ref), nil
}

func (r *simulatedRuntime) Start(cfg ContainerConfig) (Instance, error) {
	instance := &simulatedInstance{id: newContainerID(r), clock: r.options.Clock}
	ref, err := ParseImage(cfg.Container.Image)
	if err != nil {
		return nil, err
	}
	switch {
	case r.crash[ref.String()]:
		instance.end(1)
	case cfg.Init:
		instance.end(0)
	}
	return instance, nil
}

// Adopt treats any container as still running.
func (r *simulatedRuntime) Adopt(id string) (Instance, bool) {
	return &simulatedInstance{id: id, clock: r.options.Clock}, true
}

func (r *simulatedRuntime) Close(context.Context) error { return nil }

// simulatedInstance runs until it is told to end. The Pod's lock guards it.
type simulatedInstance struct {
	id    string
	clock clock.PassiveClock
	exit  *Exit
}

func (i *simulatedInstance) ID() string { return i.id }

func (i *simulatedInstance) Exit() (Exit, bool) {
	if i.exit == nil {
		return Exit{}, false
	}
	return *i.exit, true
}

func (i *simulatedInstance) end(code int32) {
	if i.exit == nil {
		i.exit = &Exit{Code: code, At: i.clock.Now()}
	}
}

func (i *simulatedInstance) Terminate() { i.end(0) }
func (i *simulatedInstance) Kill()      { i.end(137) }

func (i *simulatedInstance) Exec(context.Context, []string) error { return nil }

func (i *simulatedInstance) Describe() Description { return Description{} }

// newContainerID creates an ID as a container runtime would.
func newContainerID(r Runtime) string {
	return r.Traits().Name + "://" + strings.ReplaceAll(string(uuid.NewUUID()), "-", "")
}

func hash32(parts ...string) uint32 {
	hash := fnv.New32a()
	for _, part := range parts {
		_, _ = hash.Write([]byte(part)) // cannot fail
		_, _ = hash.Write([]byte{0})
	}
	return hash.Sum32()
}

// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// process can crash: after its last write nothing it does succeeds, and it
// does not hear what became of that write.
type process struct {
	*simulation
	left int
}

func (p *process) write(what string, do func() error) error {
	if p.left <= 0 {
		return errCrashed
	}
	err := do()
	p.current = nil
	p.log("  operator: %s: %v", what, err)
	p.left--
	p.check()
	if p.left == 0 {
		p.log("  operator crashes")
		return errCrashed
	}
	return err
}

// simClient reads from caches that lag.
type simClient struct {
	client.Client
	process *process
}

func (c *simClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	cached := &c.process.cached
	switch list := list.(type) {
	case *corev1.PodList:
		for i := range cached.pods {
			list.Items = append(list.Items, *cached.pods[i].DeepCopy())
		}
	case *usherv1alpha1.RegistryList:
		cached.registries.DeepCopyInto(list)
	case *usherv1alpha1.RegistrationList:
		cached.registrations.DeepCopyInto(list)
	default:
		return c.Client.List(ctx, list, options...)
	}
	c.process.defects.mislead(list)
	return nil
}

func (c *simClient) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	c.process.hush("a patch of "+o.GetName(), string(data))
	patch = c.process.defects.garble(patch, data)
	before := c.process.lookup(o.GetName())
	return c.process.write(fmt.Sprintf("patch %s %s", o.GetName(), data), func() error {
		if err := c.Client.Patch(ctx, o, patch, options...); err != nil {
			return err
		}
		c.process.judge(before, o)
		return nil
	})
}

func (c *simClient) Status() client.SubResourceWriter {
	return &simStatus{SubResourceWriter: c.Client.Status(), process: c.process}
}

type simStatus struct {
	client.SubResourceWriter
	process *process
}

func (c *simStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	c.process.hush("the status of "+o.GetName(), string(data))
	return c.process.write("status of "+o.GetName(), func() error {
		err := c.SubResourceWriter.Patch(ctx, o, patch, options...)
		c.process.records(o, err)
		return err
	})
}

// simConnector counts writes to a registry.
type simConnector struct {
	*memory.Registry
	process *process
	name    string
}

// List implements registry.Connector.
func (c *simConnector) List(ctx context.Context, service string) ([]registry.Entry, error) {
	entries, err := c.Registry.List(ctx, service)
	c.process.finds(c.name, err)
	return entries, echo(err)
}

// Ping implements registry.Connector.
func (c *simConnector) Ping(ctx context.Context) error {
	err := c.Registry.Ping(ctx)
	c.process.finds(c.name, err)
	return echo(err)
}

func (c *simConnector) Apply(ctx context.Context, service string, changes []registry.Change) error {
	c.process.judgeSilence(c.name, registrationOf(service), changes)
	return c.process.write(fmt.Sprintf("apply %v", changes), func() error {
		return echo(c.Registry.Apply(ctx, service, changes))
	})
}

// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/test/model"
)

const actorOperator = "operator"

// errCrashed ends every call of a process that has crashed.
var errCrashed = errors.New("the process has crashed")

// unlimited is a number of writes that no process reaches.
const unlimited = 1 << 30

// process can crash: after its last write nothing it does succeeds, and it
// does not learn the result of that write.
type process struct {
	*simulation
	left int
}

func (p *process) write(what string, do func() error) error {
	if p.left <= 0 {
		return errCrashed
	}
	err := do()
	p.wait(p.slow)
	p.log("  operator: %s: %v", what, err)
	p.left--
	p.check()
	if p.left == 0 {
		p.log("  operator crashes")
		return errCrashed
	}
	return err
}

// send carries a request to the API server, or to the caches.
func (p *process) send(r *model.Request, do func() error) error {
	if !r.Writes() {
		err := do()
		p.defects.misreadAll(r)
		return err
	}
	p.hidesSecret(fmt.Sprintf("a patch of %s %s", r.Kind, r.At.Name), string(r.Patch))
	r.Patch = p.defects.miswritten(r)
	return p.write(fmt.Sprintf("%s %s %s/%s %s", r.Verb, r.Kind, r.At.Name, r.Subresource, r.Patch), func() error {
		err := do()
		if err == nil && r.Kind == "Registry" && bytes.Contains(r.Patch, []byte(`"lastOutage"`)) {
			p.records(r.At.Name)
		}
		return err
	})
}

// connector counts writes to a registry.
type connector struct {
	*memory.Registry
	process *process
	name    string
}

// List implements registry.Connector.
func (c *connector) List(ctx context.Context, service string) ([]registry.Entry, error) {
	entries, err := c.Registry.List(ctx, service)
	c.process.meets(c.name, err)
	if err == nil {
		c.process.sees(c.name)
	}
	if c.process.features.applications {
		entries = c.process.defects.relisted(entries)
	}
	return entries, echo(err)
}

// Ping implements registry.Connector.
func (c *connector) Ping(ctx context.Context) error {
	err := c.Registry.Ping(ctx)
	c.process.meets(c.name, err)
	return echo(err)
}

// Apply implements registry.Connector.
func (c *connector) Apply(ctx context.Context, service string, changes []registry.Change) error {
	c.process.judgeSilence(c.name, service, changes)
	c.process.judgeBudgets(changes)
	c.judgeOwners(service, changes)
	c.process.judgeOverrides(c.name, changes)
	for _, change := range changes {
		if change.Op == registry.Put || change.Op == registry.BringBack {
			delete(c.process.guardian.proceeded, types.UID(change.Entry.Owner.PodUID))
		}
	}
	return c.process.write(fmt.Sprintf("apply %v", changes), func() error {
		return echo(c.Registry.Apply(ctx, service, changes))
	})
}

// echo repeats the credentials, as a careless server may.
func echo(err error) error {
	byID, rest := registry.ChangeErrors(err)
	errs := list.Map(slices.Sorted(maps.Keys(byID)), func(id string) error {
		return &registry.ChangeError{ID: id, Err: fmt.Errorf("%w, you sent %s", byID[id], canary)}
	})
	if rest != nil {
		errs = append(errs, fmt.Errorf("%w, you sent %s", rest, canary))
	}
	return errors.Join(errs...)
}

// hidesSecret fails if something that others can read reveals the secret.
func (s *simulation) hidesSecret(where, text string) {
	if strings.Contains(text, canary) {
		s.fail("%s reveals the secret: %s", where, text)
	}
}

// recorder takes events.
type recorder struct{ *simulation }

// Eventf implements events.EventRecorder.
func (r recorder) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.hidesSecret("event "+reason, fmt.Sprintf(note, args...))
}

// defects are ways to break the operator.
type defects struct {
	// loses are requests to applications that are never sent.
	loses registry.Op
	// misreads changes an object that the operator reads, from its caches or not.
	misreads func(object client.Object, cached bool)
	// miswrites changes the metadata in a patch.
	miswrites func(metadata map[string]any)
	// idle makes the operator delete no Pod that has drained.
	idle bool
	// trusts makes it take what a list has for the latest version.
	trusts bool
	// relists changes what the cloud's API lists, or a registry where applications register themselves.
	relists func([]registry.Entry) []registry.Entry
	// believes makes the operator take what Pods answer for something else.
	believes func(*plan.Answer)
	// allows makes the guard let a Pod go that it would hold.
	allows func(*corev1.Pod) bool
}

func (d defects) any() bool {
	return d.idle || d.trusts || d.believes != nil || d.loses != "" || d.relists != nil || d.misreads != nil || d.miswrites != nil || d.allows != nil
}

func (d defects) relisted(entries []registry.Entry) []registry.Entry {
	if d.relists == nil {
		return entries
	}
	return d.relists(entries)
}

func (d defects) allowed(pod *corev1.Pod) bool { return d.allows != nil && pod != nil && d.allows(pod) }

func (d defects) misreadAll(r *model.Request) {
	if d.misreads == nil {
		return
	}
	misread := func(o runtime.Object) error {
		object, _ := o.(client.Object)                             // lists hold nothing else
		object.SetAnnotations(maps.Clone(object.GetAnnotations())) // those of a list's items are the cache's
		d.misreads(object, r.Cached)
		return nil
	}
	if list, ok := r.Out.(client.ObjectList); ok {
		_ = meta.EachListItem(list, misread) // it does not fail
	} else if object, ok := r.Out.(client.Object); ok {
		_ = misread(object)
	}
}

func (d defects) miswritten(r *model.Request) []byte {
	var body map[string]map[string]any
	if d.miswrites == nil || json.Unmarshal(r.Patch, &body) != nil || body["metadata"] == nil {
		return r.Patch
	}
	d.miswrites(body["metadata"])
	return encode.JSON(body)
}

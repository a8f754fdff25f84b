// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Faults are the probabilities of the faults of one write.
type Faults struct {
	// Lost: the request times out and has no effect.
	Lost float64
	// Blind: the request times out but takes effect.
	Blind float64
	// Conflict: the server answers 409 although nothing has changed.
	Conflict float64
	// Busy: the server answers 429 or 500 and does nothing.
	Busy float64
	// Crash: the process dies after the write took effect, before the answer.
	Crash float64
}

// apiClient is the client.Client of a controller process: it reads from the
// process's caches and writes to the server. Verbs that the controller does not
// use are left nil.
type apiClient struct {
	client.Client
	process *Process
}

var errDead = errors.New("the process is gone")

// Get reads from the cache.
func (c *apiClient) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	kind, err := kindOf(out)
	if err != nil {
		return err
	}
	if c.process.dead {
		return errDead
	}
	object, ok := c.process.caches[kind].objects[key]
	if !ok {
		return apierrors.NewNotFound(kind.resource(), key.Name)
	}
	c.process.began(object)
	return fill(out, object)
}

// List reads from the cache, through the index that the controller makes.
func (c *apiClient) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind, err := kindOf(list)
	if err != nil {
		return err
	}
	if c.process.dead {
		return errDead
	}
	return fillList(list, sorted(c.process.caches[kind].objects), options)
}

// Status is the status subresource.
func (c *apiClient) Status() client.SubResourceWriter {
	return &subresource{process: c.process, name: "status"}
}

// Status returns the status subresource.
func (c *apiClient) SubResource(name string) client.SubResourceClient {
	return &subresource{process: c.process, name: name}
}

// SubResource returns a subresource by name.
func (c *apiClient) Create(_ context.Context, object client.Object, options ...client.CreateOption) error {
	var o client.CreateOptions
	o.ApplyOptions(options)
	typed, err := typed(object, o.FieldValidation == metav1.FieldValidationStrict)
	if err != nil {
		return err
	}
	kind, err := kindOf(typed)
	if err != nil {
		return err
	}
	dryRun := len(o.DryRun) > 0
	return c.process.write(dryRun, func() error {
		made, err := c.process.server.create(c.process.name, kind, typed, dryRun)
		if err != nil {
			return err
		}
		return fill(object, made)
	})
}

// Create creates an object; a Pod from a raw manifest is decoded strictly if asked.
func (c *apiClient) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.process.patch(object, "", patch)
}

// Delete deletes an object.
func (c *apiClient) Delete(_ context.Context, object client.Object, options ...client.DeleteOption) error {
	var o client.DeleteOptions
	o.ApplyOptions(options)
	kind, err := kindOf(object)
	if err != nil {
		return err
	}
	r := removal{}
	if o.Preconditions != nil {
		if o.Preconditions.UID != nil {
			r.uid = *o.Preconditions.UID
		}
		if o.Preconditions.ResourceVersion != nil {
			r.version = *o.Preconditions.ResourceVersion
		}
	}
	if c.process.careless {
		r.version = ""
	}
	at := client.ObjectKeyFromObject(object)
	c.process.sent(kind, at)
	return c.process.write(false, func() error {
		return c.process.asked(kind, at, c.process.server.remove(c.process.name, kind, at, r))
	})
}

// subresource writes to a subresource.
type subresource struct {
	client.SubResourceClient
	process *Process
	name    string
}

// Patch changes the subresource of an object.
func (s *subresource) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.process.patch(object, s.name, patch)
}

func (p *Process) patch(object client.Object, subresource string, patch client.Patch) error {
	kind, err := kindOf(object)
	if err != nil {
		return err
	}
	data, err := patch.Data(object)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	if p.careless {
		if data, err = withoutVersion(data); err != nil {
			return err
		}
	}
	return p.write(false, func() error {
		at := client.ObjectKeyFromObject(object)
		after, err := p.server.patch(p.name, kind, at, subresource, patch.Type(), data)
		if err != nil {
			return p.asked(kind, at, err)
		}
		if set, ok := after.(*apps.CloneSet); ok {
			p.answered = set
		}
		return fill(object, after)
	})
}

// write takes a write to the server and back, through whatever goes wrong.
func (p *Process) write(dryRun bool, do func() error) error {
	p.answered = nil
	if p.travel(); p.dead {
		return errDead
	}
	p.requests++
	lose := p.requests == p.loseAt
	if err := p.refused(lose && !p.loseBlind); err != nil {
		return err
	}
	if err := do(); err != nil {
		p.world.say(p.name, "a write is refused: %v", err)
		return err
	}
	if dryRun {
		return nil
	}
	return p.answer(lose)
}

// write carries a write to the server and back, through all faults.
func (p *Process) answer(lose bool) error {
	p.writes++
	if p.crashAt == p.writes || p.world.roll(p.faults.Crash) {
		p.crash()
		return errDead
	}
	if p.world.roll(p.faults.Blind) || lose {
		p.world.say(p.name, "that write times out, although it took effect")
		return pick(p.world, error(apierrors.NewTimeoutError("request timed out", 1)), context.DeadlineExceeded)
	}
	if p.travel(); p.dead {
		return errDead
	}
	if p.answered != nil {
		p.learnedSet, p.answered = p.answered, nil
	}
	return nil
}

// answer carries the answer to a successful write back to the process.
func (p *Process) refused(lose bool) error {
	switch {
	case p.world.roll(p.faults.Lost), lose:
		p.world.say(p.name, "a write times out and does nothing")
		return apierrors.NewServerTimeout(Pods.resource(), "write", 1)
	case p.world.roll(p.faults.Busy):
		p.world.say(p.name, "the server is too busy for a write")
		return pick(p.world, apierrors.NewTooManyRequests("try again", 1), apierrors.NewInternalError(errors.New("etcd leader changed")))
	case p.world.roll(p.faults.Conflict):
		p.world.say(p.name, "a write meets a conflict")
		return apierrors.NewConflict(Pods.resource(), "", errors.New("the object has been modified"))
	}
	return nil
}

// refused draws whether a request fails before it has any effect.
func (p *Process) travel() {
	if !p.dead {
		p.world.pass(p.latency())
	}
}

// travel waits while a request or its answer is in transit.
func (p *Process) latency() time.Duration { return p.world.between(p.speed/2, p.speed*3/2) }

// latency is how long a request or its answer is in transit.
type liveReader struct{ process *Process }

// Get reads from the server.
func (r *liveReader) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	p := r.process
	kind, err := kindOf(out)
	if err != nil {
		return err
	}
	if err := p.read(); err != nil {
		return err
	}
	object, err := p.server.get(kind, key)
	if err != nil {
		p.missed(kind, func(pod client.Object) bool { return client.ObjectKeyFromObject(pod) == key })
		return err
	}
	switch o := object.(type) {
	case *corev1.Pod:
		p.learned[o.UID] = o
	case *apps.CloneSet:
		p.learnedSet = o
		if p.pass.set == nil { // what the pass starts from; what is read later counts for the next one
			p.began(o)
		}
	}
	return fill(out, object)
}

// List reads from the server, which knows no index: only what it can select by.
func (r *liveReader) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	p := r.process
	kind, err := kindOf(list)
	if err != nil {
		return err
	}
	var o client.ListOptions
	o.ApplyOptions(options)
	if o.FieldSelector != nil && !o.FieldSelector.Empty() {
		return apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", o.FieldSelector))
	}
	if err := p.read(); err != nil {
		return err
	}
	objects := p.server.list(kind)
	p.missed(kind, func(client.Object) bool { return true })
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			p.learned[pod.UID] = pod
		}
	}
	return fillList(list, objects, options)
}

// asked notes that the server's answer shows an object does not exist.
func (p *Process) asked(kind Kind, at types.NamespacedName, err error) error {
	if apierrors.IsNotFound(err) {
		p.missed(kind, func(pod client.Object) bool { return client.ObjectKeyFromObject(pod) == at })
	}
	return err
}

// missed notes which Pods that the process knows of the server does not show.
func (p *Process) missed(kind Kind, asked func(client.Object) bool) {
	if kind != Pods {
		return
	}
	known := make([]client.Object, 0, len(p.learned))
	for _, pod := range p.learned {
		known = append(known, pod)
	}
	for _, pod := range p.caches[Pods].objects {
		known = append(known, pod)
	}
	for _, pod := range p.pass.base { // the cache may have seen it go since the pass looked
		known = append(known, pod)
	}
	for _, c := range p.server.log[Pods][p.pass.upTo:] {
		if c.Actor == p.name {
			known = append(known, c.object())
		}
	}
	for _, pod := range known {
		live, err := p.server.get(Pods, client.ObjectKeyFromObject(pod))
		if asked(pod) && (err != nil || live.GetUID() != pod.GetUID()) {
			p.absent[pod.GetUID()] = true
		}
	}
}

// read takes a read to the server and back.
func (p *Process) read() error {
	if p.dead {
		return errDead
	}
	p.world.pass(p.latency())
	switch {
	case p.dead:
		return errDead
	case p.world.roll(p.faults.Lost):
		return apierrors.NewServerTimeout(Pods.resource(), "get", 1)
	}
	return nil
}

// typed reads an object from its raw form.
func typed(object client.Object, strict bool) (client.Object, error) {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	var out client.Object
	switch Kind(raw.GetKind()) {
	case Pods:
		out = &corev1.Pod{}
	case Claims:
		out = &corev1.PersistentVolumeClaim{}
	default:
		return nil, fmt.Errorf("the simulated API server makes no raw %s", raw.GetKind())
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw.Object, out, strict); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

// key is short for the name of an object.
func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// SPDX-License-Identifier: Apache-2.0

package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Name is the name of the ConfigMap.
const Name = "usher-cluster"

const (
	// looks is how many API servers are asked at once, each on a connection of its own, until one is known.
	looks = 5
	// lookFor bounds one look.
	lookFor = 2 * time.Second
	// againAfter is how long an answer other than "it is the same cluster" counts.
	againAfter = 5 * time.Second
	// noteAfter is how long Usher looks away from a cluster that it knows, between two looks.
	noteAfter = time.Minute
)

// Copied says that the record names other API servers than those that answer.
type Copied struct {
	// Record is where the record is, a namespace and a name.
	Record types.NamespacedName
	// Known is what it says, Seen what answers.
	Known Record
	Seen  Sight
}

// Error says what was found, and what to do about it.
func (c *Copied) Error() string {
	return fmt.Sprintf("%s: ConfigMap %s knows cluster %s by the API servers %s and the authorities %s, and here answer %s with %s. "+
		"Usher leaves registries alone. In a copy, give it a --cluster-id of its own (clusterID of the chart). "+
		"If the cluster has moved, and no other one runs with its entries, delete that ConfigMap",
		registry.ErrCopied, c.Record, short(c.Known.Cluster), names(c.Known.Servers), names(c.Known.Authorities),
		orNone(c.Seen.Servers), orNone(c.Seen.Authorities))
}

// Unwrap returns the marks that errors.Is finds.
func (c *Copied) Unwrap() []error { return []error{registry.ErrCopied, registry.ErrPermanent} }

// Look asks one API server, on a new connection.
type Look func(ctx context.Context) (Sight, error)

// Keeper keeps the record. Its methods are safe for concurrent use.
type Keeper struct {
	reader  client.Reader
	writer  client.Writer
	record  types.NamespacedName
	cluster func(ctx context.Context) (string, error)
	look    Look
	clock   clock.PassiveClock

	// same means that this process knows its cluster. It stays: an API server that a running process meets later is one
	// of the same cluster, because the process lives on what it has read before.
	same atomic.Bool
	// copied means that the last answer was a *Copied. A scrape reads it while API servers are asked.
	copied atomic.Bool

	// mu guards the last answer other than that, and when it was found.
	mu  sync.Mutex
	err error
	at  time.Time
}

// NewKeeper returns a Keeper of the record in a namespace. reader must not be a cache; cluster names the cluster.
func NewKeeper(
	reader client.Reader, writer client.Writer, namespace string, cluster func(context.Context) (string, error), look Look,
	clock clock.PassiveClock,
) *Keeper {
	record := types.NamespacedName{Namespace: namespace, Name: Name}
	return &Keeper{reader: reader, writer: writer, record: record, cluster: cluster, look: look, clock: clock}
}

// Check returns nil if this is the cluster of the record, or the first one that writes it; a *Copied if it is not, and
// another error as long as nobody can tell.
func (k *Keeper) Check(ctx context.Context) error {
	if k.same.Load() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.same.Load() || k.err != nil && k.clock.Now().Sub(k.at) < againAfter {
		return k.err
	}
	k.err = k.find(ctx)
	k.at = k.clock.Now()
	k.same.Store(k.err == nil)
	k.copied.Store(errors.Is(k.err, registry.ErrCopied))
	return k.err
}

// Copied reports whether the last answer was that this cluster may be a copy.
func (k *Keeper) Copied() bool { return k.copied.Load() }

// Start keeps the record up to date until ctx ends. It is for the leader.
func (k *Keeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(noteAfter)
	defer ticker.Stop()
	for {
		if err := k.Check(ctx); err == nil {
			k.note(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// find compares the record with what answers, or makes it.
func (k *Keeper) find(ctx context.Context) error {
	cluster, err := k.cluster(ctx)
	if err != nil {
		return err
	}
	kept, known, err := k.read(ctx)
	if apierrors.IsForbidden(err) {
		log.FromContext(ctx).Error(err, "Usher may not read the ConfigMap by which it would notice a copy of this cluster",
			"configMap", k.record)
		return nil
	}
	if err != nil {
		return err
	}
	// Another name is a decision of the administrator's, or comes with another UID of kube-system.
	recorded := kept != nil && known.Cluster == cluster
	var seen Sight
	for range looks {
		one, err := k.looked(ctx)
		if err != nil {
			return err
		}
		seen.Servers, seen.Authorities = add(seen.Servers, one.Servers), add(seen.Authorities, one.Authorities)
		if !recorded || known.Knows(one) {
			return k.write(ctx, kept, Record{Cluster: cluster}.or(known, recorded), one)
		}
	}
	return &Copied{k.record, known, seen}
}

// or is the known record if it is one of the same cluster.
func (r Record) or(known Record, same bool) Record {
	if same {
		return known
	}
	return r
}

// note adds what answers now to the record of a cluster that is known.
func (k *Keeper) note(ctx context.Context) {
	seen, err := k.looked(ctx)
	if err == nil {
		var cluster string
		var kept *corev1.ConfigMap
		var known Record
		cluster, err = k.cluster(ctx)
		if err == nil {
			kept, known, err = k.read(ctx)
		}
		if err == nil {
			err = k.write(ctx, kept, Record{Cluster: cluster}.or(known, known.Cluster == cluster), seen)
		}
	}
	if err != nil && !apierrors.IsForbidden(err) && ctx.Err() == nil {
		log.FromContext(ctx).Info("Cannot note which API servers this cluster has", "configMap", k.record, "reason", err.Error())
	}
}

func (k *Keeper) looked(ctx context.Context) (Sight, error) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	seen, err := k.look(ctx)
	if err != nil {
		return Sight{}, fmt.Errorf("ask the API server who it is: %w", err)
	}
	return seen, nil
}

// read reads the record; nil if there is none.
func (k *Keeper) read(ctx context.Context) (*corev1.ConfigMap, Record, error) {
	var kept corev1.ConfigMap
	switch err := k.reader.Get(ctx, k.record, &kept); {
	case apierrors.IsNotFound(err):
		return nil, Record{}, nil
	case err != nil:
		return nil, Record{}, fmt.Errorf("read ConfigMap %s, which tells this cluster from a copy: %w", k.record, err)
	}
	known, err := Read(kept.Data)
	if err != nil {
		return nil, Record{}, fmt.Errorf("ConfigMap %s, which tells this cluster from a copy, cannot be read: %w: "+
			"delete it if no copy of this cluster runs", k.record, err)
	}
	return &kept, known, nil
}

// write writes the record with what was seen, if that is worth it.
func (k *Keeper) write(ctx context.Context, kept *corev1.ConfigMap, known Record, seen Sight) error {
	next, changed := known.With(seen, k.clock.Now())
	if kept == nil {
		name := metav1.ObjectMeta{Namespace: k.record.Namespace, Name: k.record.Name}
		made := &corev1.ConfigMap{ObjectMeta: name, Data: next.Data()}
		return k.wrote(ctx, k.writer.Create(ctx, made))
	}
	if !changed {
		return nil
	}
	kept.Data = next.Data()
	return k.wrote(ctx, k.writer.Update(ctx, kept))
}

// wrote is the error of a write. One that is not allowed has nobody wait: whoever takes that right away has decided.
func (k *Keeper) wrote(ctx context.Context, err error) error {
	if apierrors.IsForbidden(err) {
		log.FromContext(ctx).Error(err, "Usher may not write the ConfigMap by which it would notice a copy of this cluster",
			"configMap", k.record)
		return nil
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s, which tells this cluster from a copy: %w", k.record, err)
	}
	return nil
}

func add(all, more []string) []string {
	for _, one := range more {
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}

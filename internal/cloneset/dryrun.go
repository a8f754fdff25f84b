// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

// refusal is what the API server said about a template, so that it is asked about each
// only once.
type refusal struct {
	// set and revision tell which template it was; a later set may have the same name.
	set               types.UID
	revision, message string
	// until is when to ask the API server again; zero means never.
	until time.Time
}

// holds reports whether it still answers for a template.
func (f refusal) holds(set *apps.CloneSet, revision string, now time.Time) bool {
	return f.set == set.UID && f.revision == revision && (f.until.IsZero() || now.Before(f.until))
}

// refusedFor is how long a refusal stands before the API server is asked again: a policy
// may have changed.
const refusedFor = 30 * time.Second

// unknownFor is how long to wait before retrying an API server that gave no answer.
const unknownFor = 5 * time.Second

// checkTemplates records in the snapshot which templates the API server refuses.
func (r *Reconciler) checkTemplates(ctx context.Context, set *apps.CloneSet, snapshot *plan.Snapshot) {
	pods, claims := r.tryTemplate(ctx, set, snapshot.Update, snapshot.PodInfos), r.tryClaims(ctx, set)
	snapshot.UpdateRefused, snapshot.RefusedUntil = pods.message, pods.until
	snapshot.ClaimsRefused, snapshot.ClaimsRefusedUntil = claims.message, claims.until
}

// tryTemplate asks the API server, in a dry run, whether it would create a Pod of the
// update revision: a rollout to a template that cannot run must not cost the first Pod.
// This also refuses fields that the API server does not know.
func (r *Reconciler) tryTemplate(ctx context.Context, set *apps.CloneSet, update *revision.Revision, pods []*plan.PodInfo) refusal {
	now := r.Clock.Now()
	last := &r.memory(keyOf(set)).refusal
	if last.holds(set, update.Name, now) {
		return *last
	}
	*last = refusal{set: set.UID, revision: update.Name}
	if slices.ContainsFunc(pods, func(pod *plan.PodInfo) bool { return revision.Same(pod.Revision(), update.Name) }) {
		return *last // such Pods exist, so it accepts them
	}
	err := r.Strict.Create(ctx, write.PodManifest(set, update, r.NewID(), now), client.DryRunAll)
	last.message, last.until = refusalOf(err, "Pods of spec.template", now)
	return *last
}

// refusalOf derives from the answer whether a template is refused, and until when.
func refusalOf(err error, what string, now time.Time) (string, time.Time) {
	switch {
	case err == nil || apierrors.IsAlreadyExists(err) || quotaExceeded(err):
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err):
		return fmt.Sprintf("the API server refuses %s: %v", what, err), now.Add(refusedFor)
	default:
		// A webhook is down, or the request timed out. Everything else in the set
		// continues.
		return fmt.Sprintf("cannot find out whether the API server accepts %s: %v", what, err), now.Add(unknownFor)
	}
	return "", time.Time{}
}

// quotaExceeded reports whether a Pod was refused because of quota, not because of its
// content: quota is the last thing that the API server checks.
func quotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// claimRevision identifies a set of claim templates, so that each is tried once.
func claimRevision(set *apps.CloneSet) string {
	var all strings.Builder
	for i := range set.Spec.VolumeClaimTemplates {
		all.Write(set.Spec.VolumeClaimTemplates[i].Raw())
		all.WriteByte('\n')
	}
	return all.String()
}

// tryClaims asks the API server, in a dry run, whether it would create the claims of the
// templates: a refused claim must not cost a Pod that could then not be replaced.
func (r *Reconciler) tryClaims(ctx context.Context, set *apps.CloneSet) refusal {
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return refusal{}
	}
	now := r.Clock.Now()
	present := claimRevision(set)
	last := &r.memory(keyOf(set)).claimRefusal
	if last.holds(set, present, now) {
		return *last
	}
	*last = refusal{set: set.UID, revision: present}
	for i := range set.Spec.VolumeClaimTemplates {
		template := &set.Spec.VolumeClaimTemplates[i]
		manifest, err := write.ClaimManifest(set, template, r.NewID())
		if err == nil {
			err = r.Strict.Create(ctx, manifest, client.DryRunAll)
		}
		what := "the claim of spec.volumeClaimTemplates " + template.Metadata.Name
		if last.message, last.until = refusalOf(err, what, now); last.message != "" {
			break
		}
	}
	return *last
}

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

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/encode"
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

// refusedFor is how long a refusal stands before the API server is asked again: a policy
// may have changed.
const refusedFor = 30 * time.Second

// unknownFor is how long to wait before retrying an API server that gave no answer.
const unknownFor = 5 * time.Second

// ask returns why the API server refuses a template, and until when that stands. It tries the
// template unless the last answer was about it. The try names what was refused.
func (f *refusal) ask(set types.UID, revision string, now time.Time, try func() (what string, err error)) (string, time.Time) {
	if f.set == set && f.revision == revision && (f.until.IsZero() || now.Before(f.until)) {
		return f.message, f.until
	}
	*f = refusal{set: set, revision: revision}
	switch what, err := try(); {
	case accepted(err):
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err):
		f.message, f.until = fmt.Sprintf("the API server refuses %s: %v", what, err), now.Add(refusedFor)
	default:
		// A webhook is down, or the request timed out. Everything else in the set
		// continues.
		f.message, f.until = fmt.Sprintf("cannot find out whether the API server accepts %s: %v", what, err), now.Add(unknownFor)
	}
	return f.message, f.until
}

// accepted reports whether a dry run says that the content of an object is right. Quota is
// the last thing that the API server checks.
func accepted(err error) bool {
	return err == nil || apierrors.IsAlreadyExists(err) ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// checkTemplates records in the snapshot which templates the API server refuses. It asks in a
// dry run: a rollout to a template that cannot run must not cost the first Pod, and a refused
// claim no Pod that could then not be replaced. This also refuses fields that the API server
// does not know.
func (r *Reconciler) checkTemplates(ctx context.Context, set *apps.CloneSet, s *plan.Snapshot) {
	m, now := r.memory(keyOf(set)), r.Clock.Now()
	s.UpdateRefused, s.RefusedUntil = m.refusal.ask(set.UID, s.Update.Name, now, func() (string, error) {
		if slices.ContainsFunc(s.PodInfos, func(pod *plan.PodInfo) bool { return revision.Same(pod.Revision(), s.Update.Name) }) {
			return "", nil // such Pods exist, so it accepts them
		}
		return "Pods of spec.template", r.dryRun(ctx, write.PodManifest(set, s.Update, r.NewID(), now))
	})
	claims := set.Spec.VolumeClaimTemplates
	s.ClaimsRefused, s.ClaimsRefusedUntil = m.claimRefusal.ask(set.UID, string(encode.JSON(claims)), now, func() (string, error) {
		for i := range claims {
			manifest, err := write.ClaimManifest(set, &claims[i], r.NewID())
			if err == nil {
				err = r.dryRun(ctx, manifest)
			}
			if !accepted(err) {
				return "the claim of spec.volumeClaimTemplates " + claims[i].Metadata.Name, err
			}
		}
		return "", nil
	})
}

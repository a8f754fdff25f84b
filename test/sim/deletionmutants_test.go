// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// deletionMutants part with the Pods of a deleted set in the wrong way.
func deletionMutants() []mutant {
	return []mutant{
		{name: "never lets a deleted set go", caught: []string{ruleConverges},
			before: func(_ *Process, s *plan.Snapshot) {
				if s.Deletion == plan.Drain {
					s.Deletion = plan.LetGo
				}
			}},
		{name: "lets a deleted set go before its Pods", caught: []string{ruleCollected},
			before: func(p *Process, s *plan.Snapshot) {
				if s.Deletion == plan.Drain {
					removeFinalizers(p)
				}
			}},
		{name: "drains orphans", caught: []string{ruleDeletedSet},
			before: func(_ *Process, s *plan.Snapshot) {
				if s.Deletion == plan.LetGo {
					s.Deletion = plan.Drain
				}
			}},
		{name: "creates Pods before the finalizer holds the set", caught: []string{ruleHeldSet},
			before: func(p *Process, s *plan.Snapshot) {
				if s.Deletion == plan.NotDeleted {
					removeFinalizers(p)
				}
			}},
	}
}

// removeFinalizers takes all finalizers off the set.
func removeFinalizers(p *Process) {
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.pass.set.Namespace, Name: p.pass.set.Name}}
	_ = p.reconciler.Client.Patch(context.Background(), set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))) // a fault does not matter
}

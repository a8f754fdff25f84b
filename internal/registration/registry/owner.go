// SPDX-License-Identifier: Apache-2.0

package registry

import "fmt"

// MetaPrefix begins the keys of metadata that are Usher's own, in registries that
// keep the owner of an entry beside its metadata.
const MetaPrefix = "usher-"

const (
	metaCluster      = MetaPrefix + "cluster"
	metaNamespace    = MetaPrefix + "namespace"
	metaRegistration = MetaPrefix + "registration"
	metaPod          = MetaPrefix + "pod"
	metaUID          = MetaPrefix + "uid"
)

// Owner says who wrote an entry. The zero Owner is anybody but Usher.
type Owner struct {
	// Cluster is the UID of the kube-system namespace.
	Cluster string `json:"cluster"`
	// Namespace of the Pod and of the Registration.
	Namespace string `json:"namespace"`
	// Registration is its name.
	Registration string `json:"registration"`
	// Pod is its name.
	Pod string `json:"pod"`
	// PodUID tells Pods of the same name apart.
	PodUID string `json:"uid"`
}

// String names the owner for people.
func (o Owner) String() string {
	if o == (Owner{}) {
		return "somebody who is not Usher"
	}
	return fmt.Sprintf("Pod %s/%s of cluster %s", o.Namespace, o.Pod, o.Cluster)
}

// Mark writes the owner into metadata.
func (o Owner) Mark(meta map[string]string) {
	meta[metaCluster], meta[metaNamespace], meta[metaRegistration] = o.Cluster, o.Namespace, o.Registration
	meta[metaPod], meta[metaUID] = o.Pod, o.PodUID
}

// MarkedOwner is the owner that Mark wrote.
func MarkedOwner(meta map[string]string) Owner {
	return Owner{
		Cluster: meta[metaCluster], Namespace: meta[metaNamespace], Registration: meta[metaRegistration],
		Pod: meta[metaPod], PodUID: meta[metaUID],
	}
}

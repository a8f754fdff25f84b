// SPDX-License-Identifier: Apache-2.0

package registry

import "fmt"

// MetaPrefix is the prefix of Usher's own metadata keys, in registries that store an
// entry's owner in its metadata.
const MetaPrefix = "usher-"

// MetaTags is the key of an entry's tags, separated by commas.
const MetaTags = "tags"

const (
	metaCluster      = MetaPrefix + "cluster"
	metaNamespace    = MetaPrefix + "namespace"
	metaRegistration = MetaPrefix + "registration"
	metaPod          = MetaPrefix + "pod"
	metaUID          = MetaPrefix + "uid"
)

// Owner identifies who wrote an entry. The zero Owner means that Usher did not write
// it.
type Owner struct {
	// Cluster is the UID of the kube-system namespace.
	Cluster string `json:"cluster"`
	// Namespace is the namespace of the Pod and of the Registration.
	Namespace string `json:"namespace"`
	// Registration is the name of the Registration.
	Registration string `json:"registration"`
	// Pod is the name of the Pod.
	Pod string `json:"pod"`
	// PodUID distinguishes Pods of the same name.
	PodUID string `json:"uid"`
}

// String names the owner for messages.
func (o Owner) String() string {
	if o == (Owner{}) {
		return "another writer than Usher"
	}
	return fmt.Sprintf("Pod %s/%s of cluster %s", o.Namespace, o.Pod, o.Cluster)
}

// Mark writes the owner into metadata.
func (o Owner) Mark(meta map[string]string) {
	meta[metaCluster], meta[metaNamespace], meta[metaRegistration] = o.Cluster, o.Namespace, o.Registration
	meta[metaPod], meta[metaUID] = o.Pod, o.PodUID
}

// MarkedOwner returns the owner that Mark wrote.
func MarkedOwner(meta map[string]string) Owner {
	return Owner{
		Cluster: meta[metaCluster], Namespace: meta[metaNamespace], Registration: meta[metaRegistration],
		Pod: meta[metaPod], PodUID: meta[metaUID],
	}
}

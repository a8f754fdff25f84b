// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Until says how a Pod shows that it has nothing under way. Usher asks only after all registries have let the Pod go
// and the propagation has passed, at the Pod's own address, at most once a second and address, and follows no redirect.
// All of http, metrics and connections have to agree. A Pod that does not answer counts as busy.
//
// +kubebuilder:validation:XValidation:rule="has(self.http) || has(self.metrics) || has(self.connections)",message="set until.http, until.metrics or until.connections: one of them has to say when the Pod has nothing under way"
type Until struct {
	// Timeout is how long a Pod that has left its registries may stay busy. Then the drain's onDeadline decides: Proceed
	// lets the Pod go with a warning, and what is under way is lost; Block keeps waiting. Default: 10m.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10000h')",message="a duration is a number with a unit, as in 30s, 5m or 1h30m, and at most 10000h"
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="the timeout has to be longer than 0s"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// For is how long the Pod has to be idle without a break: a request may follow another one on the same connection.
	// Default: 5s. Maximum: 10m.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') && duration(self) <= duration('10m')",message="a duration is a number with a unit, as in 5s or 1m, and here at most 10m"
	// +optional
	For *metav1.Duration `json:"for,omitempty"`
	// HTTP asks the application itself.
	// +optional
	HTTP *UntilHTTP `json:"http,omitempty"`
	// Metrics are read in Prometheus' text format. Default: none.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Metrics []UntilMetric `json:"metrics,omitempty"`
	// Connections is 0: wait until the registry counts no connection to the Pod any more. Registries that count
	// give a Pod that leaves no new connections, so that timeout limits this wait, and for does not apply to
	// it. Only HAProxy counts: without such a Registry in spec.registries the Registration is not Ready, and
	// Pods count as busy. Default: the drain's deadline limits how long HAProxy waits.
	// +kubebuilder:validation:Enum=0
	// +optional
	Connections *int32 `json:"connections,omitempty"`
}

// UntilHTTP is a GET request that an application answers with 200 if it has nothing under way, and with 503 if it is
// busy. Any other answer counts as busy.
type UntilHTTP struct {
	// Port is a port number, or the name of a container port. A Pod in its node's network needs a name.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 && self < 65536 : self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$') && !self.matches('^[0-9]+$')",message="port is a number from 1 to 65535, without quotes, or the name of a container port"
	Port intstr.IntOrString `json:"port"`
	// Path is what is asked for, with a query if it needs one. Default: /.
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[!-"$-~]*$`
	// +optional
	Path string `json:"path,omitempty"`
	// JSONField is where the answer says how many requests are under way, as in stats.active: names of fields, separated
	// by dots. The Pod is idle if the number there is 0. Default: the status code decides.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$`
	// +optional
	JSONField string `json:"jsonField,omitempty"`
}

// UntilMetric is the sum of a metric's series. The Pod is idle if the sum is at most a number. A metric that is missing,
// negative or not a number counts as busy.
type UntilMetric struct {
	// Port is a port number, or the name of a container port. A Pod in its node's network needs a name.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 && self < 65536 : self.matches('[a-z]')",message="port is a number from 1 to 65535, without quotes, or the name of a container port"
	Port intstr.IntOrString `json:"port"` // Kubernetes 1.33 takes longer rules for too costly in a list
	// Path is where the Pod shows its metrics. Default: /metrics.
	// +kubebuilder:default="/metrics"
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[!-"$-~]*$`
	// +optional
	Path string `json:"path,omitempty"`
	// Name is that of the metric as the Pod writes it, such as vllm:num_requests_running.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_:][a-zA-Z0-9_:]*$`
	Name string `json:"name"`
	// Minus is a metric whose sum is subtracted: where a server counts those that it has begun and those that it has
	// ended, the difference is under way. Default: none.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_:][a-zA-Z0-9_:]*$`
	// +optional
	Minus string `json:"minus,omitempty"`
	// Labels choose the series: those that have all of these labels with these values. Default: all series.
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(bytes(key)) <= 64 && key.matches('^[a-zA-Z_][a-zA-Z0-9_]*$'))",message="a label's name begins with a letter or _, and has letters, digits and _, at most 64"
	// +optional
	Labels map[string]UntilLabelValue `json:"labels,omitempty"`
	// Is is the largest sum with which the Pod is idle: more than 0 if the request for the metrics counts itself.
	// Default: 0.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	Is int32 `json:"is,omitempty"`
}

// UntilLabelValue is the value of a metric's label.
//
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 128",message="a label's value has at most 128 bytes"
type UntilLabelValue string

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// ApplicationPreset names the requests by which a kind of application leaves its registries and comes back.
//
// +kubebuilder:validation:Enum=SpringBootActuator;DubboQos
type ApplicationPreset string

const (
	// PresetSpringBootActuator posts OUT_OF_SERVICE, and UP, to /actuator/serviceregistry of Spring Cloud.
	PresetSpringBootActuator ApplicationPreset = "SpringBootActuator"
	// PresetDubboQos gets /offline, and /online, from Dubbo's QoS server.
	PresetDubboQos ApplicationPreset = "DubboQos"
)

// AskedApplication is how a Pod's application is asked to leave its registries, and to come back, by HTTP requests to the
// Pod's own address. An answer of 2xx means that the application has understood. Usher believes only what the registries
// list then, and repeats the request while they list something else.
//
// +kubebuilder:validation:XValidation:rule="has(self.preset) != (has(self.leave) && has(self.return)) && has(self.leave) == has(self.return)",message="set either preset, or leave and return: an application that is asked to leave needs a way back"
// +kubebuilder:validation:XValidation:rule="has(self.port) || has(self.preset) && self.preset == 'DubboQos'",message="set port to that of the application's management server, often that of instance.port",fieldPath=".port"
type AskedApplication struct {
	// Preset has requests for a kind of application: SpringBootActuator for Spring Cloud's actuator endpoint
	// serviceregistry, which has to be exposed; DubboQos for Dubbo's QoS server, which has to accept foreign addresses.
	// Default: leave and return say what is requested.
	// +optional
	Preset ApplicationPreset `json:"preset,omitempty"`
	// Port is a port number, or the name of a container port. Default: 22222 for DubboQos.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 && self < 65536 : self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$') && !self.matches('^[0-9]+$')",message="port is a number from 1 to 65535, without quotes, or the name of a container port"
	// +optional
	Port intstr.IntOrString `json:"port,omitzero"`
	// Leave is the request after which the application takes itself out of its registries, and goes on serving.
	// +optional
	Leave *ApplicationRequest `json:"leave,omitempty"`
	// Return is the request after which it is in its registries again.
	// +optional
	Return *ApplicationRequest `json:"return,omitempty"`
}

// ApplicationRequest is an HTTP request to an application. Redirects are not followed.
type ApplicationRequest struct {
	// Method is POST, PUT, DELETE or GET. Default: POST.
	// +kubebuilder:validation:Enum=POST;PUT;DELETE;GET
	// +kubebuilder:default=POST
	// +optional
	Method string `json:"method,omitempty"`
	// Path is the path with its query, for example /registry/offline.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[!-"$-~]*$`
	Path string `json:"path"`
	// Body is sent as JSON, at most 1,024 bytes. Default: no body.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 1024",message="a body has at most 1024 bytes"
	// +optional
	Body string `json:"body,omitempty"`
}

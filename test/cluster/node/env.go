// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const defaultPort = 8080

// containerEnv is the environment of a container: base (the image's), what the agent
// sets for every container, and what the Pod's spec asks for. A later variable replaces
// an earlier one of the same name.
func containerEnv(cfg *ContainerConfig, base []string) []string {
	env := newEnvironment(base)
	env.set("POD_IP", cfg.IP)
	env.set("POD_NAME", cfg.Pod.Name)
	env.set("POD_NAMESPACE", cfg.Pod.Namespace)
	env.set("NODE_NAME", cfg.Pod.Spec.NodeName)
	env.set("CONTAINER_NAME", cfg.Container.Name)
	env.set("PORT", strconv.Itoa(int(firstPort(cfg.Container))))
	for i := range cfg.Container.Env {
		variable := &cfg.Container.Env[i]
		if variable.ValueFrom == nil {
			env.set(variable.Name, expand(variable.Value, env.lookup))
		} else if value, ok := fieldValue(cfg, variable.ValueFrom.FieldRef); ok {
			env.set(variable.Name, value)
		}
	}
	return env.list()
}

// environment keeps variables in the order in which they were first set.
type environment struct {
	names  []string
	values map[string]string
}

func newEnvironment(list []string) *environment {
	env := &environment{values: map[string]string{}}
	for _, entry := range list {
		if name, value, ok := strings.Cut(entry, "="); ok {
			env.set(name, value)
		}
	}
	return env
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) lookup(name string) (string, bool) {
	value, ok := e.values[name]
	return value, ok
}

func (e *environment) list() []string {
	list := make([]string, 0, len(e.names))
	for _, name := range e.names {
		list = append(list, name+"="+e.values[name])
	}
	return list
}

func firstPort(spec *corev1.Container) int32 {
	if len(spec.Ports) > 0 {
		return spec.Ports[0].ContainerPort
	}
	return defaultPort
}

// fieldValue is the value of a downward API reference; false means that the agent does
// not support it.
func fieldValue(cfg *ContainerConfig, ref *corev1.ObjectFieldSelector) (string, bool) {
	if ref == nil {
		return "", false
	}
	if path, key, ok := strings.Cut(strings.TrimSuffix(ref.FieldPath, "']"), "['"); ok {
		switch path {
		case "metadata.labels":
			return cfg.Pod.Labels[key], true
		case "metadata.annotations":
			return cfg.Pod.Annotations[key], true
		}
		return "", false
	}
	value, ok := map[string]string{
		"metadata.name":           cfg.Pod.Name,
		"metadata.namespace":      cfg.Pod.Namespace,
		"metadata.uid":            string(cfg.Pod.UID),
		"spec.nodeName":           cfg.Pod.Spec.NodeName,
		"spec.serviceAccountName": cfg.Pod.Spec.ServiceAccountName,
		"status.podIP":            cfg.IP,
		"status.podIPs":           cfg.IP,
		"status.hostIP":           cfg.HostIP,
		"status.hostIPs":          cfg.HostIP,
	}[ref.FieldPath]
	return value, ok
}

// expand replaces $(NAME) with the variable's value as Kubernetes does: $$(NAME) is a
// literal $(NAME), and a reference to an unknown variable stays.
func expand(text string, lookup func(string) (string, bool)) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			out.WriteString(text)
			return out.String()
		}
		out.WriteString(text[:i])
		rest := text[i+1:]
		end := strings.IndexByte(rest, ')')
		switch {
		case rest[0] == '$':
			out.WriteByte('$')
			text = rest[1:]
		case rest[0] == '(' && end > 0:
			if value, ok := lookup(rest[1:end]); ok {
				out.WriteString(value)
			} else {
				out.WriteString("$" + rest[:end+1])
			}
			text = rest[end+1:]
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

func expandAll(texts []string, lookup func(string) (string, bool)) []string {
	expanded := make([]string, len(texts))
	for i, text := range texts {
		expanded[i] = expand(text, lookup)
	}
	return expanded
}

{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The name that all objects begin with. */}}
{{- define "usher.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $own := .Values.nameOverride | default "usher" -}}
{{- if contains $own .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $own | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that do not change from one version to the next, nor with any value: selectors cannot change. */}}
{{- define "usher.selector" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/*
Labels of a part's Pods: (list $ $part). Services and the NetworkPolicy of those that listen find no Pod of
the part certificate, which has a name of its own.
*/}}
{{- define "usher.podSelector" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
app.kubernetes.io/name: {{ eq $part.component "certificate" | ternary "usher-certificate" "usher" }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ $part.component }}
{{- end -}}

{{- define "usher.labels" -}}
{{ include "usher.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- include "usher.commonLabels" . }}
{{- end -}}

{{/* The labels of commonLabels, each in a line of its own. The chart's own keys are refused: selectors have some. */}}
{{- define "usher.commonLabels" -}}
{{- range $value := list "commonLabels" "podLabels" -}}
{{- range $key, $_ := get $.Values $value -}}
{{- if regexMatch "^(app[.]kubernetes[.]io/(name|instance|component|version|managed-by)|helm[.]sh/chart)$" $key }}{{ fail (printf "%s: %s is a label of the chart's own; choose another key" $value $key) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* What a part's container may take: (list $ $part). */}}
{{- define "usher.resources" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- if eq $part.component "certificate" -}}
{{- toYaml $root.Values.guard.certificateResources -}}
{{- else -}}
{{- get $root.Values.partResources $part.component | default $root.Values.resources | toYaml -}}
{{- end -}}
{{- end -}}

{{/*
"true" with tenancy: multi, else empty. A value that would take away what tenancy: multi promises is refused:
otherwise the values would say that tenants are kept apart when they are not.
*/}}
{{- define "usher.multi" -}}
{{- if eq (toString .Values.tenancy) "multi" -}}
{{- $or := "leave it out, or set tenancy to single and choose each value yourself" -}}
{{- if eq (toString .Values.separate) "false" }}{{ fail (printf "separate: with tenancy multi each part has an account of its own; %s" $or) }}{{ end -}}
{{- if not .Values.serviceAccount.create }}{{ fail (printf "serviceAccount.create: with tenancy multi each part has an account of its own, which the chart makes; %s" $or) }}{{ end -}}
{{- if not .Values.rbac.limitPodWrites }}{{ fail (printf "rbac.limitPodWrites: with tenancy multi a policy limits what the hook operator and the guard write to Pods; %s" $or) }}{{ end -}}
{{- if has "*" (.Values.hooks.keys | default list) }}{{ fail "hooks.keys: with tenancy multi \"*\" would let every tenant have Usher write any label; list the keys, or domains such as example.com/" }}{{ end -}}
{{- if has .Release.Namespace .Values.rbac.secretNamespaces }}{{ fail "rbac.secretNamespaces: with tenancy multi the Secrets of Registries are in a namespace of their own, apart from Usher's; leave the release's namespace out" }}{{ end -}}
true
{{- end -}}
{{- end -}}

{{/* "true" if each part has a Deployment and an account of its own, else empty. */}}
{{- define "usher.separate" -}}
{{- if or .Values.separate (include "usher.multi" .) }}true{{ end -}}
{{- end -}}

{{/* The keys that hooks may have, as a list. */}}
{{- define "usher.hookKeys" -}}
{{- $unset := include "usher.multi" . | empty | ternary (list "*") (list) -}}
{{- kindIs "invalid" .Values.hooks.keys | ternary $unset .Values.hooks.keys | toYaml -}}
{{- end -}}

{{/* The namespace that the chart makes for the Secrets of Registries, or empty. */}}
{{- define "usher.registriesNamespace" -}}
{{- if and .Values.halves.registration (include "usher.multi" .) (not .Values.rbac.secretNamespaces) }}{{ include "usher.name" . }}-registries{{ end -}}
{{- end -}}

{{/* The namespaces where the hook operator reads the Secrets of Registries, as a list. */}}
{{- define "usher.secretNamespaces" -}}
{{- $own := include "usher.registriesNamespace" . -}}
{{- if $own }}{{ list $own | toYaml }}
{{- else if include "usher.multi" . }}{{ .Values.rbac.secretNamespaces | toYaml }}
{{- else }}{{ prepend .Values.rbac.secretNamespaces .Release.Namespace | uniq | toYaml }}
{{- end -}}
{{- end -}}

{{/* What runs, as a list: cloneset, registration, guard. */}}
{{- define "usher.halves" -}}
{{- $halves := list -}}
{{- if .Values.halves.cloneset }}{{ $halves = append $halves "cloneset" }}{{ end -}}
{{- if .Values.halves.registration }}{{ $halves = append $halves "registration" }}{{ end -}}
{{- if include "usher.guard" . }}{{ $halves = append $halves "guard" }}{{ end -}}
{{- if not $halves }}{{ fail "halves: turn on cloneset, registration, or both; without either there is nothing to install" }}{{ end -}}
{{- toYaml $halves -}}
{{- end -}}

{{/*
The processes: one for all halves, or one for each. What makes the guard's certificate is always apart: it
may say whom API servers call, so it listens to nothing. It has no lease: two at a time do no harm.
*/}}
{{- define "usher.parts" -}}
{{- $name := include "usher.name" . -}}
{{- $halves := include "usher.halves" . | fromYamlArray -}}
{{- $parts := list -}}
{{- if include "usher.separate" . -}}
{{- range $halves }}{{ $parts = append $parts (dict "name" (printf "%s-%s" $name .) "component" . "lease" (printf "usher-%s.usher.dev" .) "halves" (list .)) }}{{ end -}}
{{- else -}}
{{- $parts = append $parts (dict "name" $name "component" "controller" "lease" "usher.usher.dev" "halves" $halves) -}}
{{- end -}}
{{- if include "usher.certificate" . }}{{ $parts = append $parts (dict "name" (printf "%s-certificate" $name) "component" "certificate" "halves" (list "certificate")) }}{{ end -}}
{{- toYaml $parts -}}
{{- end -}}

{{/* "true" if the guard runs, else empty: the hook operator does what it asks for. */}}
{{- define "usher.guard" -}}
{{- if and .Values.guard.enabled .Values.halves.registration }}true{{ end -}}
{{- end -}}

{{/* "true" if Usher makes the guard's certificate, else empty: the guard does not run, or cert-manager makes it. */}}
{{- define "usher.certificate" -}}
{{- if and (include "usher.guard" .) (not .Values.guard.certManagerIssuer) }}true{{ end -}}
{{- end -}}

{{/*
The path at which API servers call the guard, if the chart makes it: guard.path or, with cert-manager, the
path that the webhook configuration has, or a new one. Where there is no cluster to look into, each
rendering would have another one.
*/}}
{{- define "usher.guardPath" -}}
{{- $name := printf "%s-guard" (include "usher.name" .) -}}
{{- if .Values.guard.path -}}
/guard/{{ .Values.guard.path }}
{{- else if .Values.guard.certManagerIssuer -}}
{{- if not (lookup "v1" "Namespace" "" "kube-system") }}{{ fail "guard.path: with guard.certManagerIssuer and without a cluster to look into, as in helm template and Argo CD, set it to what openssl rand -hex 32 prints, once: otherwise each rendering would have another path" }}{{ end -}}
{{- $path := "" -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" $name).webhooks -}}
{{- $path = dig "clientConfig" "service" "path" "" . -}}
{{- end -}}
{{- if regexMatch "^/guard/[0-9a-f]{64}$" $path }}{{ $path }}{{ else }}/guard/{{ randBytes 32 | b64dec | printf "%x" }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The volume with the CAs of API servers' certificates, if the guard asks for those, else empty. */}}
{{- define "usher.guardClientCA" -}}
{{- with .Values.guard.clientCA -}}
{{- if and .configMap .secret }}{{ fail "guard.clientCA: set either configMap or secret" }}{{ end -}}
{{- if and .names (not (or .configMap .secret)) }}{{ fail "guard.clientCA.names: names are those in certificates; set guard.clientCA.configMap or secret too" }}{{ end -}}
{{- if .configMap }}{name: guard-client-ca, configMap: {name: {{ .configMap | quote }}}}{{ else if .secret }}{name: guard-client-ca, secret: {secretName: {{ .secret | quote }}, items: [{key: ca.crt, path: ca.crt}]}}{{ end -}}
{{- end -}}
{{- end -}}

{{/* "true" if xDS is served, else empty. */}}
{{- define "usher.xds" -}}
{{- if .Values.xds.enabled -}}
{{- if not .Values.halves.registration }}{{ fail "xds.enabled: xDS is served by the hook operator; turn on halves.registration too" }}{{ end -}}
{{- if and .Values.xds.clientCA (not .Values.xds.tlsSecret) }}{{ fail "xds.clientCA: clients show certificates over TLS only; set xds.tlsSecret too" }}{{ end -}}
{{- if not (or .Values.xds.tlsSecret .Values.xds.insecure) }}{{ fail "xds.enabled: set xds.tlsSecret to a Secret with a certificate, or xds.insecure to true for plain text that everybody may read" }}{{ end -}}
{{- if and .Values.xds.authorize (not .Values.xds.clientCA) }}{{ fail "xds.authorize: users are those that clients' certificates name; set xds.clientCA too" }}{{ end -}}
true
{{- end -}}
{{- end -}}

{{/* Egress rules to peers of networkPolicy.to, to DNS, and those of networkPolicy.egress: (list $ peers). */}}
{{- define "usher.egress" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.networkPolicy.to.apiServer -}}
# Names are asked for before anything else.
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}
{{- range index . 1 }}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  to:
    {{- if .cidr }}
    - ipBlock: {cidr: {{ .cidr }}}
    {{- else }}
    - {{ omit . "ports" | toYaml | nindent 6 | trim }}
    {{- end }}
{{- end }}
{{- with $root.Values.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* "true" if metrics are for those who may read them, else empty. */}}
{{- define "usher.secureMetrics" -}}
{{- if and .Values.metrics.enabled (not .Values.metrics.insecure) }}true{{ end -}}
{{- end -}}

{{/* "true" if Usher deletes Pods that have drained, else empty. */}}
{{- define "usher.finish" -}}
{{- if and (include "usher.guard" .) .Values.guard.finish }}true{{ end -}}
{{- end -}}

{{/* The cluster roles of a part, as a list: (list $ $part). */}}
{{- define "usher.roles" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- $roles := $part.halves -}}
{{- $xds := and (include "usher.xds" $root) (has "registration" $part.halves) -}}
{{- if or $xds (and $root.Values.rbac.endpointSlices (has "registration" $part.halves)) }}{{ $roles = append $roles "endpointslices" }}{{ end -}}
{{- if and $root.Values.rbac.targetGroupBindings (has "registration" $part.halves) }}{{ $roles = append $roles "targetgroupbindings" }}{{ end -}}
{{- if and $root.Values.rbac.networkEndpointGroups (has "registration" $part.halves) }}{{ $roles = append $roles "networkendpointgroups" }}{{ end -}}
{{- if and (include "usher.hookKeys" $root | fromYamlArray) (has "registration" $part.halves) }}{{ $roles = append $roles "hook-keys" }}{{ end -}}
{{- if and (include "usher.finish" $root) (has "registration" $part.halves) }}{{ $roles = append $roles "finish" }}{{ end -}}
{{- if and $root.Values.evictions.enabled (has "registration" $part.halves) }}{{ $roles = append $roles "evictions" }}{{ end -}}
{{- if and (ne $part.component "certificate") (or (include "usher.secureMetrics" $root) (and $xds $root.Values.xds.authorize)) }}{{ $roles = append $roles "access" }}{{ end -}}
{{- toYaml $roles -}}
{{- end -}}

{{/* Conditions of an admission policy of Pods: a Registration, its parameter, selects the Pod. */}}
{{- define "usher.selects" -}}
- name: has-labels
  expression: has(object.metadata.labels)
- name: has-the-labels
  expression: >-
    !has(params.spec.selector.matchLabels) || params.spec.selector.matchLabels.all(key,
    key in object.metadata.labels && object.metadata.labels[key] == params.spec.selector.matchLabels[key])
- name: matches-the-expressions
  expression: >-
    !has(params.spec.selector.matchExpressions) || params.spec.selector.matchExpressions.all(e,
    e.key in object.metadata.labels
    ? e.operator == 'Exists' || e.operator == 'In' && object.metadata.labels[e.key] in e.values || e.operator == 'NotIn' && !(object.metadata.labels[e.key] in e.values)
    : e.operator == 'DoesNotExist' || e.operator == 'NotIn')
{{- end -}}

{{/* The service account of a part: (list $ $part). */}}
{{- define "usher.account" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- $given := $root.Values.serviceAccount -}}
{{- if $given.create -}}
{{- if or $given.name $given.certificateName }}{{ fail "serviceAccount.name and certificateName are for accounts that exist: set serviceAccount.create to false with them" }}{{ end -}}
{{- $part.name -}}
{{- else if eq $part.component "certificate" -}}
{{- $name := required "serviceAccount.certificateName: name the account that makes the guard's certificate, or set serviceAccount.create to true" $given.certificateName -}}
{{- if eq $name $given.name }}{{ fail "serviceAccount.certificateName: name another account than serviceAccount.name, since this one may say whom API servers call" }}{{ end -}}
{{- $name -}}
{{- else -}}
{{- required "serviceAccount.name: name the account to use, or set serviceAccount.create to true" $root.Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The users that CloneSet controllers act as, separated by commas. */}}
{{- define "usher.cloneSetUsers" -}}
{{- $users := .Values.guard.cloneSetUsers -}}
{{- range include "usher.parts" . | fromYamlArray }}
{{- if has "cloneset" .halves }}{{ $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace (include "usher.account" (list $ .))) }}{{ end -}}
{{- end -}}
{{- $users | join "," -}}
{{- end -}}

{{- define "usher.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

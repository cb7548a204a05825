{{- define "gpu-binder.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of namespaced objects. Short enough for every suffix the chart adds and for a pod's ordinal. */}}
{{- define "gpu-binder.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "gpu-binder.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gpu-binder.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects: the namespace keeps two releases apart. */}}
{{- define "gpu-binder.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "gpu-binder.fullname" .) }}
{{- end }}

{{- define "gpu-binder.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpu-binder.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpu-binder.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "gpu-binder.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpu-binder
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpu-binder.registry" -}}
{{- (.Values.global | default dict).imageRegistry | default .Values.image.registry }}
{{- end }}
{{- define "gpu-binder.image" -}}
{{- with include "gpu-binder.registry" . }}{{ . }}/{{ end }}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* How the image is built and named, on one line: (list context registry). */}}
{{- define "gpu-binder.build" -}}
{{- $root := index . 0 }}
{{- $image := printf "%s/%s:%s" (index . 1) $root.Values.image.repository ($root.Values.image.tag | default $root.Chart.AppVersion) }}
{{- printf "docker build -t %s . && docker push %s" $image $image }}
{{- end }}

{{/* The list of both values, every name once; empty for none. */}}
{{- define "gpu-binder.imagePullSecrets" -}}
{{- $names := list }}
{{- range concat .Values.imagePullSecrets ((.Values.global | default dict).imagePullSecrets | default list) }}
{{- if kindIs "string" . }}
{{- $names = append $names . }}
{{- else }}
{{- $names = append $names .name }}
{{- end }}
{{- end }}
{{- range $index, $name := uniq $names }}
{{- if $index }}{{ "\n" }}{{ end -}}
- name: {{ $name }}
{{- end }}
{{- end }}

{{- define "gpu-binder.serviceAccount" -}}{{ include "gpu-binder.fullname" . }}{{- end }}
{{- define "gpu-binder.agentServiceAccount" -}}{{ include "gpu-binder.fullname" . }}-node-agent{{- end }}
{{- define "gpu-binder.certificateSecret" -}}{{ include "gpu-binder.fullname" . }}-webhook-cert{{- end }}

{{/* User name of the controller's service account, as the API server sees it. */}}
{{- define "gpu-binder.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "gpu-binder.serviceAccount" . }}
{{- end }}

{{/* Restricted pod security, pod and container. */}}
{{- define "gpu-binder.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}
{{- define "gpu-binder.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Namespaces that webhooks never see: C20, the parts that heal the cluster start without us. */}}
{{- define "gpu-binder.excludedNamespaces" -}}
{{- $names := concat (list "kube-system" .Release.Namespace) .Values.webhooks.excludedNamespaces | uniq | sortAlpha }}
{{- toJson $names }}
{{- end }}
{{- define "gpu-binder.namespaceSelector" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ include "gpu-binder.excludedNamespaces" . }}
{{- end }}

{{/* true or empty: (list context switch apiVersion/Kind); auto follows what the cluster serves. */}}
{{- define "gpu-binder.switch" -}}
{{- $root := index . 0 }}
{{- $switch := index . 1 }}
{{- if eq (toString $switch) "auto" }}
{{- if $root.Capabilities.APIVersions.Has (index . 2) }}true{{ end }}
{{- else if $switch }}true{{ end }}
{{- end }}

{{/* A quantity in whole MiB, rounded down. */}}
{{- define "gpu-binder.mebibytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" . }}
{{- $powers := dict "k" 1 "M" 2 "G" 3 "T" 4 "P" 5 "Ki" 1 "Mi" 2 "Gi" 3 "Ti" 4 "Pi" 5 }}
{{- $bytes := float64 (trimSuffix $unit .) }}
{{- range until (get $powers $unit | default 0 | int) }}
{{- $bytes = mulf $bytes (ternary 1024 1000 (hasSuffix "i" $unit)) }}
{{- end }}
{{- divf $bytes 1048576 | floor | int64 }}
{{- end }}

{{/* Mistakes that a schema cannot see. */}}
{{- define "gpu-binder.check" -}}
{{- if not (or (include "gpu-binder.registry" .) (regexMatch "^([^/]*[.:][^/]*|localhost)/" .Values.image.repository)) }}
{{- fail (printf "image.registry is not set: run `%s` at the root of the source and add `--set image.registry=REGISTRY`" (include "gpu-binder.build" (list . "REGISTRY"))) }}
{{- end }}
{{- if le (int .Values.webhooks.timeoutSeconds) (add1 (int .Values.controller.bindDeadlineSeconds) | int) }}
{{- fail (printf "webhooks.timeoutSeconds (%d) must be at least 2 above controller.bindDeadlineSeconds (%d), so that a start is answered before the API server gives up" (int .Values.webhooks.timeoutSeconds) (int .Values.controller.bindDeadlineSeconds)) }}
{{- end }}
{{- if lt (int .Values.controller.attachGraceSeconds) (mul 2 (int .Values.controller.bindDeadlineSeconds) | int) }}
{{- fail "controller.attachGraceSeconds must be at least twice controller.bindDeadlineSeconds, or a start that still waits would be released" }}
{{- end }}
{{- $volume := ternary "journal.persistence.size" "journal.sizeLimit" .Values.journal.persistence.enabled }}
{{- $size := ternary .Values.journal.persistence.size .Values.journal.sizeLimit .Values.journal.persistence.enabled }}
{{- if gt (mul 10 (int64 .Values.journal.maxMegabytes)) (mul 8 (include "gpu-binder.mebibytes" $size | int64)) }}
{{- fail (printf "journal.maxMegabytes (%d) must be at most 80 %% of %s (%s), so that the write-ahead log and what is not pruned yet fit on the volume" (int64 .Values.journal.maxMegabytes) $volume $size) }}
{{- end }}
{{- if ge (int .Values.nodeAgent.intervalSeconds) (int .Values.controller.reportStaleSeconds) }}
{{- fail "nodeAgent.intervalSeconds must be below controller.reportStaleSeconds, or every report would be silence before the next" }}
{{- end }}
{{- if lt (int .Values.controller.terminationGracePeriodSeconds) (add (int .Values.controller.bindDeadlineSeconds) 10 | int) }}
{{- fail "controller.terminationGracePeriodSeconds must leave 10 seconds beyond controller.bindDeadlineSeconds, so that started answers are finished" }}
{{- end }}
{{- if and .Values.controller.podDisruptionBudget.enabled (gt (int .Values.controller.replicas) 1) (ge (int .Values.controller.podDisruptionBudget.minAvailable) (int .Values.controller.replicas)) }}
{{- fail "controller.podDisruptionBudget.minAvailable must be below controller.replicas, or no node could be drained" }}
{{- end }}
{{- end }}

{{- define "gpu-binder.webhook" -}}
{{- $root := index . 0 }}
admissionReviewVersions: [v1]
failurePolicy: Fail
matchPolicy: Equivalent
timeoutSeconds: {{ $root.Values.webhooks.timeoutSeconds }}
namespaceSelector:
  {{- include "gpu-binder.namespaceSelector" $root | nindent 2 }}
clientConfig:
  service:
    namespace: {{ $root.Release.Namespace }}
    name: {{ include "gpu-binder.fullname" $root }}
    path: {{ index . 1 }}
    port: 443
{{- end }}

{{- define "gpu-binder.webhookMetadata" -}}
name: {{ include "gpu-binder.clusterName" . }}
labels:
  {{- include "gpu-binder.labels" . | nindent 2 }}
{{- if eq .Values.certificates.mode "CertManager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "gpu-binder.fullname" . }}-webhook
{{- end }}
{{- end }}

{{- define "gpu-binder.uninstallMetadata" -}}
labels:
  {{- include "gpu-binder.labels" (index . 0) | nindent 2 }}
  app.kubernetes.io/component: uninstall
annotations:
  helm.sh/hook: {{ ternary "pre-delete" "pre-upgrade" (index . 0).Values.gpu.enabled }}
  helm.sh/hook-weight: {{ index . 1 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* true where Cilium lets API servers and nodes alone call the webhooks. */}}
{{- define "gpu-binder.ciliumPolicy" -}}
{{- include "gpu-binder.switch" (list . .Values.networkPolicy.cilium "cilium.io/v2/CiliumNetworkPolicy") }}
{{- end }}

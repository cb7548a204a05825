{{/* The references of the machine as the annotation carries them: a JSON list, empty text when there is none. */}}
{{- define "vm-instance.gpuReferences" -}}
{{- $references := list }}
{{- range .Values.gpus }}
{{- if .device }}
{{- $references = append $references (dict "device" .device) }}
{{- else if .className }}
{{- $references = append $references (dict "template" (dict "className" .className "count" (.count | default 1 | int))) }}
{{- end }}
{{- end }}
{{- if $references }}{{ toJson $references }}{{ end }}
{{- end }}
